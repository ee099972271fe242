"""How much of a table is there: its cells by state, and its claims by verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pipeline.report.claims.claims import Judgement
from pipeline.report.claims.verdicts import VERDICTS, counted
from pipeline.report.table.cells import Cell

STATES = {
    "done": "done",
    "partly": "partly done",
    "missing": "missing",
    "diverged": "diverged",
    "quoted": "quoted",
    "unplanned": "not planned",
}
"""States of a cell, in the order in which they are told, and their names in print."""

_CONTRADICTED = "contradicted"


class Coverage(Counter[str]):
    """How many cells are in which of :data:`STATES`; each cell is in one.

    ``done``: all of its runs are in the number; ``partly``: some of them are; ``quoted``: no run is planned, and the
    paper has the value from an earlier one; ``unplanned``: no run is planned, though the paper has a value.
    """

    @property
    def numbers(self) -> dict[str, int]:
        """By state, in the order of :data:`STATES`."""
        return {state: self[state] for state in STATES}

    @property
    def words(self) -> str:
        """``56 cells: 28 done, 20 missing``."""
        counts = ", ".join(f"{number:,} {STATES[state]}" for state, number in self.numbers.items() if number)
        return f"{self.total():,} cell{'' if self.total() == 1 else 's'}" + (f": {counts}" if counts else "")


class Claims(Counter[str]):
    """How many claims have which verdict on the obtained values.

    ``contradicted`` is how many of all the paper's own table contradicts.
    """

    @property
    def phrases(self) -> dict[str, str]:
        """Verdict → ``2 hold``, for the verdicts that there are."""
        return {verdict: counted(verdict, self[verdict]) for verdict in VERDICTS if self[verdict]}

    @property
    def words(self) -> str:
        """``2 hold, 1 fails; the paper's own table contradicts 1``; "" where there is no claim."""
        against = self[_CONTRADICTED]
        return ", ".join(self.phrases.values()) + (f"; the paper's own table contradicts {against}" if against else "")


def cover(cells: Iterable[Cell]) -> Coverage:
    """The cells by state. A cell that nobody expects anything of (a hole in the grid) is not counted."""
    return Coverage(filter(None, map(_state, cells)))


def tally(judgements: Iterable[Judgement]) -> Claims:
    """The claims by verdict."""
    claims = Claims()
    for judgement in judgements:
        claims.update([judgement.obtained.verdict, *[_CONTRADICTED] * judgement.contradicted_by_paper])
    return claims


def _state(cell: Cell) -> str | None:
    if cell.verdict in ("missing", "diverged"):
        return cell.verdict
    if cell.runs:
        return "done" if cell.complete else "partly"
    if cell.published and cell.quoted:
        return "quoted"
    return "unplanned" if cell.published or cell.misprint else None
