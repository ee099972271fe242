"""Published accuracies, each with what was obtained for it."""

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
    """A published accuracy and what was obtained for it, in percent and percentage points.

    Attributes:
        labels: Of the cell, in the order in which ``--cell`` takes them.
        last: What was obtained after the last round, where `obtained` is the mean over the last measurements; else "".
        comparison: The difference with its sign, and the verdict where there is one: ``+1.53 beyond noise (0.90)``.
        runs: How many there are, of how many that are planned.
        quoted: The paper has the value from an earlier one.
        elsewhere: The number under other protocols, by their names.
        explained: Why they differ; "" where nobody knows, or where they do not.
        reached: The mean over runs of the first round at the published number or above; None where one never is.
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
    """Return the cells of a table that have both values, in its order; quantities other than accuracy are left out."""
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
    """Return the mean over runs under protocols that the table does not show, of a client or, for None, of all."""
    shown = {metric, "last_position", *(["final"] if metric == LAST_TEN else [])}
    if not any(run.resolved.evaluation.window for run in runs):
        shown.add("last_rounds")  # which is the last round
    found = []
    for run in runs:
        curve = run.curve(client)
        more = {"best_by_test": float(curve.max()), LAST_TEN: float(curve.iloc[-LAST:].mean())}
        found.append({name: value.mean for name, value in run.values_of(client).items()} | more)
    names = [name for name in PROTOCOL_NAMES if name not in shown and all(name in own for own in found)]
    return {PROTOCOL_NAMES[name]: round(statistics.fmean(own[name] for own in found), 6) for name in names}
