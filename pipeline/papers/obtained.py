"""Published accuracies with the accuracies that were obtained for them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from pipeline.report.agreement import compared_cells
from pipeline.report.cells import Cell
from pipeline.report.frame import LAST, LAST_TEN, Measured
from pipeline.report.legend import PROTOCOL_NAMES
from pipeline.report.printed import print_cell
from pipeline.report.table import Results


@dataclass(frozen=True)
class Obtained:
    """A published accuracy and the obtained one, in percent; their difference is in percentage points.

    Attributes:
        labels: Labels of the cell, in the order in which ``--cell`` takes them.
        last: The accuracy after the last round, if `obtained` is the mean over the last measurements; else "".
        comparison: The difference with its sign, and the verdict if there is one: ``+1.53 beyond noise (0.90)``.
        runs: The number of runs with a value, and the number of planned runs.
        quoted: Whether the paper quotes the value from an earlier one.
        elsewhere: The accuracy under other protocols, by their names.
        explained: Why the two differ; "" if that is not known, or if they do not.
        reached: The first round at the published accuracy or above, the mean over runs; None if a run never reaches it.
    """

    labels: tuple[str, ...]
    published: str
    obtained: str
    last: str
    comparison: str
    runs: tuple[int, int]
    quoted: bool
    elsewhere: dict[str, float]
    explained: str
    ids: tuple[str, ...]
    reached: int | None = None


def collect_obtained(results: Results) -> list[Obtained]:
    """Return the published accuracies of a table that are also obtained, in its order; other cells are left out."""
    return [_obtained(cell, results) for cell in compared_cells(results)]


def _obtained(cell: Cell, results: Results) -> Obtained:
    assert cell.published
    runs = [run for run in map(results.runs.__getitem__, cell.runs) if run.values_of(cell.client)]
    curves = [run.curve(cell.client) for run in runs]
    reached = [int(curve.index[at][0]) for curve in curves if (at := curve >= cell.published.mean).any()]
    printed = print_cell(cell, results.table.decimals)
    return Obtained(
        labels=tuple(cell.labels.values()),
        published=printed.published,
        obtained=printed.obtained,
        last=printed.last,
        comparison=printed.comparison,
        runs=(cell.n, len(cell.runs)),
        quoted=cell.quoted,
        elsewhere=_elsewhere(runs, cell.client, results.table.metric),
        explained=cell.explained,
        ids=tuple(run.id for run in runs),
        reached=round(statistics.fmean(reached)) if reached and len(reached) == len(runs) else None,
    )


def _elsewhere(runs: list[Measured], client: int | None, metric: str) -> dict[str, float]:
    """Return the mean over runs under protocols that the table does not show, for a client or, for None, for all."""
    shown = {metric, "last_position", *(["final"] if metric == LAST_TEN else [])}
    if not any(run.resolved.evaluation.window for run in runs):
        shown.add("last_rounds")  # the window is then the last round
    found = []
    for run in runs:
        curve = run.curve(client)
        more = {"best_by_test": float(curve.max()), LAST_TEN: float(curve.iloc[-LAST:].mean())}
        found.append({name: value.mean for name, value in run.values_of(client).items()} | more)
    names = [name for name in PROTOCOL_NAMES if name not in shown and all(name in own for own in found)]
    return {PROTOCOL_NAMES[name]: round(statistics.fmean(own[name] for own in found), 6) for name in names}
