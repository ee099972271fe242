"""``pfl verify``: repeat the training of some cells of a kept table in a separate folder, and compare the results."""

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
from pipeline.report.statistics import MIN_SEEDS
from pipeline.running.options import RunOptions, cell_name, match_cells
from pipeline.running.runner import run_specs
from pipeline.timing import read_timing
from pipeline.workspace import Workspace, run_path

_DEVIATIONS = 3.0  # largest accepted difference, in standard deviations of a run and in standard errors over clients
_TOLERANCE = 0.5  # points; a smaller difference is always accepted on another machine
_MIN_MEASUREMENTS = 10  # to average


@dataclass(frozen=True)
class Comparison:
    """A kept run and the same run trained again, with pooled accuracies in percent, averaged over the last rounds."""

    cell: str
    run: str
    kept: float
    repeated: float
    verdict: str
    agrees: bool


def verify(workspace: Workspace, spec: str, count: int, names: list[str]) -> list[Comparison]:
    """Repeat the kept runs of the cells of these names (:func:`match_cells`), or of `count` random cells, in
    ``build/verify``. Raises :class:`UserError` if no cell is kept, no kept cell has such a name, or a run failed."""
    compilation, ledger = compile_workspace(workspace, [spec], [spec]), Ledger(workspace.root)
    kept = dict[str, list[str]]()
    for cell in compilation.table(spec).cells:
        if runs := [run for run in cell.runs if run in compilation.kept]:
            kept[cell_name(cell.labels)] = runs
    if not kept:
        raise UserError(f"{spec}: none of its cells is kept and current; see `pfl ledger list`")
    drawn = random.SystemRandom().sample(sorted(kept), min(count, len(kept)))
    selected = match_cells(names, list(kept), "kept cell") if names else drawn
    chosen = {name: runs for name, runs in kept.items() if name in selected}
    scratch = Workspace(workspace.home / "build" / "verify", workspace.home, workspace.profile)
    for folder in ("artifacts", "stages", "reports", ".dvc", ".pfl/states"):  # but not checkpoints: runs may resume
        shutil.rmtree(scratch.root / folder, ignore_errors=True)
    by_seeds: dict[tuple[int, ...], list[str]] = {}  # cells with the same kept seeds are trained together
    for name, runs in chosen.items():
        by_seeds.setdefault(tuple(compilation.runs[run].seed for run in runs), []).append(name)
    for seeds, names in by_seeds.items():
        if run_specs(scratch, RunOptions((spec,), cells=tuple(names), seeds=seeds)):
            raise UserError(f"{spec}: a run failed; see above")
    comparisons = []
    for name, runs in chosen.items():
        entries = [entry for entry in map(ledger.get, runs) if entry]
        comparisons += compare(name, entries, [_repeated(scratch, entry) for entry in entries])
    return comparisons


def _repeated(scratch: Workspace, entry: Entry) -> Entry:
    """Return the entry of a kept run with the measurements, facts and machine of its repetition."""
    rounds, facts = read_table(scratch.root / run_path(entry.run.id, "rounds.parquet"), "rounds/2")
    timing = read_timing(scratch.private / "timings" / f"{entry.run.id}.json")
    measurements = from_table(rounds, facts["positions"])
    return replace(entry, measurements=measurements, facts=facts, machine=timing.machine if timing else "")


def compare(cell: str, entries: Sequence[Entry], repeated: Sequence[Entry]) -> list[Comparison]:
    """Compare the kept runs of a cell with the same runs trained again.

    On the same kind of machine all counts have to agree. On another one rounding makes a run differ as with another
    seed. There the cell agrees if its mean accuracy over the last measurements differs by at most three standard
    deviations, over its seeds or over a run's measurements, whichever is larger, and by at most three standard errors
    of the clients' paired differences. Half a point is always accepted.
    """
    pairs = [(_last(old), _last(new)) for old, new in zip(entries, repeated, strict=True)]
    difference = abs(float(np.mean([new.mean - old.mean for old, new in pairs])))
    seeds = float(np.std([old.mean for old, _ in pairs])) if len(pairs) >= MIN_SEEDS else 0.0
    spread = max(seeds, float(np.mean([old.deviation for old, _ in pairs])))
    allowed = max(_TOLERANCE, _DEVIATIONS * min(spread, _standard_error(pairs)))
    comparisons = []
    for entry, new_entry, (old, new) in zip(entries, repeated, pairs, strict=True):
        verdict, agrees = _verdict(entry, new_entry)
        if not verdict and (agrees := difference <= allowed):
            machine = entry.machine or f"{entry.facts['device']}, torch {entry.facts['torch']}"
            verdict = f"the cell agrees, on another kind of machine (kept: {machine})"
        verdict = verdict or f"the cell DIFFERS by {difference:.2f} points, more than {allowed:.2f}"
        comparisons.append(Comparison(cell, entry.run.id, old.mean, new.mean, verdict, agrees))
    return comparisons


def _verdict(entry: Entry, repeated: Entry) -> tuple[str, bool]:
    """Return the verdict on a run and whether it agrees; the verdict is "" if the cell decides."""
    equal = {name for name, value in entry.facts.items() if value == repeated.facts.get(name)}
    for data in ("dataset", "partition"):
        if f"{data}_hash" not in equal:
            return f"made on other data ({data})", False
    if _counts(entry.measurements) == _counts(repeated.measurements):
        return "the same, every count", True
    if entry.machine == repeated.machine and {"device", "torch"} <= equal:
        return "DIFFERS, on the same kind of machine", False
    return "", False


def _counts(measurements: dict[str, Any]) -> dict[str, Any]:
    """Return the counts among measurements, without losses and metrics."""
    others = ("loss", TRAIN_LOSS, *METRICS)
    parts = {name: measurements[name] for name in ("test", "validation", "views") if name in measurements}
    return {name: {key: part[key] for key in part if key not in others} for name, part in parts.items()}


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
    window = sum(entry.run.evaluation.in_window(round_, test["round"][-1]) for round_ in test["round"])
    correct, total = np.array(test["correct"][-max(window, _MIN_MEASUREMENTS) :], float), np.array(test["total"], float)
    pooled = 100.0 * correct.sum(axis=1) / total.sum()
    return _Last(float(pooled.mean()), float(pooled.std()), 100.0 * correct.mean(axis=0) / np.maximum(total, 1), total)


def _standard_error(pairs: Sequence[tuple[_Last, _Last]]) -> float:
    """Return the standard error of the difference over the clients of all runs; infinite if it cannot be computed."""
    total = np.concatenate([old.total for old, _ in pairs])
    if len(total) < 2 or any(len(old.total) != len(new.total) for old, new in pairs):
        return float("inf")
    differences = np.concatenate([new.clients - old.clients for old, new in pairs])
    weights = total / total.sum()
    return float(np.sqrt((weights**2 * (differences - weights @ differences) ** 2).sum()))
