"""A table with what its runs left behind: what every part of a report is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from pflcore.errors import UserError
from pipeline.report.table.cells import Cell, collect_cells
from pipeline.report.table.findings import Findings, read_findings
from pipeline.report.table.layout import Key, Layout
from pipeline.report.table.measured import Measured, measure
from pipeline.report.table.quantities import with_quantities
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable

_COLUMNS = pa.schema(
    [
        ("published_mean", pa.float64()),
        ("published_std", pa.float64()),
        ("quoted", pa.bool_()),
        ("obtained_mean", pa.float64()),
        ("obtained_std", pa.float64()),
        ("n", pa.int64()),
        ("difference", pa.float64()),
        ("best_published", pa.bool_()),
        ("best_obtained", pa.bool_()),
        ("tied", pa.bool_()),
        ("verdict", pa.string()),
        ("runs", pa.string()),
        ("kept_since", pa.string()),
        ("by_seed", pa.list_(pa.struct([("seed", pa.int64()), ("value", pa.float64())]))),
    ]
)
_LAST = pa.field("last_round", pa.float64())
"""Of a table that shows the mean over the last measurements."""


@dataclass(frozen=True)
class Results:
    """A resolved table filled in.

    Attributes:
        root: The workspace, under which ``artifacts/`` lies.
        runs: By id, sorted.
        cells: In the table's order.
    """

    table: ResolvedTable
    root: Path
    runs: dict[str, Measured]
    cells: list[Cell]
    layout: Layout

    @classmethod
    def read(cls, table: ResolvedTable, runs: Mapping[str, Run], root: Path) -> Results:
        """What there is of a table, given at least its runs by id.

        Raises:
            UserError: An artifact is damaged.
        """
        measured = with_quantities(table, measure(table, runs, root), root)
        cells = collect_cells(table, measured)
        return cls(table, root, measured, cells, Layout(table, cells))

    @cached_property
    def of_runs(self) -> Results:
        """The same, laid out for what is told of a run once: see :meth:`Layout.of_runs`."""
        return replace(self, layout=self.layout.of_runs())

    def under(self, protocol: str) -> Results:
        """The same runs with another protocol as the metric of the table; it may be one that no spec can name."""
        table = self.table.model_copy(update={"metric": protocol})
        cells = collect_cells(table, self.runs)
        return replace(self, table=table, cells=cells, layout=Layout(table, cells))

    def measured(self, row: Key, column: Key) -> list[Measured]:
        """The runs of a cell that were measured; none when one of them diverged, as those left would flatter it."""
        cell = self.layout.cell(row, column)
        runs = [self.runs[run] for run in cell.runs] if cell else []
        return [] if any(run.diverged for run in runs) else [run for run in runs if run.facts and run.values]

    def found(self, analysis: str) -> Iterator[tuple[Key, Key, list[Findings]]]:
        """Row, column and what an analysis found in the cell's measured runs, for the cells of which any made it.

        Raises:
            UserError: An artifact of a run's analyses is damaged.
        """
        findings = self._findings.get(analysis, {})
        for row, column in self.layout.places:
            of_cell = [findings[run.id] for run in self.measured(row, column) if run.id in findings]
            if of_cell:
                yield row, column, of_cell

    @cached_property
    def _findings(self) -> dict[str, dict[str, Findings]]:
        return read_findings(self.runs.values())

    def to_arrow(self) -> pa.Table:
        """Tidy rows, one per cell, as the columns of a ``table/2`` artifact: spec, a column per axis, values, verdict,
        run ids joined by spaces, the last day on which a kept run of the cell was obtained, and the value of each seed;
        what is unknown is null.

        Raises:
            UserError: An axis has the name of one of the other columns.
        """
        for axis in self.table.axes:
            if axis in ("spec", _LAST.name, *_COLUMNS.names):
                raise UserError(
                    f"{self.table.spec}: an axis cannot be named {axis!r}, which is a column of every report"
                )
        labels = [pa.field(name, pa.string()) for name in ("spec", *self.table.axes)]
        beside = [_LAST] if self.table.metric == "last_ten" else []
        return pa.Table.from_pylist(
            [self._row(cell) for cell in self.cells], schema=pa.schema([*labels, *_COLUMNS, *beside])
        )

    def _row(self, cell: Cell) -> dict[str, object]:
        return {
            "spec": self.table.spec,
            **cell.labels,
            "published_mean": cell.published and cell.published.mean,
            "published_std": cell.published and cell.published.std,
            "quoted": cell.quoted,
            "obtained_mean": cell.obtained and cell.obtained.mean,
            "obtained_std": cell.obtained and cell.obtained.std,
            "n": cell.n,
            "difference": cell.difference,
            "best_published": cell.best_published,
            "best_obtained": cell.best_obtained,
            "tied": cell.tied,
            "verdict": cell.verdict,
            "runs": " ".join(cell.runs),
            "kept_since": max((self.runs[run].kept for run in cell.runs), default="") or None,
            _LAST.name: cell.last and cell.last.mean,
            "by_seed": [{"seed": seed, "value": value} for seed, value in cell.by_seed.items()],
        }
