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
from pipeline.report.cells import ACCURACY, PRECISION, Cell, Key, collect_cells, ties_with
from pipeline.report.frame import LAST_TEN, Frame, RunResult
from pipeline.report.printed import axis_title, full_label, join_labels
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
_LAST_ROUND = "last_round"
"""A further column of tables that show the mean over the last measurements."""


class Span(NamedTuple):
    """A header over `width` neighbouring columns that starts at column `start` (from 0)."""

    text: str
    start: int
    width: int


class RankColumns(NamedTuple):
    """The rank columns of an entry of ``table.derived``, with their `name` in files and their heading `title`. `groups`
    has the heading of each rank column and the columns that it averages, `values` the mean rank by row and group."""

    name: str
    title: str
    groups: list[tuple[str, list[Key]]]
    values: dict[tuple[Key, int], float]


@dataclass(frozen=True)
class Results:
    """A resolved table with its results; the cells are row by row. `rows` and `columns` are tuples of labels in the
    table's order, ``[()]`` for a side without axes, without those that have no cell."""

    table: ResolvedTable
    frame: Frame
    cells: list[Cell]

    @classmethod
    def from_frame(cls, table: ResolvedTable, frame: Frame) -> Results:
        """Return the results of a table from the frame of its runs."""
        return cls(table, frame, collect_cells(table, frame))

    @property
    def runs(self) -> dict[str, RunResult]:
        """The runs by id, sorted."""
        return self.frame.run_results

    @cached_property
    def rows(self) -> list[Key]:
        return self._sorted_keys(self.table.rows)

    @cached_property
    def columns(self) -> list[Key]:
        return self._sorted_keys(self.table.columns)

    def _sorted_keys(self, axes: list[str]) -> list[Key]:
        labels = [self.table.labels[axis] for axis in axes]
        keys = {cell.key(axes) for cell in self.cells}
        return sorted(keys, key=lambda key: [axis.index(label) for axis, label in zip(labels, key, strict=True)])

    @cached_property
    def _cells_by_key(self) -> dict[tuple[Key, Key], Cell]:
        return {(cell.key(self.table.rows), cell.key(self.table.columns)): cell for cell in self.cells}

    def cell(self, row: Key, column: Key) -> Cell | None:
        """Return the cell at a row and a column; None if there is none."""
        return self._cells_by_key.get((row, column))

    @property
    def heading(self) -> str:
        """The metric as heading of a column or label of an axis; ``value`` for several metrics."""
        headings = {cell.heading for cell in self.cells if cell.runs} or {ACCURACY}
        if PRECISION in headings:
            return PRECISION
        return headings.pop() if len(headings) == 1 else "value"

    @cached_property
    def run_level(self) -> Results:
        """The results without the cells of single clients. If no other cell has runs, or if axes choose quantities, the
        axes of clients and of quantities are removed, and cells with equal labels are merged."""
        table, dropped = self.table, {*self.table.clients, *self.table.quantities}
        cells = [cell for cell in self.cells if cell.client is None]
        if not table.quantities and (not dropped or any(cell.runs for cell in cells)):
            return replace(self, cells=cells)
        rows, columns = ([axis for axis in axes if axis not in dropped] for axes in (table.rows, table.columns))
        merged = dict[Key, Cell]()
        for cell in self.cells:
            labels = {axis: label for axis, label in cell.labels.items() if axis not in dropped}
            key = tuple(labels.values())
            runs = (*merged[key].runs, *cell.runs) if key in merged else cell.runs
            merged[key] = replace(cell, labels=labels, runs=tuple(dict.fromkeys(runs)), client=None)
        return Results(table.model_copy(update={"rows": rows, "columns": columns}), self.frame, list(merged.values()))

    def column_title(self, column: Key) -> str:
        """Return the header of a column in one line."""
        return join_labels(self.table.columns, column)

    def describe_cells(self, cells: Iterable[Cell]) -> str:
        """Return a text that names cells: their rows, and their columns unless all cells of a row are meant."""
        ids, by_columns = {id(cell) for cell in cells}, defaultdict[str, list[str]](list)
        for row in self.rows:
            row_cells = [(column, cell) for column in self.columns if (cell := self.cell(row, column))]
            titles = [self.column_title(column) for column, cell in row_cells if id(cell) in ids]
            if titles:
                columns = "" if len(titles) == len(row_cells) else ", ".join(titles)
                by_columns[columns].append(join_labels(self.table.rows, row))
        return "; ".join(" · ".join(filter(None, (", ".join(rows), columns))) for columns, rows in by_columns.items())

    def with_metric(self, metric: str) -> Results:
        """Return the results of the same runs under another metric, also one that no spec can name."""
        cells, update = list[TableCell](), {"metric": metric}
        for cell in self.table.cells:
            quantity = cell.quantity and cell.quantity.model_copy(update=update)
            cells.append(cell.model_copy(update={"quantity": quantity}))
        return Results.from_frame(self.table.model_copy(update={**update, "cells": cells}), self.frame)

    @property
    def selections(self) -> dict[str, str]:
        """The contents of the selections, as select stages wrote them, by id."""
        return dict(zip(self.frame.selections["selection"], self.frame.selections["content"], strict=True))

    def ranks(self, column: Key) -> dict[Key, float]:
        """Return the ranks of a column's complete rows; 1 is the best. The best row shares the mean rank with the next
        ones, up to the first that neither ties with it nor equals it as printed; that row starts the next group."""
        cells = {row: cell for row in self.rows if (cell := self.cell(row, column)) and cell.complete}
        sign = 1.0 if any(self.table.lower(cell.quantity) for cell in cells.values()) else -1.0
        scores = {row: sign * cell.obtained.mean for row, cell in cells.items() if cell.obtained}
        printed = {row: round(score, self.table.decimals) for row, score in scores.items()}
        order, ranks = sorted(scores, key=scores.__getitem__), dict[Key, float]()
        while len(ranks) < len(order):
            best, *others = order[len(ranks) :]
            ties = ties_with(cells[best], [cells[row] for row in others], [cells[row] for row in ranks])
            group = [best]
            for row, tied in zip(others, ties, strict=True):
                if not tied and printed[row] != printed[best]:
                    break
                group.append(row)
            ranks |= dict.fromkeys(group, len(ranks) + (len(group) + 1) / 2)
        return {row: ranks[row] for row in scores}

    def significant_pairs(self, column: Key) -> tuple[int, int]:
        """Return how many pairs of a column's complete rows differ significantly, and how many pairs there are."""
        cells = [cell for row in self.rows if (cell := self.cell(row, column)) and cell.complete]
        values = [cell.by_seed for cell in cells if cell.obtained]
        verdicts = significant(list(itertools.combinations(values, 2)))
        return verdicts.count(True), len(verdicts)

    @cached_property
    def rank_columns(self) -> list[RankColumns]:
        """The columns of ranks of the table, in the order of its spec."""
        ranks = {column: self.ranks(column) for column in self.columns} if self.table.derived else {}
        rank_columns = []
        for over in self.table.derived:
            groups = defaultdict[str, list[Key]](list)
            for column in self.columns:
                labels = [pair for pair in zip(self.table.columns, column, strict=True) if pair[0] not in over]
                groups[" · ".join(full_label(axis, label) for axis, label in labels)].append(column)
            values = {
                (row, i): statistics.fmean(ranks[column][row] for column in columns)
                for row in self.rows
                for i, columns in enumerate(groups.values())
                if all(row in ranks[column] for column in columns)
            }
            title = f"mean rank over {', '.join(map(axis_title, over))}" if len(groups) > 1 else "mean rank"
            name = f"rank_over_{'_'.join(over)}" if over else "rank"
            rank_columns.append(RankColumns(name, title if over else "rank", list(groups.items()), values))
        return rank_columns

    @property
    def headers(self) -> list[list[Span]]:
        """The levels of headers over cells and ranks, outer to inner; the last level has a span for every column."""
        headers: list[Key] = [tuple(map(full_label, self.table.columns, column)) for column in self.columns]
        if not self.table.columns:
            quantity = self.table.cells[0].quantity if self.table.cells else None
            headers = [(quantity.heading if quantity and quantity.definition else self.heading,)]
        for ranks in self.rank_columns:
            headers += [(ranks.title, group) if len(ranks.groups) > 1 else (ranks.title,) for group, _ in ranks.groups]
        depth, levels = max(map(len, headers)), []
        headers = [("",) * (depth - len(header)) + header for header in headers]
        for level in range(1, depth + 1):
            spans, start = list[Span](), 0
            for outer, group in itertools.groupby(headers, key=lambda header: header[:level]):
                spans.append(Span(outer[-1], start, len(list(group))))
                start += spans[-1].width
            levels.append(spans)
        return levels

    def to_arrow(self) -> pa.Table:
        """Return a row per cell of a ``table/2`` artifact. ``kept_since`` is the last day on which a kept run of the
        cell was obtained. Raises :class:`UserError` if an axis has the name of another column."""
        columns = {**_COLUMNS}
        if self.table.metric == LAST_TEN or any(cell.last for cell in self.cells):
            columns[_LAST_ROUND] = pa.float64()
        columns |= {ranks.name: pa.float64() for ranks in self.rank_columns}
        for axis in self.table.axes:
            if axis in ("spec", _LAST_ROUND, *columns):
                message = f"an axis cannot be named {axis!r}, which is a column of every report"
                raise UserError(f"{self.table.spec}: {message}")
        labels = dict.fromkeys(("spec", *self.table.axes), pa.string())
        return pa.Table.from_pylist(list(map(self._row, self.cells)), schema=pa.schema({**labels, **columns}))

    def _row(self, cell: Cell) -> dict[str, object]:
        row, column = cell.key(self.table.rows), cell.key(self.table.columns)
        rank_values = {
            ranks.name: ranks.values.get((row, i))
            for ranks in self.rank_columns
            for i, (_, columns) in enumerate(ranks.groups)
            if column in columns
        }
        values = {"published": cell.published, "obtained": cell.obtained}
        return {
            "spec": self.table.spec,
            **cell.labels,
            **{name: getattr(cell, name) for name in _COLUMNS if hasattr(cell, name)},
            **{f"{side}_mean": value and value.mean for side, value in values.items()},
            **{f"{side}_std": value and value.std for side, value in values.items()},
            "runs": " ".join(cell.runs),
            "kept_since": max((self.runs[run].kept_since for run in cell.runs), default="") or None,
            _LAST_ROUND: cell.last and cell.last.mean,
            "by_seed": [{"seed": seed, "value": value} for seed, value in cell.by_seed.items()],
            **rank_values,
        }
