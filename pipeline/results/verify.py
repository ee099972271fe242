"""``pfl verify``: some cells of a kept table are trained again, apart from everything else, and compared."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Entry, Ledger
from pipeline.running.cells import cell_name, cells_meant
from pipeline.running.request import Wish
from pipeline.running.runner import run_specs
from pipeline.workspace import Workspace, run_path

_COUNTS = ("round", "client", "correct", "total", "last_correct")
_ERRORS = 3.0  # standard errors by which another machine's accuracy may differ
_LEAST = 0.5  # points that are never too much on another machine


@dataclass(frozen=True)
class Comparison:
    """A kept run and the same run trained again.

    Attributes:
        cell: In words.
        kept, again: Pooled accuracy in percent after the last round.
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
        for run in runs:
            entry = ledger.find(compilation.runs[run], compilation.made_by[run])
            if entry is None:
                raise UserError(f"{run}: dropped from the ledger meanwhile")
            again, facts = read_table(apart.root / run_path(run, "rounds.parquet"), "rounds/2")
            comparisons.append(compare(name, entry, again, facts))
    return comparisons


def compare(cell: str, entry: Entry, again: pa.Table, facts: dict[str, object]) -> Comparison:
    """A kept run with the ``rounds/2`` table of the same run trained again, and the facts in its header.

    On the same kind of device, with the same PyTorch, all counts have to agree. Elsewhere sums round differently, and
    training carries that on: there the accuracies after the last round may differ by three standard errors of the
    clients' paired differences, but by half a point at any rate.
    """
    kept = entry.rounds()
    same = all(kept[name].equals(again[name].cast(kept[name].type)) for name in _COUNTS)
    alike = all(entry.facts[name] == facts.get(name) for name in ("device", "torch"))
    before, now, error = _last(kept, again)
    allowed = 0.0 if alike else max(_LEAST, _ERRORS * error)
    differs = abs(now - before)
    data = [name for name in ("dataset_hash", "partition_hash") if entry.facts[name] != facts.get(name)]
    if data:
        verdict, good = f"made on other data ({data[0].partition('_')[0]})", False
    elif same:
        verdict, good = "the same, every count", True
    elif alike:
        verdict, good = "DIFFERS, on the same kind of machine", False
    elif differs <= allowed:
        verdict, good = f"within tolerance, on {facts.get('device')} instead of {entry.facts['device']}", True
    else:
        verdict, good = f"DIFFERS by more than {allowed:.2f} points", False
    return Comparison(cell, entry.run.id, before, now, allowed, verdict, good)


def _last(kept: pa.Table, again: pa.Table) -> tuple[float, float, float]:
    """Pooled accuracies in percent after the last round, and the standard error of their difference over clients."""
    correct, total = [], []
    for table in (kept, again):
        table = table.filter(pc.not_equal(table["population"].cast(pa.string()), "validation"))
        last = table["round"].to_numpy() == table["round"].to_numpy().max(initial=0)
        correct.append(table["correct"].to_numpy()[last])
        total.append(table["total"].to_numpy()[last])
    accuracies = [100.0 * c.sum() / t.sum() if len(t) else float("nan") for c, t in zip(correct, total, strict=True)]
    if len(total[0]) != len(total[1]) or len(total[0]) < 2:
        return accuracies[0], accuracies[1], 0.0
    weights = total[0] / total[0].sum()
    differences = 100.0 * (correct[1] - correct[0]) / np.maximum(total[0], 1)
    spread = differences - accuracies[1] + accuracies[0]
    return accuracies[0], accuracies[1], float(np.sqrt((weights**2 * spread**2).sum()))
