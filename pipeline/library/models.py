"""From what a person calls a run to what it was trained with and what it left; a client's model as a file."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pflcore.backbones import BACKBONES
from pflcore.data.assignment_files import read_assignment
from pflcore.data.federation import FederatedData
from pflcore.data.sample_files import read_facts, read_samples
from pflcore.engine import device_name, select_device
from pflcore.engine.checkpoint import Checkpoint
from pflcore.engine.trained import Trained
from pflcore.errors import UserError
from pflcore.files import atomic_path
from pflcore.methods import METHODS
from pflcore.registry import did_you_mean
from pipeline.compile.compiler import compile_workspace
from pipeline.library.found import KEPT, STALE, TRAINED, Found
from pipeline.spec.run import Run, weights_id
from pipeline.spec.selection import read_selection
from pipeline.spec.specs import find_specs
from pipeline.stages.identity import checkpoint_folder
from pipeline.workspace import Workspace, dataset_path, partition_path, run_path, weights_path


def find_run(workspace: Workspace, word: str, seed: int | None) -> tuple[Found, Run]:
    """Find a run by its id, or by its cell, ``"spec: label, label"``, and its seed if the cell has several."""
    spec, colon, labels = word.partition(":")
    if colon:
        return _of_cell(Found.of(workspace, spec.strip()), labels.strip(), seed)
    specs, known = list(find_specs(workspace.specs)), list[str]()
    if word in specs:
        raise UserError(f"{word}: a spec; name one of its runs, or a cell as {word + ': label, label'!r}")
    # Those that are selected first, since compiling all takes a while.
    for names in (read_selection(workspace, specs).compiled, specs):
        compilation = compile_workspace(workspace, names, ())
        for name, runs in compilation.runs_of_specs().items():
            if word in runs:
                found = Found.of(workspace, name)
                return found, found.compilation.runs[word]
        known = list(compilation.runs)
    near = did_you_mean(word, difflib.get_close_matches(word, known))
    raise UserError(
        f"no spec asks for a run {word!r}{near}; name a cell, as 'first: FedPer, iid', "
        "or a run that a click on its cell in report.html shows"
    )


def _of_cell(found: Found, labels: str, seed: int | None) -> tuple[Found, Run]:
    cells: dict[str, list[Run]] = {}
    for run in found.runs:
        for place in found.labels(run):
            words = ", ".join(label for axis, label in place.items() if axis != "seed")
            cells.setdefault(words, []).append(run)
    if labels not in cells:
        raise UserError(f"{found.spec}: no cell {labels!r} with runs{did_you_mean(labels, list(cells))}")
    seeds = sorted({run.seed for run in cells[labels]})
    chosen = [run for run in cells[labels] if seed in (None, run.seed)]
    if len(chosen) == 1:
        return found, chosen[0]
    if not chosen:
        why = f"no run with seed {seed}; there are {seeds}"
    elif seed is None and len(seeds) > 1:
        why = f"trained under several seeds; give seed=, one of {seeds}"
    else:
        why = f"a mean over several runs; name one of them: {', '.join(run.id for run in chosen)}"
    raise UserError(f"{found.spec}: {labels}: {why}")


def trained(found: Found, run: Run, device: str) -> Trained:
    """Return what a run was trained with, and its weights: those that it saved, or its last state, if it is here."""
    root, state, saved = found.workspace.root, found.state(run), run.training.save_weights
    if state == KEPT:
        raise UserError(
            f"{run.id}: kept in results/, which holds counts and no weights; `pfl results drop` and train it"
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
    return Trained(data, backbone, method, resolved.training, resolved.seed, rounds, weights)


def _last_state(found: Found, run: Run, resolved: Run, facts: Mapping[str, Any], rounds: int) -> Checkpoint | None:
    """Return the last checkpoint of a run; None when it is not here or was made on another kind of device."""
    devices = [torch.device("cpu"), *([select_device("cuda")] if torch.cuda.is_available() else [])]
    device = next((one for one in devices if device_name(one) == facts["device"]), None)
    if device is None:
        return None
    stage = found.recorded.makers[run_path(run.id, "rounds.parquet")]
    hashes = {name: str(facts[name]) for name in ("dataset_hash", "partition_hash")}
    private = found.workspace.private
    checkpoints = checkpoint_folder(resolved, run.id, private, stage.seal, hashes, device, lambda line: None)
    return checkpoints.earlier(lambda tensors: "", lambda one: one.round == rounds)


def export(workspace: Workspace, word: str, client: int, seed: int | None, out: Path | None) -> Path:
    """Write a client's model into the folder `out`, by default ``exports/RUN-clientN``, and return the file.

    Its metadata say whose it is, what it was trained on and how, and what it predicts, in JSON.
    """
    found, run = find_run(workspace, word, seed)
    model = trained(found, run, "cpu").client(client)
    path = (out or workspace.home / "exports" / f"{run.id}-client{client}") / "model.safetensors"
    samples = read_facts(workspace.root / dataset_path(run.data_id))
    facts = {
        "client": model.client,
        "plain": model.plain,
        "settings": run.with_chosen(found.rounds(run)[1].get("chosen") or {}).record,
        "classes": samples.class_names,
        **{name: getattr(samples, name) for name in ("mean", "std", "size")},
    }
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state().items()}
    with atomic_path(path) as temporary:
        header = {"format": "pt", "run": run.id, **{name: json.dumps(value) for name, value in facts.items()}}
        save_file(tensors, temporary, header)
    return path
