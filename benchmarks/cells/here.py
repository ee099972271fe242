"""Packing what a card needs to train cells of some specs, and collecting what came back, on the machine with DVC.

A run that came back counts only if its record, its code and its data are those that the workspace has now; the identity
that a run's checkpoints bear says so. Device and PyTorch are told as they were on the card.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cells.folder import FINISHED, UNDER_WAY, Cell, collected, finished, pack_data, unpack_data, write_cells

from pflcore import extensions
from pflcore.backbones import BACKBONES
from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_samples
from pflcore.engine import Result
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import code_of_run
from pipeline.dvc.program import dvc
from pipeline.plan.estimate import Speed
from pipeline.running.options import cell_name, cells_meant
from pipeline.spec.run import Run
from pipeline.spec.specs import find_specs
from pipeline.stages.identity import run_hash
from pipeline.stages.train import write_rounds
from pipeline.workspace import Workspace, dataset_path, partition_path, run_path


def pack(
    workspace: Workspace, folder: Path, specs: Sequence[str], patterns: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """Write a folder for the card; return lines to show.

    Args:
        patterns: Of the cells' labels, joined by a comma and a space; none means all.
        seeds: Those that are wanted; none means all.

    Raises:
        UserError: A spec is invalid, no cell is meant, or data or partitions have not been made.
    """
    compilation = compile_workspace(workspace, list(specs))
    compilation.check_tested()
    root, left, wanted = workspace.root, 0, dict[str, str]()
    done = collected(folder) | compilation.kept
    cells = [(spec, cell_name(cell.labels), cell) for spec, table in compilation.tables.items() for cell in table.cells]
    meant = cells_meant(patterns, [name for _, name, _ in cells])
    for spec, name, cell in cells:
        for run in (compilation.runs[one] for one in cell.runs if name in meant and one not in done):
            if seeds and run.seed not in seeds:
                continue
            detects = BACKBONES.get(run.backbone).predicts == "boxes"
            if run.analyses or run.training.save_weights or run.tuned or detects:
                left += 1
            else:
                wanted[run.id] = f"{spec}: {name}, seed {run.seed}"
    if not wanted:
        raise UserError("no such cell is still to be trained")
    runs = [compilation.runs[name] for name in wanted]
    absent = sorted({run.federation_id for run in runs if not (root / partition_path(run.federation_id)).is_file()})
    if absent:
        stages = " ".join(f"stages/federations/{name}/dvc.yaml:partition" for name in absent)
        raise UserError(f"{len(absent)} partitions have not been made; type: dvc repro {stages}")
    speed = Speed(compilation.runs.values(), workspace.private / "timings")
    packed = [
        Cell(run.id, wanted[run.id], speed.seconds(run), run.record, _code(compilation, run), _hashes(root, run))
        for run in runs
    ]
    for data_id in {run.data_id for run in runs}:
        pack_data(folder, data_id, read_samples(root / dataset_path(data_id)))
    for federation in {run.federation_id for run in runs}:
        pack_data(folder, federation, read_assignment(root / partition_path(federation)))
    write_cells(folder, sorted(packed, key=lambda cell: (cell.seconds, cell.run)), _sources(packed))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    lines = [f"{len(packed)} cells, {size / 2**20:.1f} MiB"]
    aside = f"{left} left out: analyses, weights, tuned runs and detectors are not for the ledger"
    return [*lines, aside] if left else lines


def collect(workspace: Workspace, folder: Path, source: Path) -> list[str]:
    """Take what came back from a card into a workspace and into the packed folder; return lines to show.

    Raises:
        UserError: A run was made by other code or from other data than there are here, which is told when all others
            have been taken; or DVC does not see the stages of its spec.
    """
    compilation = compile_workspace(workspace, list(find_specs(workspace.specs)))
    compilation.check_tested()
    known, addresses, refused = collected(folder), [], []
    makers = {stage.subject: stage for stage in compilation.stages if stage.kind == "train"}
    for line in finished(source):
        run = compilation.runs.get(line["run"])
        if line["run"] in known:
            continue
        if run is None or line["identity"] != _identity(workspace.root, compilation, run, line["kind"]):
            refused.append(line["run"])
            continue
        if not (workspace.root / makers[run.id].file).is_file():
            raise UserError(f"{makers[run.id].file}: DVC does not see this stage; type `pfl add` and the spec")
        addresses.append(makers[run.id].address)
        _write(workspace, folder, run, _code(compilation, run), line)
        known.add(run.id)
    if addresses and dvc(workspace.root, "commit", "--force", "--quiet", *addresses):
        raise UserError("`dvc commit` failed; see above")
    write_text(folder / FINISHED, "".join(f"{name}\n" for name in sorted(known)))
    for place in source.glob(f"{UNDER_WAY}*"):  # it travels again
        shutil.rmtree(folder / place.name, ignore_errors=True)
        shutil.copytree(place, folder / place.name)
    for name in known:
        shutil.rmtree(folder / f"{UNDER_WAY}{name}", ignore_errors=True)
    if refused:
        raise UserError(
            f"{', '.join(refused)}: trained with other settings, code or data than there are here, so not taken; "
            f"{len(addresses)} others were"
        )
    under_way = len(list(folder.glob(f"{UNDER_WAY}*")))
    return [f"{len(addresses)} runs taken, {under_way} under way; `pfl results keep` makes them last"]


def _write(workspace: Workspace, folder: Path, run: Run, code: str, line: dict[str, Any]) -> None:
    """Write what the train stage leaves behind: the table of rounds, and how long they took."""
    result: Result = pickle.loads(bytes.fromhex(line["result"]))  # noqa: S301 our own
    novel = frozenset(unpack_data([folder], run.federation_id).novel)
    facts = {"run": run.id, "device": line["device"], "torch": line["torch"], **_hashes(workspace.root, run)}
    path = workspace.root / run_path(run.id, "rounds.parquet")
    path.unlink(missing_ok=True)  # it may be a link into DVC's cache
    write_rounds(path, result, novel, code=code, **facts)
    rounds = (result.diverged.round if result.diverged else result.rounds) - result.resumed_from
    timing = workspace.private / "timings" / f"{run.id}.json"
    write_text(timing, json.dumps({"seconds": line["seconds"], "device": line["device"], "rounds": rounds}) + "\n")
    os.utime(timing, (line["ended"], line["ended"]))  # the day on which it was obtained


def _identity(root: Path, compilation: Compilation, run: Run, kind: str) -> str:
    try:
        return run_hash(run, _code(compilation, run), _hashes(root, run), torch.device(kind))
    except OSError:  # without its data here, nobody can say that it is the same
        return ""


def _code(compilation: Compilation, run: Run) -> str:
    return next(one.seal for one in compilation.stages if one.kind == "train" and one.subject == run.id)


def _hashes(root: Path, run: Run) -> dict[str, str]:
    paths = {"dataset_hash": dataset_path(run.data_id), "partition_hash": partition_path(run.federation_id)}
    return {name: hashlib.sha256((root / path).read_bytes()).hexdigest() for name, path in paths.items()}


def _sources(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the SHA-256 of every module that training the cells may import, by name."""
    code = Code(Path(__file__).parents[2])
    parts = {part for cell in cells for part in code_of_run("train", cell.resolved)}
    names = sorted({name for part in parts for name in code.names(part.fingerprint(code))})
    paths = {name: code.modules.get(name) or extensions.modules()[name] for name in names}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}
