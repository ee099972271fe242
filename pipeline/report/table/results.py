"""A table with what its runs left behind: what every part of a report is made from."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from pflcore.errors import UserError
from pipeline.report.frame import LAST_TEN, Frame
from pipeline.report.frame import Measured as Measured
from pipeline.report.table.cells import Cell, Key, collect_cells, rank_cells
from pipeline.report.table.layout import Layout, short
from pipeline.spec.table import ResolvedTable, TableRank

_COLUMNS = {
    **{"published_mean": pa.float64(), "published_std": pa.float64(), "quoted": pa.bool_()},
    **{"obtained_mean": pa.float64(), "obtained_std": pa.float64(), "n": pa.int64(), "difference": pa.float64()},
    **{"best_published": pa.bool_(), "best_obtained": pa.bool_(), "tied": pa.bool_()},
    **dict.fromkeys(("verdict", "runs", "kept_since"), pa.string()),
    "by_seed": pa.list_(pa.struct([("seed", pa.int64()), ("value", pa.float64())])),
}
_LAST = "last_round"
"""A column of tables that show the mean over the last measurements."""


@dataclass(frozen=True)
class RankColumns:
    """The columns of one entry of ``table.derived``: their name in files and what heads them, the axes of the columns
    that they are the mean over, for each the columns of the table that it is the mean over, and the values by row and
    place of the group; a row is left out that lacks a number in one of the columns."""

    name: str
    title: str
    over: list[str]
    groups: list[list[Key]]
    values: dict[tuple[Key, int], float]


@dataclass(frozen=True)
class Results:
    """A resolved table filled in, with its cells in the table's order."""

    table: ResolvedTable
    frame: Frame
    cells: list[Cell]
    layout: Layout

    @classmethod
    def of(cls, table: ResolvedTable, frame: Frame) -> Results:
        """Return the results of a table from the frame of its runs."""
        cells = collect_cells(table, frame)
        return cls(table, frame, cells, Layout(table, cells))

    @property
    def runs(self) -> dict[str, Measured]:
        """The runs by id, sorted."""
        return self.frame.measured

    @cached_property
    def of_runs(self) -> Results:
        """The same, laid out for what is said of a run once: see :meth:`Layout.of_runs`."""
        return replace(self, layout=self.layout.of_runs())

    def under(self, protocol: str) -> Results:
        """Return the same runs with another protocol as the metric; it may be one that no spec can name."""
        return Results.of(self.table.model_copy(update={"metric": protocol}), self.frame)

    def measured(self, row: Key, column: Key) -> list[Measured]:
        """Return the runs of a cell that were measured; none when one of them diverged: those left would flatter it."""
        cell = self.layout.cell(row, column)
        runs = [self.runs[run] for run in cell.runs] if cell else []
        return [] if any(run.diverged for run in runs) else [run for run in runs if run.made and run.values]

    @property
    def selections(self) -> dict[str, str]:
        """What select stages wrote, by id."""
        return dict(zip(self.frame.selections["selection"], self.frame.selections["content"], strict=True))

    def ranks(self, column: Key, *, by_seeds: bool = True) -> dict[Key, float]:
        """Return the ranks of the rows within a column: see :func:`rank_cells`."""
        cells = {row: cell for row in self.layout.rows if (cell := self.layout.cell(row, column))}
        return rank_cells(cells, self.table.decimals, lower=self.table.better == "lower", by_seeds=by_seeds)

    @cached_property
    def derived(self) -> list[RankColumns]:
        """The columns of ranks of the table, in the order of its spec."""
        ranks = {column: self.ranks(column) for column in self.layout.columns} if self.table.derived else {}
        return [self._derived(one, ranks) for one in self.table.derived]

    def _derived(self, derived: TableRank, ranks: dict[Key, dict[Key, float]]) -> RankColumns:
        over, grouped = derived.over, dict[Key, list[Key]]()
        for column in self.layout.columns:
            labels = zip(self.layout.column_axes, column, strict=True)
            grouped.setdefault(tuple(label for axis, label in labels if axis not in over), []).append(column)
        values = {
            (row, place): statistics.fmean(ranks[column][row] for column in group)
            for row in self.layout.rows
            for place, group in enumerate(grouped.values())
            if all(row in ranks[column] for column in group)
        }
        title = f"mean rank over {', '.join(map(short, over))}" if len(grouped) > 1 else "mean rank"
        name = f"rank_over_{'_'.join(over)}" if over else "rank"
        return RankColumns(name, title if over else "rank", over, list(grouped.values()), values)

    def to_arrow(self) -> pa.Table:
        """Return tidy rows, one per cell, as the columns of a ``table/2`` artifact.

        These are spec, a column per axis, values, verdict, run ids joined by spaces, the last day on which a kept run
        of the cell was obtained, the value of each seed, and columns of ranks; what is unknown is null.

        Raises:
            UserError: An axis has the name of one of the other columns.
        """
        ranks = {one.name: pa.float64() for one in self.derived}
        last = {_LAST: pa.float64()} if self.table.metric == LAST_TEN else {}
        for axis in self.table.axes:
            if axis in ("spec", _LAST, *_COLUMNS, *ranks):
                message = f"an axis cannot be named {axis!r}, which is a column of every report"
                raise UserError(f"{self.table.spec}: {message}")
        labels = dict.fromkeys(("spec", *self.table.axes), pa.string())
        schema = pa.schema({**labels, **_COLUMNS, **last, **ranks})
        return pa.Table.from_pylist([self._row(cell) for cell in self.cells], schema=schema)

    def _row(self, cell: Cell) -> dict[str, object]:
        row, column = cell.key(self.layout.row_axes), cell.key(self.layout.column_axes)
        places = [next(at for at, group in enumerate(one.groups) if column in group) for one in self.derived]
        same = ("quoted", "n", "difference", "best_published", "best_obtained", "tied", "verdict")
        return {
            **{"spec": self.table.spec, **cell.labels},
            **{name: getattr(cell, name) for name in same},
            "published_mean": cell.published and cell.published.mean,
            "published_std": cell.published and cell.published.std,
            "obtained_mean": cell.obtained and cell.obtained.mean,
            "obtained_std": cell.obtained and cell.obtained.std,
            "runs": " ".join(cell.runs),
            "kept_since": max((self.runs[run].kept for run in cell.runs), default="") or None,
            _LAST: cell.last and cell.last.mean,
            "by_seed": [{"seed": seed, "value": value} for seed, value in cell.by_seed.items()],
            **{one.name: one.values.get((row, at)) for one, at in zip(self.derived, places, strict=True)},
        }
