"""Derived columns: what is worked out from the cells of a table and from the clients of their runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pflcore.errors import UserError
from pipeline.report.table.clients import client_accuracies
from pipeline.report.table.layout import Key, short
from pipeline.report.table.measured import Measured
from pipeline.report.table.printed import signed
from pipeline.report.table.ranks import TIES, printed_rank, ranks_by_seeds
from pipeline.report.table.results import Results
from pipeline.spec.table import TableDerived

OfCell = Callable[[Key, Key], float | None]
"""What is shown of the cell at a row and a column; None where it cannot be told."""


@dataclass(frozen=True)
class DerivedColumns:
    """The columns of one entry of ``table.derived``.

    Attributes:
        name: What they are called in files, such as ``difference_to_Local``.
        title: What heads them.
        explained: The same in a sentence.
        over: The axes of the columns that they are the mean over.
        groups: For each the columns of the table that it is the mean over.
        values: By row and place of the group; a row is left out that lacks a number in one of the columns.
    """

    name: str
    title: str
    explained: str
    show: str
    over: list[str]
    decimals: int
    groups: list[list[Key]]
    values: dict[tuple[Key, int], float]

    def printed(self, value: float) -> str:
        """A value with as many decimals as the table has; ranks with two at most, shares with one."""
        if self.show == "rank":
            return printed_rank(value)
        if self.show == "difference":
            return signed(value, self.decimals)
        return f"{value:.{1 if self.show == 'share_worse' else self.decimals}f}"


def derive(results: Results) -> list[DerivedColumns]:
    """All derived columns of a table, in the order of its spec."""
    return [_derive(results, one) for one in results.table.derived]


def _derive(results: Results, derived: TableDerived) -> DerivedColumns:
    layout = results.layout
    kept = [index for index, axis in enumerate(layout.column_axes) if axis not in derived.over]
    grouped: dict[Key, list[Key]] = {}
    for column in layout.columns:
        grouped.setdefault(tuple(column[index] for index in kept), []).append(column)
    of_cell = _OF_CELL[derived.show](results, derived)
    values = {}
    for row in layout.rows:
        for place, group in enumerate(grouped.values()):
            numbers = [of_cell(row, column) for column in group]
            known = [number for number in numbers if number is not None]
            if len(known) == len(numbers):
                values[row, place] = statistics.fmean(known)
    name, title, explained = _words(derived, whole=len(grouped) == 1)
    return DerivedColumns(
        name, title, explained, derived.show, derived.over, results.table.decimals, list(grouped.values()), values
    )


def rows_with_derived(results: Results, rows: pa.Table) -> pa.Table:
    """The rows of the table's cells (:meth:`Results.to_arrow`) with a column per entry: what is derived of the cell's
    column, or of the group of columns that it is in.

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


def _mean(results: Results, derived: TableDerived) -> OfCell:
    def mean(row: Key, column: Key) -> float | None:
        cell = results.layout.cell(row, column)
        return cell.obtained.mean if cell and cell.obtained and cell.complete else None

    return mean


def _difference(results: Results, derived: TableDerived) -> OfCell:
    mean = _mean(results, derived)

    def difference(row: Key, column: Key) -> float | None:
        compared = _compared(results, derived, row)
        own, others = mean(row, column), mean(compared, column) if compared != row else None
        return None if own is None or others is None else own - others

    return difference


def _rank(results: Results, derived: TableDerived) -> OfCell:
    ranks = {column: ranks_by_seeds(results, column) for column in results.layout.columns}
    return lambda row, column: ranks[column].get(row)


def _worst_tenth(results: Results, derived: TableDerived) -> OfCell:
    return _mean(results.under("worst_tenth"), derived)


def _spread(results: Results, derived: TableDerived) -> OfCell:
    def spread(row: Key, column: Key) -> float | None:
        values = [run.values.get("clients") for run in _runs(results, row, column)]
        deviations = [value.std for value in values if value and value.std is not None]
        return statistics.fmean(deviations) if values and len(deviations) == len(values) else None

    return spread


def _share_worse(results: Results, derived: TableDerived) -> OfCell:
    accuracies: dict[str, pd.Series[float]] = {}

    def of_run(run: Measured) -> pd.Series[float]:
        if run.id not in accuracies:
            accuracies[run.id] = client_accuracies(run)
        return accuracies[run.id]

    def share(row: Key, column: Key) -> float | None:
        ours, compared = _runs(results, row, column), _compared(results, derived, row)
        others = {run.resolved.federation_id: run for run in _runs(results, compared, column)}
        if row == compared or not ours or any(run.resolved.federation_id not in others for run in ours):
            return None
        gains = [(of_run(run) - of_run(others[run.resolved.federation_id])).dropna() for run in ours]
        worse = pd.concat(gains) < 0
        return 100.0 * float(worse.mean()) if len(worse) else None

    return share


_OF_CELL: dict[str, Callable[[Results, TableDerived], OfCell]] = {
    "mean": _mean,
    "difference": _difference,
    "rank": _rank,
    "worst_tenth": _worst_tenth,
    "spread": _spread,
    "share_worse": _share_worse,
}


def _runs(results: Results, row: Key, column: Key) -> list[Measured]:
    """The runs of a cell about all clients, if all of them were measured; else none."""
    cell = results.layout.cell(row, column)
    return results.measured(row, column) if cell and cell.complete and cell.client is None else []


def _compared(results: Results, derived: TableDerived, row: Key) -> Key:
    """The row that another is compared with: its own labels but for those of `than`."""
    return tuple(derived.than.get(axis, label) for axis, label in zip(results.layout.row_axes, row, strict=True))


def _words(derived: TableDerived, *, whole: bool) -> tuple[str, str, str]:
    """Name, title and explanation; `whole`: it is taken over all columns."""
    than = " · ".join(derived.than.values())
    name, title, explained = {
        "mean": ("mean", "mean", "of the row's numbers"),
        "difference": (f"difference_to_{than}", f"less {than}", f"the number less that of {than}, in points"),
        "rank": ("rank", "rank", f"within a column, 1 the best; {TIES}"),
        "worst_tenth": (
            "worst_tenth",
            "worst tenth",
            "mean accuracy (%) of the tenth of the clients that fare worst, rounded up, after the last round",
        ),
        "spread": (
            "spread",
            "spread of clients",
            "standard deviation over the clients after the last round, in points",
        ),
        "share_worse": (
            f"share_worse_than_{than}",
            f"worse than {than} (%)",
            f"clients that are less accurate than under {than} on the same federation and seed, after the last round",
        ),
    }[derived.show]
    if derived.over:
        name += f"_over_{'_'.join(derived.over)}"
        mean = "" if derived.show == "mean" else "mean "
        title = mean + title + ("" if whole else f" over {', '.join(map(short, derived.over))}")
    return name, title, f"{title[0].upper()}{title[1:]}: {explained}."
