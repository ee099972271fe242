"""The shape of a table: which rows and columns it has, in which order, and the headers over them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
        client_names: What clients are called that have cells of their own.
    """

    def __init__(self, table: ResolvedTable, cells: list[Cell]) -> None:
        self.row_axes, self.column_axes = table.rows, table.columns
        self._table = table
        self._cells = {(cell.key(self.row_axes), cell.key(self.column_axes)): cell for cell in cells}
        self.rows = _ordered(table, self.row_axes, {row for row, _ in self._cells})
        self.columns = _ordered(table, self.column_axes, {column for _, column in self._cells})
        named = [(client, label) for labels in table.clients.values() for label, client in labels.items()]
        self.client_names: dict[int, str] = dict(sorted(dict(reversed(named)).items()))

    @property
    def figure(self) -> str:
        """What is measured of clients, as it heads a column or stands at an axis."""
        return next((cell.figure for cell in self._cells.values() if cell.figure != ACCURACY), ACCURACY)

    @property
    def heads(self) -> list[Key]:
        """The texts over each column, outer to inner."""
        if self.column_axes:
            return [tuple(map(headed, self.column_axes, column)) for column in self.columns]
        quantity = self._table.cells[0].quantity if self._table.cells else None
        return [(quantity.heading if quantity else self.figure,)]

    def cell(self, row: Key, column: Key) -> Cell | None:
        """Return the cell at a row and a column; None where the study has none."""
        return self._cells.get((row, column))

    @property
    def places(self) -> list[tuple[Key, Key]]:
        """Row and column of every combination, row by row, whether there is a cell or not."""
        return list(itertools.product(self.rows, self.columns))

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return [self._cells[place] for place in self.places if place in self._cells]

    def of_runs(self) -> Layout:
        """Return the same for what is said of a run once: without the cells that are about one client.

        Where there are no others, their axis is taken away, and cells that differ in nothing else become one; so is an
        axis that chooses quantities.
        """
        table = self._table
        dropped = {*table.clients, *table.quantities}
        whole = [cell for cell in self._cells.values() if cell.client is None]
        if not table.quantities and (not dropped or any(cell.runs for cell in whole)):
            return Layout(table, whole) if dropped else self
        rows, columns = ([axis for axis in axes if axis not in dropped] for axes in (table.rows, table.columns))
        merged: dict[Key, Cell] = {}
        for cell in self._cells.values():
            labels = {axis: label for axis, label in cell.labels.items() if axis not in dropped}
            key = tuple(labels.values())
            runs = (*merged[key].runs, *cell.runs) if key in merged else cell.runs
            merged[key] = replace(cell, labels=labels, runs=tuple(dict.fromkeys(runs)), client=None)
        return Layout(table.model_copy(update={"rows": rows, "columns": columns}), list(merged.values()))

    def column_title(self, column: Key) -> str:
        """Return the whole header of one column in one line."""
        return titled(self.column_axes, column)

    def whereabouts(self, cells: Iterable[Cell]) -> str:
        """Name some cells: by their rows, and by their columns where not all cells of a row are meant."""
        chosen = {(cell.key(self.row_axes), cell.key(self.column_axes)) for cell in cells}
        rows_of = defaultdict[str, list[str]](list)
        for row in self.rows:
            own = [column for column in self.columns if (row, column) in self._cells]
            some = [column for column in own if (row, column) in chosen]
            if some:
                columns = "" if some == own else ", ".join(map(self.column_title, some))
                rows_of[columns].append(titled(self.row_axes, row))
        return "; ".join(" · ".join(filter(None, (", ".join(rows), at))) for at, rows in rows_of.items())


def spans(heads: Sequence[Key]) -> list[list[Span]]:
    """Return the headers over columns whose texts are given outer to inner: a list per level."""
    levels = []
    for level in range(len(heads[0])):
        row, start = [], 0
        for prefix, group in itertools.groupby(heads, key=lambda head: head[: level + 1]):
            width = len(list(group))
            row.append(Span(prefix[level], start, width))
            start += width
        levels.append(row)
    return levels


def _ordered(table: ResolvedTable, axes: list[str], keys: set[Key]) -> list[Key]:
    ranks = [{label: rank for rank, label in enumerate(table.labels[axis])} for axis in axes]
    return sorted(keys, key=lambda key: [rank[label] for rank, label in zip(ranks, key, strict=True)])


def headed(axis: str, label: str) -> str:
    """Return a label where its axis is not in sight: a bare number is printed as ``clients = 50``."""
    try:
        float(label)
    except ValueError:
        return label
    return f"{short(axis)} = {label}"


def titled(axes: Iterable[str], labels: Iterable[str]) -> str:
    """Return labels in one line."""
    return " · ".join(map(headed, axes, labels))


def short(axis: str) -> str:
    """``backbone.mlp_dim`` as ``mlp dim``."""
    return axis.rpartition(".")[2].replace("_", " ")
