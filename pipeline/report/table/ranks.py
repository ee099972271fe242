"""Ranks of the rows of a table within its columns: 1 is the best, and rows that tie share the mean of their ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.report.table.apart import BySeed, tied_with
from pipeline.report.table.cells import Cell
from pipeline.report.table.layout import Key
from pipeline.report.table.results import Results

TIES = (
    "rows that cannot be told apart by their seeds, or are equal as printed, share the mean of their ranks: from the "
    "best downwards as many as cannot be told apart from it, then anew from the next"
)
"""How ranks by seeds are given, in words. With one seed nothing but equal numbers ties."""


def ranks_by_seeds(results: Results, column: Key) -> dict[Key, float]:
    """The rank of every row that has a complete value in a column, with the ties of :data:`TIES`.

    To be tied is not transitive, so the rows of a group are tied with its first and maybe not with one another.
    """
    return _grouped(_cells(results, column), results, tied_with)


def ranks_as_printed(results: Results, column: Key) -> dict[Key, float]:
    """The same by the numbers alone, of which those tie that are printed alike."""
    return _grouped(_cells(results, column), results, lambda first, others: [False] * len(others))


def _cells(results: Results, column: Key) -> dict[Key, Cell]:
    by_row = {row: results.layout.cell(row, column) for row in results.layout.rows}
    return {row: cell for row, cell in by_row.items() if cell and cell.obtained and cell.complete}


def _grouped(
    cells: dict[Key, Cell], results: Results, tie: Callable[[BySeed, list[BySeed]], Sequence[bool | None]]
) -> dict[Key, float]:
    sign = 1.0 if results.table.better == "lower" else -1.0
    scores = {row: sign * cell.obtained.mean for row, cell in cells.items() if cell.obtained}
    left = sorted(scores, key=scores.__getitem__)
    ranks: dict[Key, float] = {}
    while left:
        printed = [round(scores[row], results.table.decimals) for row in left]
        tied = tie(cells[left[0]].by_seed, [cells[row].by_seed for row in left[1:]])
        same = [True, *(bool(one) or own == printed[0] for one, own in zip(tied, printed[1:], strict=True))]
        size = [*same, False].index(False)
        ranks |= dict.fromkeys(left[:size], len(ranks) + (size + 1) / 2)
        left = left[size:]
    return {row: ranks[row] for row in cells}


def printed_rank(rank: float) -> str:
    """``2`` or ``2.5``; a mean of ranks with at most two decimals."""
    return f"{rank:.2f}".rstrip("0").rstrip(".")
