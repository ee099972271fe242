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
from pipeline.library.found import KEPT, STALE, TRAINED, Found, find_run
from pipeline.spec.run import Run, weights_id
from pipeline.stages.identity import checkpoint_folder
from pipeline.workspace import Workspace, dataset_path, partition_path, run_path, weights_path


def trained(found: Found, run: Run, device: str) -> Trained:
    """Return an up-to-date run with its saved weights or its last state. Raises :class:`UserError` without either."""
    root, state, saved = found.workspace.root, found.state(run), run.training.save_weights
    if state == KEPT:
        raise UserError(
            f"{run.id}: kept in results/, which holds counts and no weights; `pfl ledger drop` and train it"
        )
    if state != TRAINED:
        why = "its code or data have changed since it was trained" if state == STALE else "not trained yet"
        raise UserError(f"{run.id}: {why}; type `{found.command}`")
    needed = [dataset_path(run.data_id), partition_path(run.federation_id)]
    needed += [weights_path(weights_id(run.pretrained))] if run.pretrained else []
    own = run_path(run.id, "weights.safetensors")
    for path in [*needed, *([own] if saved else [])]:
        if not found.recorded.holds(path):
            raise UserError(f"{path}: not here, or not what was recorded; type `{found.command}`")
    table, facts = found.rounds(run)
    if facts.get("diverged"):
        raise UserError(f"{run.id}: it diverged in round {facts['diverged']['round']}, so it has no model")
    dataset, partition, *pretrained = (root / path for path in needed)
    resolved, rounds = run.with_chosen(facts.get("chosen") or {}), int(table["round"].to_numpy().max())
    weights = root / own if saved else _last_state(found, run, resolved, facts, rounds)
    if weights is None:
        raise UserError(
            f"{run.id}: its weights were not saved, and .pfl/states has none of it; say `training: {{save_weights: "
            f"true}}` in the base of specs/{found.spec}.yaml and type `{found.command}`"
        )
    options = {**resolved.options("backbone"), **({"pretrained": str(pretrained[0])} if pretrained else {})}
    samples = read_samples(dataset, found.workspace.private / "decoded")
    data = FederatedData.from_samples(samples, read_assignment(partition), select_device(device))
    backbone = BACKBONES.create(resolved.backbone, **options)
    method = METHODS.create(resolved.method, **resolved.options("method"))
    condition = CONDITIONS.create(run.condition, **run.options("condition")) if run.condition else None
    return Trained(data, backbone, method, resolved.training, resolved.seed, rounds, weights, condition)


def _last_state(found: Found, run: Run, resolved: Run, facts: Mapping[str, Any], rounds: int) -> Checkpoint | None:
    """Return the last checkpoint of a run; None if it is not here or was made on another kind of device."""
    devices = [torch.device("cpu"), *([select_device("cuda")] if torch.cuda.is_available() else [])]
    device = next((one for one in devices if device_name(one) == facts["device"]), None)
    if device is None:
        return None
    code = found.recorded.makers[run_path(run.id, "rounds.parquet")].seal
    hashes = {name: str(facts[name]) for name in ("dataset_hash", "partition_hash")}
    private = found.workspace.private
    checkpoints = checkpoint_folder(resolved, run.id, private, code, hashes, device, lambda line: None)
    return checkpoints.earlier(lambda tensors: "", lambda one: one.round == rounds)


def export(workspace: Workspace, word: str, client: int, seed: int | None, out: Path | None) -> Path:
    """Write a client's model into the folder `out`, by default ``exports/RUN-clientN``, and return the file.

    The file's metadata are JSON: run, client, settings, classes, and mean, standard deviation and size of inputs.
    """
    found, run = find_run(workspace, word, seed)
    made = trained(found, run, "cpu")
    model = made.client(client)
    path = (out or workspace.home / "exports" / f"{run.id}-client{client}") / "model.safetensors"
    samples = read_facts(workspace.root / dataset_path(run.data_id))
    settings = run.with_chosen(found.rounds(run)[1].get("chosen") or {}).record
    facts = {"client": model.client, "plain": model.plain, "settings": settings, "classes": samples.class_names}
    facts |= {name: getattr(samples, name) for name in ("mean", "std", "size")}
    if samples.is_arrays:
        facts |= {"mean": made.data.mean.flatten().tolist(), "std": made.data.std.flatten().tolist()}
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state().items()}
    with atomic_path(path) as temporary:
        header = {"format": "pt", "run": run.id, **{name: json.dumps(value) for name, value in facts.items()}}
        save_file(tensors, temporary, header)
    return path
