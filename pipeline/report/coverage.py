"""How much of a table is there: its cells by state, and its claims by verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pipeline.report.claims import VERDICTS, Judgement
from pipeline.report.table.cells import DIVERGED, MISSING, Cell

STATES = {
    "done": "done",
    "partly": "partly done",
    "missing": "missing",
    "diverged": "diverged",
    "quoted": "quoted",
    "unplanned": "not planned",
}
"""States of a cell, in the order in which they are listed, and their names in print.

``done``: all of its runs are in the number; ``partly``: some of them are; ``quoted``: no run is planned, and the paper
has the value from an earlier one; ``unplanned``: no run is planned, though the paper has a value.
"""

CLAIM_STATES = (*VERDICTS, "contradicted")
"""Verdicts on obtained values, and ``contradicted``, how many of all claims the paper's own table contradicts."""


def cover(cells: Iterable[Cell]) -> Counter[str]:
    """Count cells by state. A cell that nobody expects anything of (a hole in the grid) is not counted."""
    return Counter(filter(None, map(_state, cells)))


def claim_counts(judgements: Iterable[Judgement]) -> Counter[str]:
    """Count claims by :data:`CLAIM_STATES`."""
    counts: Counter[str] = Counter()
    for judgement in judgements:
        counts.update([judgement.obtained.verdict, *["contradicted"] * judgement.contradicted_by_paper])
    return counts


def _state(cell: Cell) -> str:
    if cell.verdict in (MISSING, DIVERGED):
        return cell.verdict
    if cell.runs:
        return "done" if cell.complete else "partly"
    if cell.published and cell.quoted:
        return "quoted"
    return "unplanned" if cell.published or cell.misprint else ""
