"""Columns of ranks to the right of a table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import pyarrow as pa

from pflcore.errors import UserError
from pipeline.report.table.layout import Key, short
from pipeline.report.table.ranks import ranks_by_seeds
from pipeline.report.table.results import Results
from pipeline.spec.table import TableRank


@dataclass(frozen=True)
class RankColumns:
    """The columns of one entry of ``table.derived``.

    Attributes:
        name: What they are called in files, such as ``rank_over_partition``.
        title: What heads them.
        over: The axes of the columns that they are the mean over.
        groups: For each the columns of the table that it is the mean over.
        values: By row and place of the group; a row is left out that lacks a number in one of the columns.
    """

    name: str
    title: str
    over: list[str]
    groups: list[list[Key]]
    values: dict[tuple[Key, int], float]


def derive(results: Results) -> list[RankColumns]:
    """Return all columns of ranks of a table, in the order of its spec."""
    return [_derive(results, one) for one in results.table.derived]


def _derive(results: Results, derived: TableRank) -> RankColumns:
    layout, over = results.layout, derived.over
    kept = [index for index, axis in enumerate(layout.column_axes) if axis not in over]
    grouped: dict[Key, list[Key]] = {}
    for column in layout.columns:
        grouped.setdefault(tuple(column[index] for index in kept), []).append(column)
    groups, values = list(grouped.values()), {}
    ranks = {column: ranks_by_seeds(results, column) for column in layout.columns}
    for row in layout.rows:
        for place, group in enumerate(groups):
            if all(row in ranks[column] for column in group):
                values[row, place] = statistics.fmean(ranks[column][row] for column in group)
    name, title = f"rank_over_{'_'.join(over)}" if over else "rank", "mean rank" if over else "rank"
    if over and len(groups) > 1:
        title += f" over {', '.join(map(short, over))}"
    return RankColumns(name, title, over, groups, values)


def rows_with_derived(results: Results, rows: pa.Table) -> pa.Table:
    """Return the rows of the table's cells (:meth:`Results.to_arrow`) with a column per entry: the rank of the cell's
    row in its column, or over the group of columns that it is in.

    Raises:
        UserError: An axis has the name of such a column.
    """
    for one in derive(results):
        if one.name in rows.column_names:
            raise UserError(f"{results.table.spec}: an axis cannot be named {one.name!r}, which is a derived column")
        place = {column: at for at, group in enumerate(one.groups) for column in group}
        layout = results.layout
        values = [
            one.values.get((cell.key(layout.row_axes), place[cell.key(layout.column_axes)])) for cell in results.cells
        ]
        rows = rows.append_column(one.name, pa.array(values, pa.float64()))
    return rows
