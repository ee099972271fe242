"""A table with its results: cells in rows and columns, ranks, headers, and tidy rows for files."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from pflcore.errors import UserError
from pipeline.report.cells import ACCURACY, PRECISION, Cell, Key, collect_cells, tied_with
from pipeline.report.frame import LAST_TEN, Frame, Measured
from pipeline.report.printed import headed, short, titled
from pipeline.report.statistics import significant
from pipeline.spec.table import ResolvedTable, TableCell

_COLUMNS = {
    **dict.fromkeys(("published_mean", "published_std"), pa.float64()),
    "quoted": pa.bool_(),
    "obtained_mean": pa.float64(),
    "obtained_std": pa.float64(),
    "n": pa.int64(),
    "difference": pa.float64(),
    **dict.fromkeys(("best_published", "best_obtained", "tied"), pa.bool_()),
    **dict.fromkeys(("verdict", "runs", "kept_since"), pa.string()),
    "by_seed": pa.list_(pa.struct([("seed", pa.int64()), ("value", pa.float64())])),
}
_LAST = "last_round"
"""A further column of tables that show the mean over the last measurements: the value after the last round."""


class Span(NamedTuple):
    """A header over `width` neighbouring columns that starts at column `start` (from 0)."""

    text: str
    start: int
    width: int


class RankColumns(NamedTuple):
    """The rank columns of one entry of ``table.derived``: their `name` in files and their heading `title`; `groups` has
    the heading of each rank column and the columns of the table that it is the mean over; `values` maps a row and the
    index of a group to a mean rank. A row without a rank in one of the columns is left out."""

    name: str
    title: str
    groups: list[tuple[str, list[Key]]]
    values: dict[tuple[Key, int], float]


@dataclass(frozen=True)
class Results:
    """A resolved table with its results; the cells are row by row. Rows and columns are tuples of labels in the table's
    order, ``[()]`` for a side without axes; those without a cell are left out."""

    table: ResolvedTable
    frame: Frame
    cells: list[Cell]

    @classmethod
    def of(cls, table: ResolvedTable, frame: Frame) -> Results:
        """Return the results of a table from the frame of its runs."""
        return cls(table, frame, collect_cells(table, frame))

    @property
    def runs(self) -> dict[str, Measured]:
        """The runs by id, sorted."""
        return self.frame.measured

    @cached_property
    def rows(self) -> list[Key]:
        return self._ordered(self.table.rows)

    @cached_property
    def columns(self) -> list[Key]:
        return self._ordered(self.table.columns)

    def _ordered(self, axes: list[str]) -> list[Key]:
        labels = [self.table.labels[axis] for axis in axes]
        keys = {cell.key(axes) for cell in self.cells}
        return sorted(keys, key=lambda key: [own.index(label) for own, label in zip(labels, key, strict=True)])

    @cached_property
    def _places(self) -> dict[tuple[Key, Key], Cell]:
        return {(cell.key(self.table.rows), cell.key(self.table.columns)): cell for cell in self.cells}

    def cell(self, row: Key, column: Key) -> Cell | None:
        """Return the cell at a row and a column; None if there is none."""
        return self._places.get((row, column))

    @property
    def figure(self) -> str:
        """The metric as it heads a column or stands at an axis; ``value`` for several metrics."""
        shown = {cell.figure for cell in self.cells if cell.runs} or {ACCURACY}
        if PRECISION in shown:
            return PRECISION
        return shown.pop() if len(shown) == 1 else "value"

    @cached_property
    def of_runs(self) -> Results:
        """The results for statements about whole runs, without the cells of single clients. If no other cell has runs,
        or if axes choose quantities, the axes of clients and of quantities are removed, and cells that then have the
        same labels become one."""
        table, dropped = self.table, {*self.table.clients, *self.table.quantities}
        whole = [cell for cell in self.cells if cell.client is None]
        if not table.quantities and (not dropped or any(cell.runs for cell in whole)):
            return replace(self, cells=whole)
        rows, columns = ([axis for axis in axes if axis not in dropped] for axes in (table.rows, table.columns))
        merged = dict[Key, Cell]()
        for cell in self.cells:
            labels = {axis: label for axis, label in cell.labels.items() if axis not in dropped}
            key = tuple(labels.values())
            runs = (*merged[key].runs, *cell.runs) if key in merged else cell.runs
            merged[key] = replace(cell, labels=labels, runs=tuple(dict.fromkeys(runs)), client=None)
        return Results(table.model_copy(update={"rows": rows, "columns": columns}), self.frame, list(merged.values()))

    def column_title(self, column: Key) -> str:
        """Return the whole header of one column in one line."""
        return titled(self.table.columns, column)

    def whereabouts(self, cells: Iterable[Cell]) -> str:
        """Return a text that names cells: their rows, and their columns if not all cells of a row are meant."""
        chosen, by_columns = [id(cell) for cell in cells], defaultdict[str, list[str]](list)
        for row in self.rows:
            own = [(column, cell) for column in self.columns if (cell := self.cell(row, column))]
            some = [self.column_title(column) for column, cell in own if id(cell) in chosen]
            if some:
                by_columns["" if len(some) == len(own) else ", ".join(some)].append(titled(self.table.rows, row))
        return "; ".join(" · ".join(filter(None, (", ".join(rows), at))) for at, rows in by_columns.items())

    def under(self, protocol: str) -> Results:
        """Return the results of the same runs under another protocol, which may be one that no spec can name. Views of
        cells stay as they are."""
        cells, other = list[TableCell](), {"metric": protocol}
        for cell in self.table.cells:
            quantity = cell.quantity and cell.quantity.model_copy(update=other)
            cells.append(cell.model_copy(update={"quantity": quantity}))
        return Results.of(self.table.model_copy(update={**other, "cells": cells}), self.frame)

    @property
    def selections(self) -> dict[str, str]:
        """The contents of the selections, as select stages wrote them, by id."""
        return dict(zip(self.frame.selections["selection"], self.frame.selections["content"], strict=True))

    def ranks(self, column: Key) -> dict[Key, float]:
        """Return the ranks of a column's complete rows; 1 is the best. Rows share the mean of their ranks with the best
        one, down to the first row that neither ties with it nor is equal to it as printed. That row starts the next
        group."""
        cells = {row: cell for row in self.rows if (cell := self.cell(row, column)) and cell.complete}
        sign = 1.0 if any(self.table.lower(cell.quantity) for cell in cells.values()) else -1.0
        scores = {row: sign * cell.obtained.mean for row, cell in cells.items() if cell.obtained}
        order, ranks = sorted(scores, key=scores.__getitem__), dict[Key, float]()
        while left := order[len(ranks) :]:
            first, *others = left
            tied = tied_with(cells[first], [cells[row] for row in others], [cells[row] for row in ranks])
            printed = [round(scores[row], self.table.decimals) for row in left]
            same = [bool(one) or own == printed[0] for one, own in zip(tied, printed[1:], strict=True)]
            size = [True, *same, False].index(False)
            ranks |= dict.fromkeys(left[:size], len(ranks) + (size + 1) / 2)
        return {row: ranks[row] for row in scores}

    def significant_pairs(self, column: Key) -> tuple[int, int]:
        """Return how many pairs of a column's complete rows differ significantly, and how many pairs there are."""
        cells = [cell for row in self.rows if (cell := self.cell(row, column)) and cell.complete]
        values = [cell.by_seed for cell in cells if cell.obtained]
        found = significant(list(itertools.combinations(values, 2)))
        return found.count(True), len(found)

    @cached_property
    def derived(self) -> list[RankColumns]:
        """The columns of ranks of the table, in the order of its spec."""
        ranks = {column: self.ranks(column) for column in self.columns} if self.table.derived else {}
        found = []
        for over in self.table.derived:
            grouped = defaultdict[str, list[Key]](list)
            for column in self.columns:
                labels = zip(self.table.columns, column, strict=True)
                grouped[" · ".join(headed(axis, label) for axis, label in labels if axis not in over)].append(column)
            values = {
                (row, at): statistics.fmean(ranks[column][row] for column in group)
                for row in self.rows
                for at, group in enumerate(grouped.values())
                if all(row in ranks[column] for column in group)
            }
            title = f"mean rank over {', '.join(map(short, over))}" if len(grouped) > 1 else "mean rank"
            name = f"rank_over_{'_'.join(over)}" if over else "rank"
            found.append(RankColumns(name, title if over else "rank", list(grouped.items()), values))
        return found

    @property
    def headers(self) -> list[list[Span]]:
        """The levels of headers over cells and ranks, outer to inner; the last level has a span for every column."""
        heads: list[Key] = [tuple(map(headed, self.table.columns, column)) for column in self.columns]
        if not self.table.columns:
            quantity = self.table.cells[0].quantity if self.table.cells else None
            heads = [(quantity.heading if quantity and quantity.definition else self.figure,)]
        for one in self.derived:
            heads += [(one.title, inner) if len(one.groups) > 1 else (one.title,) for inner, _ in one.groups]
        depth, levels = max(map(len, heads)), []
        heads = [("",) * (depth - len(head)) + head for head in heads]
        for level in range(1, depth + 1):
            row, start = list[Span](), 0
            for outer, group in itertools.groupby(heads, key=lambda head: head[:level]):
                row.append(Span(outer[-1], start, len(list(group))))
                start += row[-1].width
            levels.append(row)
        return levels

    def to_arrow(self) -> pa.Table:
        """Return one row per cell as the columns of a ``table/2`` artifact. ``runs`` has run ids joined by spaces,
        ``kept_since`` the last day on which a kept run of the cell was obtained. Unknown values are null. Raises
        :class:`UserError` if an axis has the name of another column."""
        last = self.table.metric == LAST_TEN or any(cell.last for cell in self.cells)
        more = {_LAST: pa.float64()} if last else {}
        more |= {one.name: pa.float64() for one in self.derived}
        if taken := [axis for axis in self.table.axes if axis in ("spec", _LAST, *_COLUMNS, *more)]:
            message = f"an axis cannot be named {taken[0]!r}, which is a column of every report"
            raise UserError(f"{self.table.spec}: {message}")
        labels = dict.fromkeys(("spec", *self.table.axes), pa.string())
        return pa.Table.from_pylist(list(map(self._row, self.cells)), schema=pa.schema({**labels, **_COLUMNS, **more}))

    def _row(self, cell: Cell) -> dict[str, object]:
        row, column = cell.key(self.table.rows), cell.key(self.table.columns)
        ranks = {
            one.name: one.values.get((row, at))
            for one in self.derived
            for at, (_, group) in enumerate(one.groups)
            if column in group
        }
        values = {"published": cell.published, "obtained": cell.obtained}
        return {
            "spec": self.table.spec,
            **cell.labels,
            **{name: getattr(cell, name) for name in _COLUMNS if hasattr(cell, name)},
            **{f"{side}_mean": value and value.mean for side, value in values.items()},
            **{f"{side}_std": value and value.std for side, value in values.items()},
            "runs": " ".join(cell.runs),
            "kept_since": max((self.runs[run].kept for run in cell.runs), default="") or None,
            _LAST: cell.last and cell.last.mean,
            "by_seed": [{"seed": seed, "value": value} for seed, value in cell.by_seed.items()],
            **ranks,
        }
