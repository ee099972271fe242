"""Published numbers with what was obtained for them, and how far they are apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pflcore.artifacts import read_table
from pflcore.protocols import curve
from pipeline.report.claims.agreement import compared_cells
from pipeline.report.figures.protocols import NAMES
from pipeline.report.statistics.noise import NO_VERDICT
from pipeline.report.table.cells import Cell
from pipeline.report.table.measured import LAST, Measured
from pipeline.report.table.printed import format_value, signed
from pipeline.report.table.results import Results
from pipeline.spec.table import ResolvedTable


@dataclass(frozen=True)
class Obtained:
    """A published accuracy and what was obtained for it, in percent and percentage points.

    Attributes:
        spec: Where the cell is.
        labels: Of the cell, in the order in which ``--cell`` takes them.
        last: What was obtained after the last round, where `obtained` is the mean over the last measurements; else "".
        verdict, noise: See :class:`~pipeline.report.table.cells.Cell`.
        runs: How many there are, of how many that are planned.
        quoted: The paper has the value from an earlier one.
        elsewhere: The number under other protocols, by their names; ``last ten`` is that of the last measurements.
        explained: Why they differ; "" where nobody knows, or where they do not.
        ids: Of the runs that the number is made of.
        reached: The first measured round in which a run is at the published number or above, the mean over runs; None
            where one of them never is.
    """

    spec: str
    labels: tuple[str, ...]
    published: str
    obtained: str
    last: str
    difference: float
    verdict: str
    noise: float | None
    runs: tuple[int, int]
    quoted: bool
    elsewhere: Mapping[str, float]
    explained: str
    ids: tuple[str, ...]
    reached: int | None = None

    @property
    def compared(self) -> str:
        """The difference with its sign, and the verdict where there is one: ``+1.53 beyond noise (0.90)``."""
        verdict = "" if self.verdict == NO_VERDICT else f" {self.verdict} ({self.noise:.2f})"
        return signed(self.difference, 2) + verdict

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Obtained:
        """From its attributes as JSON has them."""
        done, planned = data["runs"]
        lists = {name: tuple(data[name]) for name in ("labels", "ids")}
        return cls(**{**data, **lists, "runs": (int(done), int(planned))})


def collect_obtained(results: Results) -> list[Obtained]:
    """The cells of a table that have both values, in its order; quantities other than accuracy are left out.

    Raises:
        UserError: An artifact is damaged.
    """
    return [_obtained(cell, results) for cell in compared_cells(results)]


def count_published(table: ResolvedTable) -> int:
    """How many accuracies are published of a table, whether a run is planned for them or not."""
    return sum(
        cell.published is not None and cell.published.mean is not None and cell.quantity is None for cell in table.cells
    )


def _obtained(cell: Cell, results: Results) -> Obtained:
    assert cell.obtained and cell.published and cell.difference is not None
    runs = [run for run in (results.runs[name] for name in cell.runs) if run.values_of(cell.client)]
    decimals = results.table.decimals
    curves = [accuracies(run, cell.client) for run in runs]
    elsewhere = _elsewhere(runs, [list(curve.values()) for curve in curves], cell.client, results.table.metric)
    return Obtained(
        spec=results.table.spec,
        labels=tuple(cell.labels.values()),
        published=format_value(cell.published, decimals),
        obtained=format_value(cell.obtained, decimals),
        last=format_value(cell.last, decimals) if cell.last else "",
        difference=round(cell.difference, 6),
        verdict=cell.verdict,
        noise=cell.noise,
        runs=(cell.n, len(cell.runs)),
        quoted=cell.quoted,
        elsewhere=elsewhere,
        explained=cell.explained,
        ids=tuple(run.id for run in runs),
        reached=_reached(curves, cell.published.mean),
    )


def _elsewhere(runs: list[Measured], curves: list[list[float]], client: int | None, metric: str) -> dict[str, float]:
    """The mean over runs under other protocols than those that the table shows.

    Args:
        curves: Of each run its accuracies in percent.
        client: The one whose test samples count; None for all clients.
    """
    found: dict[str, list[float]] = {}
    shown = {metric, "last_position"}
    if metric == "last_ten":
        shown.add("final")
    if not any(run.resolved.evaluation.window for run in runs):
        shown.add("last_rounds")  # which is the last round
    for run, accuracy in zip(runs, curves, strict=True):
        figures = {name: value.mean for name, value in run.values_of(client).items()}
        figures |= {"best_by_test": max(accuracy), "last_ten": statistics.fmean(accuracy[-LAST:])}
        for name in NAMES:
            if name in figures and name not in shown:
                found.setdefault(NAMES[name], []).append(figures[name])
    return {name: round(statistics.fmean(several), 6) for name, several in found.items() if len(several) == len(runs)}


def _reached(curves: list[dict[int, float]], published: float) -> int | None:
    firsts = [next((at for at, accuracy in curve.items() if accuracy >= published), None) for curve in curves]
    known = [first for first in firsts if first is not None]
    return round(statistics.fmean(known)) if known and len(known) == len(firsts) else None


def accuracies(run: Measured, client: int | None) -> dict[int, float]:
    """The accuracy of a run in percent by measured round: pooled, or of one client."""
    if client is not None:
        own = run.clients[client].curve
        return dict(zip(own.index.tolist(), own.tolist(), strict=True))
    rounds, accuracy, _ = curve(read_table(run.rounds_path, "rounds/2")[0])
    return dict(zip(rounds.tolist(), accuracy.tolist(), strict=True))
