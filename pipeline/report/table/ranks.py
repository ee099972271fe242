"""Ranks of the rows of a table within its columns: 1 is the best, and rows that tie share the mean of their ranks."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.report.table.layout import Key
from pipeline.report.table.results import Results


def column_ranks(results: Results, column: Key) -> dict[Key, float]:
    """The rank of every row that has a complete value in a column; equal as printed is a tie."""
    sign = 1 if results.table.better == "lower" else -1
    scores = {
        row: sign * round(cell.obtained.mean, results.table.decimals)
        for row in results.layout.rows
        if (cell := results.layout.cell(row, column)) and cell.obtained and cell.complete
    }
    return {row: shared_rank(own, scores) for row, own in scores.items()}


def shared_rank(own: float, scores: Mapping[Key, float]) -> float:
    """The rank of a score among all, itself one of them; the least is the best."""
    before, tied = (sum(map(test, scores.values())) for test in (own.__gt__, own.__eq__))
    return before + (tied + 1) / 2


def printed_rank(rank: float) -> str:
    """``2`` or ``2.5``; a mean of ranks with at most two decimals."""
    return f"{rank:.2f}".rstrip("0").rstrip(".")
