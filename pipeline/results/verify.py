"""``pfl verify``: some cells of a kept table are trained again in a folder of their own, and compared."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Entry, Ledger
from pipeline.report.statistics import FEWEST_SEEDS
from pipeline.running.options import RunOptions, cell_name, cells_meant
from pipeline.running.runner import run_specs
from pipeline.spec.run import Run
from pipeline.timing import read_timing
from pipeline.workspace import Workspace, run_path

_COUNTS = ("round", "client", "correct", "total", "last_correct")
_DEVIATIONS = 3.0  # standard deviations of a run, and standard errors over clients, that a difference may have
_LEAST = 0.5  # points that are never too much on another machine
_FEWEST = 10  # measurements that are averaged at least


@dataclass(frozen=True)
class Comparison:
    """A kept run and the same run trained again.

    Attributes:
        cell: In words.
        kept, again: Pooled accuracy in percent, mean over the last measurements.
        verdict: In words.
    """

    cell: str
    run: str
    kept: float
    again: float
    verdict: str
    good: bool


def verify(workspace: Workspace, spec: str, cells: int, named: list[str]) -> list[Comparison]:
    """Train the kept runs of some cells of a spec again and compare every count.

    Of a cell these may be some of its seeds. It works in ``build/verify``, so that nothing is recorded in the workspace
    or in its ledger.

    Args:
        cells: How many to draw at random, where none are `named`.
        named: Cells or patterns of them (:func:`cells_meant`).

    Raises:
        UserError: No cell of the spec is kept, or there is no such cell, or a run failed.
    """
    compilation = compile_workspace(workspace, [spec])
    cells_kept = {
        cell_name(cell.labels): [run for run in cell.runs if run in compilation.kept]
        for cell in compilation.table(spec).cells
    }
    known = {name: runs for name, runs in cells_kept.items() if runs}
    if not known:
        raise UserError(f"{spec}: none of its cells is kept and current; see `pfl results list`")
    meant = cells_meant(named, list(known), "kept cell")
    chosen = {name: runs for name, runs in known.items() if name in meant}
    if not named:
        chosen = dict(random.SystemRandom().sample(sorted(known.items()), min(cells, len(known))))
    scratch = Workspace(workspace.home / "build" / "verify", workspace.home, workspace.profile)
    for name in ("artifacts", "stages", "reports", ".dvc", ".pfl/states"):  # not checkpoints, so that it can be resumed
        shutil.rmtree(scratch.root / name, ignore_errors=True)
    by_seeds: dict[tuple[int, ...], list[str]] = {}  # cells of which the same seeds are kept are trained together
    for name, runs in chosen.items():
        by_seeds.setdefault(tuple(compilation.runs[run].seed for run in runs), []).append(name)
    for seeds, names in by_seeds.items():
        if run_specs(scratch, RunOptions((spec,), cells=tuple(names), seeds=seeds)):
            raise UserError(f"{spec}: a run failed; see above")
    ledger = Ledger(workspace.root)
    comparisons = []
    for name, runs in chosen.items():
        again = []
        for entry in filter(None, map(ledger.get, runs)):
            rounds, facts = read_table(scratch.root / run_path(entry.run.id, "rounds.parquet"), "rounds/2")
            timing = read_timing(scratch.private / "timings" / f"{entry.run.id}.json")
            again.append(Again(entry, rounds, facts, timing.machine if timing else ""))
        comparisons += compare(name, again)
    return comparisons


@dataclass(frozen=True)
class Again:
    """A kept run that was trained again: its ``rounds/2`` table, the header of that, and the machine that did it."""

    entry: Entry
    rounds: pa.Table
    facts: dict[str, object]
    machine: str


def compare(cell: str, runs: Sequence[Again]) -> list[Comparison]:
    """Compare the kept runs of a cell with the same runs trained again.

    On the same kind of machine all counts have to agree. On another one sums round differently, and training carries
    that on until a run is as another seed. There the cell agrees if its mean accuracy over the last measurements
    differs by no more than three standard deviations, over its seeds or over a run's measurements, whichever is larger,
    and three standard errors of the clients' paired differences. Half a point is never too much.
    """
    before, now = (
        [_last(run.entry.run, run.entry.rounds()) for run in runs],
        [_last(r.entry.run, r.rounds) for r in runs],
    )
    difference = abs(float(np.mean([a.mean - b.mean for a, b in zip(now, before, strict=True)])))
    seeds = float(np.std([one.mean for one in before])) if len(before) >= FEWEST_SEEDS else 0.0
    spread = max(seeds, float(np.mean([one.deviation for one in before])))
    allowed = max(_LEAST, _DEVIATIONS * min(spread, _standard_error(before, now)))
    found = []
    for run, kept, again in zip(runs, before, now, strict=True):
        verdict, good = _verdict(run)
        if not verdict and (good := difference <= allowed):
            where = run.entry.machine or f"{run.entry.facts['device']}, torch {run.entry.facts['torch']}"
            verdict = f"the cell agrees, on another kind of machine (kept: {where})"
        verdict = verdict or f"the cell DIFFERS by {difference:.2f} points, more than {allowed:.2f}"
        found.append(Comparison(cell, run.entry.run.id, kept.mean, again.mean, verdict, good))
    return found


def _verdict(run: Again) -> tuple[str, bool]:
    """Return what can be said of one run alone; "" where its cell decides."""
    entry, kept = run.entry, run.entry.rounds()
    data = [name for name in ("dataset_hash", "partition_hash") if entry.facts[name] != run.facts.get(name)]
    if data:
        return f"made on other data ({data[0].partition('_')[0]})", False
    if all(kept[name].equals(run.rounds[name].cast(kept[name].type)) for name in _COUNTS):
        return "the same, every count", True
    if entry.machine == run.machine and all(entry.facts[name] == run.facts.get(name) for name in ("device", "torch")):
        return "DIFFERS, on the same kind of machine", False
    return "", False


@dataclass(frozen=True)
class _Last:
    """The last measurements of a run: accuracies in percent, pooled over clients and per client [clients]."""

    mean: float
    deviation: float
    clients: NDArray[np.float64]
    total: NDArray[np.float64]


def _last(run: Run, rounds: pa.Table) -> _Last:
    """Return the measurements in the window of the run's evaluation, and ten at least."""
    table = rounds.filter(pc.not_equal(rounds["population"].cast(pa.string()), "validation"))
    if not len(table):
        return _Last(float("nan"), 0.0, np.zeros(0), np.zeros(0))
    measured = np.unique(table["round"].to_numpy())
    window = sum(run.evaluation.in_window(int(one), int(measured[-1])) for one in measured)
    last = measured[-max(window, _FEWEST) :]
    counts = table.filter(pc.is_in(table["round"], pa.array(last, table["round"].type)))
    correct, total = (counts[name].to_numpy().reshape(len(last), -1) for name in ("correct", "total"))
    pooled = 100.0 * correct.sum(axis=1) / total.sum(axis=1)
    clients = 100.0 * correct.mean(axis=0) / np.maximum(total[0], 1)
    return _Last(float(pooled.mean()), float(pooled.std()), clients, total[0].astype(float))


def _standard_error(kept: Sequence[_Last], again: Sequence[_Last]) -> float:
    """Return the standard error of the difference over the clients of all runs; infinite where it cannot be known."""
    if any(len(a.total) != len(b.total) for a, b in zip(kept, again, strict=True)):
        return float("inf")
    total = np.concatenate([one.total for one in kept])
    if len(total) < 2:
        return float("inf")
    differences = np.concatenate([b.clients - a.clients for a, b in zip(kept, again, strict=True)])
    weights = total / total.sum()
    return float(np.sqrt((weights**2 * (differences - weights @ differences) ** 2).sum()))
