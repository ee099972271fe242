"""Published accuracies, each with what was obtained for it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from pipeline.report.agreement import compared_cells
from pipeline.report.cells import Cell
from pipeline.report.frame import LAST, LAST_TEN, Measured
from pipeline.report.legend import PROTOCOL_NAMES
from pipeline.report.printed import format_value, print_comparison
from pipeline.report.table import Results
from pipeline.spec.table import ResolvedTable


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
    difference: float
    comparison: str
    verdict: str
    noise: float | None
    runs: tuple[int, int]
    quoted: bool
    elsewhere: dict[str, float]
    explained: str
    ids: tuple[str, ...]
    reached: int | None = None


def collect_obtained(results: Results) -> list[Obtained]:
    """Return the cells of a table that have both values, in its order; quantities other than accuracy are left out."""
    return [_obtained(cell, results) for cell in compared_cells(results)]


def count_published(table: ResolvedTable) -> int:
    """Count the accuracies that are published of a table, whether a run is planned for them or not."""
    cells = (cell.published for cell in table.cells if table.of_accuracies and cell.quantity is None)
    return sum(published is not None and published.mean is not None for published in cells)


def _obtained(cell: Cell, results: Results) -> Obtained:
    assert cell.obtained and cell.published and cell.difference is not None
    runs = [run for run in map(results.runs.__getitem__, cell.runs) if run.values_of(cell.client)]
    curves = [run.curve(cell.client) for run in runs]
    reached = [int(curve.index[at][0]) for curve in curves if (at := curve >= cell.published.mean).any()]
    decimals, difference = results.table.decimals, round(cell.difference, 6)
    return Obtained(
        labels=tuple(cell.labels.values()),
        published=format_value(cell.published, decimals),
        obtained=format_value(cell.obtained, decimals),
        last=format_value(cell.last, decimals),
        difference=difference,
        comparison=print_comparison(cell, difference, decimals),
        verdict=cell.verdict,
        noise=cell.noise,
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
