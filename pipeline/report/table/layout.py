"""The shape of a table: which rows and columns it has, in which order, and the headers over them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from pipeline.report.table.cells import ACCURACY, Cell, Key
from pipeline.spec.table import ResolvedTable


@dataclass(frozen=True)
class Span:
    """A header over `width` neighbouring columns that starts at column `start` (from 0)."""

    text: str
    start: int
    width: int


class Layout:
    """Rows and columns of a resolved table. Combinations that no cell has are left out.

    Attributes:
        rows, columns: Label tuples in the order of the table's labels; ``[()]`` for a side without axes.
        headers: One list of spans per column axis, outer to inner.
        client_names: What clients are called that have cells of their own.
    """

    def __init__(self, table: ResolvedTable, cells: list[Cell]) -> None:
        self.row_axes, self.column_axes = table.rows, table.columns
        self._table = table
        self._cells = {(cell.key(self.row_axes), cell.key(self.column_axes)): cell for cell in cells}
        self.rows = _ordered(table, self.row_axes, {row for row, _ in self._cells})
        self.columns = _ordered(table, self.column_axes, {column for _, column in self._cells})
        self.headers = [self._spans(level) for level in range(len(self.column_axes))] or [[Span(self._heading, 0, 1)]]
        named = [(client, label) for labels in table.clients.values() for label, client in labels.items()]
        self.client_names: dict[int, str] = dict(sorted(dict(reversed(named)).items()))

    @property
    def figure(self) -> str:
        """What is measured of clients, as it heads a column or stands at an axis."""
        return next((cell.figure for cell in self._cells.values() if cell.figure != ACCURACY), ACCURACY)

    @property
    def _heading(self) -> str:
        """What heads the only column of a table."""
        quantity = self._table.cells[0].quantity if self._table.cells else None
        return quantity.heading if quantity else self.figure

    def cell(self, row: Key, column: Key) -> Cell | None:
        """The cell at a row and a column; None where the study has none."""
        return self._cells.get((row, column))

    def of_runs(self) -> Layout:
        """The same for what is told of a run once: without the cells that are about one client.

        Where there are no others, their axis is taken away, and cells that differ in nothing else become one; so is an
        axis that chooses quantities.
        """
        table = self._table
        apart = {*table.clients, *table.quantities}
        if not apart:
            return self
        whole = [cell for cell in self._cells.values() if cell.client is None]
        if not table.quantities and any(cell.runs for cell in whole):
            return Layout(table, whole)
        rows, columns = ([axis for axis in axes if axis not in apart] for axes in (table.rows, table.columns))
        merged: dict[Key, Cell] = {}
        for cell in self._cells.values():
            labels = {axis: label for axis, label in cell.labels.items() if axis not in apart}
            key = tuple(labels.values())
            runs = (*merged[key].runs, *cell.runs) if key in merged else cell.runs
            merged[key] = replace(cell, labels=labels, runs=tuple(dict.fromkeys(runs)), client=None)
        return Layout(table.model_copy(update={"rows": rows, "columns": columns}), list(merged.values()))

    def column_title(self, column: Key) -> str:
        """The whole header of one column in one line, or of all columns that begin with these labels."""
        return _title(self.column_axes, column)

    def settings(self, columns: list[Key]) -> str:
        """Words for some columns, given in their order; "" for all of them."""
        return "" if columns == self.columns else "; ".join(map(self.column_title, self._merged(columns)))

    @property
    def places(self) -> list[tuple[Key, Key]]:
        """Row and column of every combination, row by row, whether there is a cell or not."""
        return list(itertools.product(self.rows, self.columns))

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return [self._cells[place] for place in self.places if place in self._cells]

    def place(self, row: Key, column: Key) -> tuple[str, ...]:
        """The labels of a cell in a list of cells: its row's, and its column's as one where there are several."""
        return (*row, *([self.column_title(column)] if len(self.columns) > 1 else []))

    def whereabouts(self, cells: list[Cell]) -> str:
        """Words for a set of cells: whole rows and whole columns by name, the rest one by one."""
        chosen = {(cell.key(self.row_axes), cell.key(self.column_axes)) for cell in cells}
        whole_rows = [r for r in self.rows if all(at in chosen for at in self._cells if at[0] == r)]
        rest = {at for at in chosen if at[0] not in whole_rows}
        whole_columns = [
            c
            for c in self.columns
            if any(at[1] == c for at in rest) and all(at in chosen for at in self._cells if at[1] == c)
        ]
        single = [at for at in self._cells if at in rest and at[1] not in whole_columns]
        words = [_title(self.row_axes, row) for row in whole_rows]
        words += [self.column_title(column) for column in self._merged(whole_columns)]
        titles = ((_title(self.row_axes, row), self.column_title(column)) for row, column in single)
        return "; ".join(words + [" · ".join(filter(None, pair)) for pair in titles])

    def _merged(self, columns: list[Key]) -> list[Key]:
        """The columns, with the labels that a whole group of them shares in place of the group."""
        for length in range(1, len(self.column_axes)):
            for prefix in dict.fromkeys(column[:length] for column in columns if len(column) > length):
                group = [column for column in self.columns if column[:length] == prefix]
                if len(group) > 1 and set(group) <= set(columns):
                    at = columns.index(group[0])
                    columns = [column for column in columns if column not in group]
                    columns.insert(at, prefix)
        return columns

    def _spans(self, level: int) -> list[Span]:
        spans, start = [], 0
        for prefix, group in itertools.groupby(self.columns, key=lambda column: column[: level + 1]):
            width = len(list(group))
            spans.append(Span(headed(self.column_axes[level], prefix[level]), start, width))
            start += width
        return spans


def _ordered(table: ResolvedTable, axes: list[str], keys: set[Key]) -> list[Key]:
    ranks = [{label: rank for rank, label in enumerate(table.labels[axis])} for axis in axes]
    return sorted(keys, key=lambda key: [rank[label] for rank, label in zip(ranks, key, strict=True)])


def headed(axis: str, label: str) -> str:
    """A label where its axis is not in sight: a bare number is printed as ``clients = 50``."""
    try:
        float(label)
    except ValueError:
        return label
    return f"{short(axis)} = {label}"


def short(axis: str) -> str:
    """``backbone.mlp_dim`` as ``mlp dim``."""
    return axis.rpartition(".")[2].replace("_", " ")


def _title(axes: list[str], labels: Key) -> str:
    return " · ".join(map(headed, axes, labels))  # `labels` may be the first few
