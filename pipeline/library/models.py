"""Models of trained runs, and the export of a client's model to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pflcore.backbones import BACKBONES
from pflcore.conditions import CONDITIONS
from pflcore.data.assignment_files import read_assignment
from pflcore.data.federation import FederatedData
from pflcore.data.sample_files import read_facts, read_samples
from pflcore.engine import device_name, select_device
from pflcore.engine.checkpoint import Checkpoint
from pflcore.engine.trained import Trained
from pflcore.errors import UserError
from pflcore.files import atomic_path
from pflcore.methods import METHODS
from pipeline.library.spec_results import KEPT, STALE, TRAINED, SpecResults, find_run
from pipeline.spec.run import Run, weights_id
from pipeline.stages.identity import checkpoint_folder
from pipeline.workspace import Workspace, dataset_path, partition_path, run_path, weights_path


def trained(results: SpecResults, run: Run, device: str) -> Trained:
    """Return an up-to-date run with its saved weights or its last state. Raises :class:`UserError` without either."""
    root, state = results.workspace.root, results.state(run)
    if state == KEPT:
        message = "kept in results/, which holds counts and no weights; `pfl ledger drop` and train it"
        raise UserError(f"{run.id}: {message}")
    if state != TRAINED:
        reason = "its code or data have changed since it was trained" if state == STALE else "not trained yet"
        raise UserError(f"{run.id}: {reason}; type `{results.command}`")
    dataset, partition = dataset_path(run.data_id), partition_path(run.federation_id)
    pretrained = weights_path(weights_id(run.pretrained)) if run.pretrained else ""
    saved = run_path(run.id, "weights.safetensors") if run.training.save_weights else ""
    for path in filter(None, (dataset, partition, pretrained, saved)):
        if not results.recorded.holds(path):
            raise UserError(f"{path}: not here, or not what was recorded; type `{results.command}`")
    table, facts = results.rounds(run)
    if facts.get("diverged"):
        raise UserError(f"{run.id}: it diverged in round {facts['diverged']['round']}, so it has no model")
    resolved, rounds = run.with_chosen(facts.get("chosen") or {}), int(table["round"].to_numpy().max())
    weights = root / saved if saved else _last_state(results, run, resolved, facts, rounds)
    if weights is None:
        setting = f"`training: {{save_weights: true}}` in the base of specs/{results.spec}.yaml"
        problem = "its weights were not saved, and .pfl/states has none of it"
        raise UserError(f"{run.id}: {problem}; say {setting} and type `{results.command}`")
    options = resolved.options("backbone")
    if pretrained:
        options["pretrained"] = str(root / pretrained)
    samples = read_samples(root / dataset, results.workspace.private / "decoded")
    data = FederatedData.from_samples(samples, read_assignment(root / partition), select_device(device))
    backbone = BACKBONES.create(resolved.backbone, **options)
    method = METHODS.create(resolved.method, **resolved.options("method"))
    condition = CONDITIONS.create(run.condition, **run.options("condition")) if run.condition else None
    return Trained(data, backbone, method, resolved.training, resolved.seed, rounds, weights, condition)


def _last_state(
    results: SpecResults, run: Run, resolved: Run, facts: Mapping[str, Any], rounds: int
) -> Checkpoint | None:
    """Return the last checkpoint of a run; None if it is not here or was made on another kind of device."""
    devices = [torch.device("cpu"), *([select_device("cuda")] if torch.cuda.is_available() else [])]
    device = next((candidate for candidate in devices if device_name(candidate) == facts["device"]), None)
    if device is None:
        return None
    code = results.recorded.makers[run_path(run.id, "rounds.parquet")].seal
    hashes = {name: str(facts[name]) for name in ("dataset_hash", "partition_hash")}
    private = results.workspace.private
    checkpoints = checkpoint_folder(resolved, run.id, private, code, hashes, device, lambda line: None)
    return checkpoints.earlier(lambda tensors: "", lambda candidate: candidate.round == rounds)


def export(workspace: Workspace, word: str, client: int, seed: int | None, out: Path | None) -> Path:
    """Write a client's model into the folder `out`, by default ``exports/RUN-clientN``, and return the file.

    The file's metadata are JSON: run, client, settings, classes, and mean, standard deviation and size of inputs.
    """
    results, run = find_run(workspace, word, seed)
    models = trained(results, run, "cpu")
    model = models.client(client)
    path = (out or workspace.home / "exports" / f"{run.id}-client{client}") / "model.safetensors"
    samples = read_facts(workspace.root / dataset_path(run.data_id))
    settings = run.with_chosen(results.rounds(run)[1].get("chosen") or {}).record
    facts = {"client": model.client, "plain": model.plain, "settings": settings, "classes": samples.class_names}
    facts |= {name: getattr(samples, name) for name in ("mean", "std", "size")}
    if samples.is_arrays:
        facts |= {"mean": models.data.mean.flatten().tolist(), "std": models.data.std.flatten().tolist()}
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state().items()}
    with atomic_path(path) as temporary:
        header = {"format": "pt", "run": run.id, **{name: json.dumps(value) for name, value in facts.items()}}
        save_file(tensors, temporary, header)
    return path
