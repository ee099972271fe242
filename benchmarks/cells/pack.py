"""Packing: what a card needs to train cells of some specs whose data and partitions have been made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from cells.folder import Cell, collected, write_cells, write_partition, write_samples

from pflcore import extensions
from pflcore.artifacts import read_meta
from pflcore.backbones import BACKBONES
from pflcore.data.assignment_files import SCHEMA as PARTITION
from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_samples
from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import code_of_run
from pipeline.plan.estimate import Speed
from pipeline.running.options import cell_name, cells_meant
from pipeline.spec.run import Run
from pipeline.workspace import Workspace, dataset_path, partition_path


def pack(
    workspace: Workspace, folder: Path, specs: Sequence[str], patterns: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """Write a folder for the card; lines to show.

    Args:
        patterns: Of the cells' labels, joined by a comma and a space; none means all.
        seeds: Those that are wanted; none means all.

    Raises:
        UserError: A spec is invalid, no cell is meant, or data or partitions have not been made.
    """
    compilation = compile_workspace(workspace, list(specs))
    compilation.check_tested()
    done, wanted, left = collected(folder), dict[str, str](), 0
    for name, words in _named(compilation, patterns).items():
        run = compilation.runs[name]
        if seeds and run.seed not in seeds:
            continue
        if name in compilation.kept or name in done:
            continue
        detects = BACKBONES.get(run.record["backbone"]["name"]).predicts == "boxes"
        if run.analyses or run.training.save_weights or run.tuned or detects:
            left += 1
        else:
            wanted[name] = words
    if not wanted:
        raise UserError("no such cell is still to be trained")
    runs = [compilation.runs[name] for name in wanted]
    _check_made(workspace.root, runs)
    speed = Speed(compilation.runs.values(), workspace.private / "timings")
    cells = [
        Cell(
            run.id,
            wanted[run.id],
            speed.seconds(run),
            run.record,
            code_of(compilation, run),
            hashes(workspace.root, run),
        )
        for run in runs
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for data_id in {run.data_id for run in runs}:
        write_samples(folder, data_id, read_samples(workspace.root / dataset_path(data_id)))
    for federation_id in {run.federation_id for run in runs}:
        write_partition(folder, federation_id, read_assignment(workspace.root / partition_path(federation_id)))
    write_cells(folder, sorted(cells, key=lambda cell: (cell.seconds, cell.run)), _sources(cells))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    lines = [f"{len(cells)} cells, {size / 2**20:.1f} MiB"]
    return lines + (
        [f"{left} left out: analyses, weights, tuned runs and detectors are not for the ledger"] if left else []
    )


def code_of(compilation: Compilation, run: Run) -> str:
    """What stands for the code of a run's train stage."""
    return next(one.seal for one in compilation.stages if one.kind == "train" and one.subject == run.id)


def hashes(root: Path, run: Run) -> dict[str, str]:
    """What tells the artifacts of a run apart, as in the header of ``rounds.parquet``."""
    paths = {"dataset_hash": dataset_path(run.data_id), "partition_hash": partition_path(run.federation_id)}
    return {name: hashlib.sha256((root / path).read_bytes()).hexdigest() for name, path in paths.items()}


def _named(compilation: Compilation, patterns: Sequence[str]) -> dict[str, str]:
    """Run → its cell in words, for cells that a pattern means."""
    cells = [(spec, cell_name(cell.labels), cell) for spec, table in compilation.tables.items() for cell in table.cells]
    meant = cells_meant(patterns, [name for _, name, _ in cells])
    return {
        run: f"{spec}: {name}, seed {compilation.runs[run].seed}"
        for spec, name, cell in cells
        if name in meant
        for run in cell.runs
    }


def _check_made(root: Path, runs: Sequence[Run]) -> None:
    absent = sorted({run.federation_id for run in runs if not (root / partition_path(run.federation_id)).is_file()})
    if absent:
        stages = " ".join(f"stages/federations/{name}/dvc.yaml:partition" for name in absent)
        raise UserError(f"{len(absent)} partitions have not been made; type: dvc repro {stages}")
    for run in runs:
        read_meta(root / partition_path(run.federation_id), PARTITION)


def _sources(cells: Sequence[Cell]) -> dict[str, str]:
    """The SHA-256 of every module that training the cells may import, by name."""
    code = Code(Path(__file__).parents[2])
    parts = {part for cell in cells for part in code_of_run("train", cell.resolved)}
    names = {name for part in parts for name in code.names(part.fingerprint(code))}
    paths = {name: code.modules.get(name) or extensions.modules()[name] for name in sorted(names)}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}
