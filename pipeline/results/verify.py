"""``pfl verify``: some cells of a kept table are trained again, apart from everything else, and compared."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Entry, Ledger
from pipeline.report.statistics import FEWEST_SEEDS
from pipeline.running.cells import cell_name, cells_meant
from pipeline.running.request import Wish
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
        allowed: By how many points they may differ here; 0 where every count has to agree.
        verdict: In words.
    """

    cell: str
    run: str
    kept: float
    again: float
    allowed: float
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
    apart = Workspace(workspace.home / "build" / "verify", workspace.home, workspace.profile)
    for name in ("artifacts", "stages", "reports", ".dvc", ".pfl/states"):  # not checkpoints, so that it can be resumed
        shutil.rmtree(apart.root / name, ignore_errors=True)
    alike: dict[tuple[int, ...], list[str]] = {}  # cells of which the same seeds are kept are trained together
    for name, runs in chosen.items():
        alike.setdefault(tuple(compilation.runs[run].seed for run in runs), []).append(name)
    for seeds, names in alike.items():
        if run_specs(apart, Wish((spec,), cells=tuple(names), seeds=seeds)):
            raise UserError(f"{spec}: a run failed; see above")
    ledger = Ledger(workspace.root)
    comparisons = []
    for name, runs in chosen.items():
        entries = [entry for run in runs if (entry := ledger.get(run))]
        accuracies = [_last(entry.run, entry.rounds()).mean for entry in entries]
        spread = float(np.std(accuracies)) if len(accuracies) >= FEWEST_SEEDS else 0.0
        for entry in entries:
            again, facts = read_table(apart.root / run_path(entry.run.id, "rounds.parquet"), "rounds/2")
            timing = read_timing(apart.private / "timings" / f"{entry.run.id}.json")
            comparisons.append(compare(name, entry, again, facts, timing.machine if timing else "", spread))
    return comparisons


def compare(
    cell: str, entry: Entry, again: pa.Table, facts: dict[str, object], machine: str, spread: float = 0.0
) -> Comparison:
    """Compare a kept run with the ``rounds/2`` table of the same run trained again.

    On the same kind of machine all counts have to agree. On another one sums round differently, and training carries
    that on until it is as another seed. There the mean accuracies over the last measurements agree if they differ by no
    more than three standard deviations, of the kept run's own accuracies or of the cell's seeds, and three standard
    errors of the clients' paired differences. Half a point is never too much.

    Args:
        facts: The header of the table.
        machine: That trained it, as :func:`pipeline.stages.machine.describe_machine` says it.
        spread: Standard deviation of the kept accuracies over the cell's seeds, in points; 0 of fewer than three.
    """
    kept = entry.rounds()
    same = all(kept[name].equals(again[name].cast(kept[name].type)) for name in _COUNTS)
    alike = entry.machine == machine and all(entry.facts[name] == facts.get(name) for name in ("device", "torch"))
    before, now = _last(entry.run, kept), _last(entry.run, again)
    found = Comparison(cell, entry.run.id, before.mean, now.mean, 0.0, "", True)
    data = [name for name in ("dataset_hash", "partition_hash") if entry.facts[name] != facts.get(name)]
    if data:
        return replace(found, verdict=f"made on other data ({data[0].partition('_')[0]})", good=False)
    if same:
        return replace(found, verdict="the same, every count")
    if alike:
        return replace(found, verdict="DIFFERS, on the same kind of machine", good=False)
    allowed = max(_LEAST, _DEVIATIONS * min(max(before.deviation, spread), _standard_error(before, now)))
    if abs(now.mean - before.mean) <= allowed:
        where = entry.machine or f"{entry.facts['device']}, torch {entry.facts['torch']}"
        return replace(found, allowed=allowed, verdict=f"agrees, on another kind of machine (kept: {where})")
    return replace(found, allowed=allowed, verdict=f"DIFFERS by more than {allowed:.2f} points", good=False)


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


def _standard_error(kept: _Last, again: _Last) -> float:
    """Return the standard error of the difference over clients; infinite where it cannot be known."""
    if len(kept.total) != len(again.total) or len(kept.total) < 2:
        return float("inf")
    weights = kept.total / kept.total.sum()
    spread = again.clients - kept.clients - again.mean + kept.mean
    return float(np.sqrt((weights**2 * spread**2).sum()))
