"""From what a person calls a run to what it was trained with and what it left."""

from __future__ import annotations

import difflib

import pyarrow.compute as pc

from pflcore.backbones import BACKBONES
from pflcore.data.assignment_files import read_assignment
from pflcore.data.federation import FederatedData
from pflcore.data.sample_files import read_samples
from pflcore.engine import select_device
from pflcore.engine.trained import Trained
from pflcore.errors import UserError
from pflcore.methods import METHODS
from pflcore.registry import did_you_mean
from pipeline.compile.compiler import compile_workspace
from pipeline.library.found import KEPT, STALE, TRAINED, Found
from pipeline.library.last_state import last_state
from pipeline.spec.run import Run, weights_id
from pipeline.spec.selection import read_selection
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace, dataset_path, partition_path, run_path, weights_path


def find_run(workspace: Workspace, word: str, seed: int | None) -> tuple[Found, Run]:
    """A run by its id, or by its cell, ``"spec: label, label"``, and its seed if the cell has several.

    Raises:
        UserError: There is no such run, or there are several.
    """
    spec, colon, labels = word.partition(":")
    if colon:
        return _of_cell(Found.of(workspace, spec.strip()), labels.strip(), seed)
    specs = list(find_specs(workspace.specs))
    if word in specs:
        raise UserError(f"{word}: a spec; name one of its runs, or a cell as {word + ': label, label'!r}")
    known: list[str] = []
    # Those that are selected first, since compiling all takes a while.
    for names in (read_selection(workspace, specs).compiled, specs):
        compilation = compile_workspace(workspace, names, ())
        for name, runs in compilation.runs_of_specs().items():
            if word in runs:
                found = Found.of(workspace, name)
                return found, found.compilation.runs[word]
        known = list(compilation.runs)
    near = did_you_mean(word, known) if difflib.get_close_matches(word, known, n=1, cutoff=0.6) else ""
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
    if seed is None and len(seeds) > 1:
        raise UserError(f"{found.spec}: {labels}: trained under several seeds; give seed=, one of {seeds}")
    chosen = [run for run in cells[labels] if seed in (None, run.seed)]
    if not chosen:
        raise UserError(f"{found.spec}: {labels}: no run with seed {seed}; there are {seeds}")
    if len(chosen) > 1:
        ids = ", ".join(run.id for run in chosen)
        raise UserError(f"{found.spec}: {labels}: a mean over several runs; name one of them: {ids}")
    return found, chosen[0]


def trained(found: Found, run: Run, device: str) -> Trained:
    """What a run was trained with, and its weights: those that it saved, or its last state, if it is here.

    Raises:
        UserError: It was not trained, is stale or diverged, its weights are not there, or what it needs is not here.
    """
    root, state = found.workspace.root, found.state(run)
    if state == KEPT:
        raise UserError(
            f"{run.id}: kept in results/, which holds counts and no weights; `pfl results drop` and train it"
        )
    if state != TRAINED:
        why = "its code or data have changed since it was trained" if state == STALE else "not trained yet"
        raise UserError(f"{run.id}: {why}; type `{found.command}`")
    saved = run.training.save_weights
    needed = [dataset_path(run.data_id), partition_path(run.federation_id)]
    needed += [weights_path(weights_id(run.pretrained))] if run.pretrained else []
    for path in [*needed, *([run_path(run.id, "weights.safetensors")] if saved else [])]:
        if not found.recorded.holds(path):
            raise UserError(f"{path}: not here, or not what was recorded; type `{found.command}`")
    table, facts = found.rounds(run)
    if facts.get("diverged"):
        raise UserError(f"{run.id}: it diverged in round {facts['diverged']['round']}, so it has no model")
    dataset, partition, *pretrained = (root / path for path in needed)
    resolved, rounds = run.with_chosen(facts.get("chosen") or {}), int(pc.max(table["round"]).as_py())
    weights = (
        root / run_path(run.id, "weights.safetensors") if saved else last_state(found, run, resolved, facts, rounds)
    )
    if weights is None:
        raise UserError(
            f"{run.id}: its weights were not saved, and .pfl/states has none of it; say `training: {{save_weights: "
            f"true}}` in the base of specs/{found.spec}.yaml and type `{found.command}`"
        )
    options = {**resolved.options("backbone"), **({"pretrained": str(pretrained[0])} if pretrained else {})}
    samples = read_samples(dataset, found.workspace.private / "decoded")
    return Trained(
        data=FederatedData.from_samples(samples, read_assignment(partition), select_device(device)),
        backbone=BACKBONES.create(resolved.backbone, **options),
        method=METHODS.create(resolved.method, **resolved.options("method")),
        training=resolved.training,
        seed=resolved.seed,
        rounds=rounds,
        weights=weights,
    )
