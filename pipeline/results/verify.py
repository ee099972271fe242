"""``pfl verify``: train some cells of a kept table again, in a separate folder, and compare the results."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pflcore.settings import METRICS
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Entry, Ledger
from pipeline.measurements import TRAIN_LOSS, from_table
from pipeline.report.statistics import FEWEST_SEEDS
from pipeline.running.options import RunOptions, cell_name, match_cells
from pipeline.running.runner import run_specs
from pipeline.timing import read_timing
from pipeline.workspace import Workspace, run_path

_DEVIATIONS = 3.0  # largest accepted difference, in standard deviations of a run and in standard errors over clients
_LEAST = 0.5  # a difference of so many points is always accepted on another machine
_FEWEST = 10  # least number of measurements to average


@dataclass(frozen=True)
class Comparison:
    """A kept run and the same run trained again, with pooled accuracies in percent, averaged over the last rounds."""

    cell: str
    run: str
    kept: float
    again: float
    verdict: str
    good: bool


def verify(workspace: Workspace, spec: str, cells: int, named: list[str]) -> list[Comparison]:
    """Train the kept runs of some cells of a spec again, in ``build/verify``, and compare every count. The cells are
    those that are `named` (:func:`match_cells`); if none are, `cells` of them are drawn at random. Raises
    :class:`UserError` if no cell of the spec is kept, no kept cell has such a name, or a run failed."""
    compilation, ledger = compile_workspace(workspace, [spec], [spec]), Ledger(workspace.root)
    in_table = {cell_name(cell.labels): cell.runs for cell in compilation.table(spec).cells}
    kept = {name: own for name, runs in in_table.items() if (own := [run for run in runs if run in compilation.kept])}
    if not kept:
        raise UserError(f"{spec}: none of its cells is kept and current; see `pfl ledger list`")
    drawn = random.SystemRandom().sample(sorted(kept), min(cells, len(kept)))
    meant = match_cells(named, list(kept), "kept cell") if named else drawn
    chosen = {name: runs for name, runs in kept.items() if name in meant}
    scratch = Workspace(workspace.home / "build" / "verify", workspace.home, workspace.profile)
    for folder in ("artifacts", "stages", "reports", ".dvc", ".pfl/states"):  # but not checkpoints: runs may resume
        shutil.rmtree(scratch.root / folder, ignore_errors=True)
    by_seeds: dict[tuple[int, ...], list[str]] = {}  # cells with the same kept seeds are trained together
    for name, runs in chosen.items():
        by_seeds.setdefault(tuple(compilation.runs[run].seed for run in runs), []).append(name)
    for seeds, names in by_seeds.items():
        if run_specs(scratch, RunOptions((spec,), cells=tuple(names), seeds=seeds)):
            raise UserError(f"{spec}: a run failed; see above")
    found = []
    for name, runs in chosen.items():
        entries = [entry for entry in map(ledger.get, runs) if entry]
        found += compare(name, entries, [_again(scratch, entry) for entry in entries])
    return found


def _again(scratch: Workspace, entry: Entry) -> Entry:
    """Return the entry of a kept run with the measurements, facts and machine of its new training."""
    rounds, facts = read_table(scratch.root / run_path(entry.run.id, "rounds.parquet"), "rounds/2")
    timing = read_timing(scratch.private / "timings" / f"{entry.run.id}.json")
    measurements = from_table(rounds, facts["positions"])
    return replace(entry, measurements=measurements, facts=facts, machine=timing.machine if timing else "")


def compare(cell: str, kept: Sequence[Entry], again: Sequence[Entry]) -> list[Comparison]:
    """Compare the kept runs of a cell with the same runs trained again.

    On the same kind of machine all counts have to agree. On another one sums round differently, and training amplifies
    this until a run differs as with another seed. There the cell agrees if its mean accuracy over the last measurements
    differs by at most three standard deviations, over its seeds or over a run's measurements, whichever is larger, and
    by at most three standard errors of the clients' paired differences. Half a point is always accepted.
    """
    before, now = (list(map(_last, runs)) for runs in (kept, again))
    difference = abs(float(np.mean([b.mean - a.mean for a, b in zip(before, now, strict=True)])))
    seeds = float(np.std([one.mean for one in before])) if len(before) >= FEWEST_SEEDS else 0.0
    spread = max(seeds, float(np.mean([one.deviation for one in before])))
    allowed = max(_LEAST, _DEVIATIONS * min(spread, _standard_error(before, now)))
    found = []
    for old, new, first, second in zip(kept, again, before, now, strict=True):
        verdict, good = _verdict(old, new)
        if not verdict and (good := difference <= allowed):
            where = old.machine or f"{old.facts['device']}, torch {old.facts['torch']}"
            verdict = f"the cell agrees, on another kind of machine (kept: {where})"
        verdict = verdict or f"the cell DIFFERS by {difference:.2f} points, more than {allowed:.2f}"
        found.append(Comparison(cell, old.run.id, first.mean, second.mean, verdict, good))
    return found


def _verdict(kept: Entry, again: Entry) -> tuple[str, bool]:
    """Return the verdict on one run and whether it agrees; the verdict is "" if its cell decides."""
    same = {name for name, value in kept.facts.items() if value == again.facts.get(name)}
    if other := [data for data in ("dataset", "partition") if f"{data}_hash" not in same]:
        return f"made on other data ({other[0]})", False
    if _counts(kept.measurements) == _counts(again.measurements):
        return "the same, every count", True
    if kept.machine == again.machine and {"device", "torch"} <= same:
        return "DIFFERS, on the same kind of machine", False
    return "", False


def _counts(measurements: dict[str, Any]) -> dict[str, Any]:
    """Return the counts among measurements, without losses and metrics."""
    other = ("loss", TRAIN_LOSS, *METRICS)
    parts = {name: measurements[name] for name in ("test", "validation", "views") if name in measurements}
    return {name: {key: own[key] for key in own if key not in other} for name, own in parts.items()}


class _Last(NamedTuple):
    """The last measurements of a run, with accuracies in percent."""

    mean: float  # pooled over clients, averaged over measurements
    deviation: float  # standard deviation of the pooled accuracy over measurements
    clients: NDArray[np.float64]  # per client [clients], averaged over measurements
    total: NDArray[np.float64]  # samples per client [clients]


def _last(entry: Entry) -> _Last:
    """Return the measurements in the window of the run's evaluation, but at least the last ten."""
    if not entry.measurements:
        return _Last(float("nan"), 0.0, np.zeros(0), np.zeros(0))
    test = entry.measurements["test"]
    window = sum(entry.run.evaluation.in_window(one, test["round"][-1]) for one in test["round"])
    correct, total = np.array(test["correct"][-max(window, _FEWEST) :], float), np.array(test["total"], float)
    pooled = 100.0 * correct.sum(axis=1) / total.sum()
    return _Last(float(pooled.mean()), float(pooled.std()), 100.0 * correct.mean(axis=0) / np.maximum(total, 1), total)


def _standard_error(kept: Sequence[_Last], again: Sequence[_Last]) -> float:
    """Return the standard error of the difference over the clients of all runs; infinite if it cannot be computed."""
    total = np.concatenate([one.total for one in kept])
    if len(total) < 2 or any(len(a.total) != len(b.total) for a, b in zip(kept, again, strict=True)):
        return float("inf")
    differences = np.concatenate([b.clients - a.clients for a, b in zip(kept, again, strict=True)])
    weights = total / total.sum()
    return float(np.sqrt((weights**2 * (differences - weights @ differences) ** 2).sum()))
