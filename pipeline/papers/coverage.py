"""How much of a table is there: its cells by state, and its claims by verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pipeline.report.claims.claims import Judgement
from pipeline.report.claims.verdicts import VERDICTS
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

CONTRADICTED = "contradicted"


class Coverage(Counter[str]):
    """How many cells are in which of :data:`STATES`; each cell is in one.

    ``done``: all of its runs are in the number; ``partly``: some of them are; ``quoted``: no run is planned, and the
    paper has the value from an earlier one; ``unplanned``: no run is planned, though the paper has a value.
    """

    @property
    def numbers(self) -> dict[str, int]:
        """By state, in the order of :data:`STATES`."""
        return {state: self[state] for state in STATES}


class Claims(Counter[str]):
    """How many claims have which verdict on the obtained values.

    :data:`CONTRADICTED` is how many of all the paper's own table contradicts.
    """

    @property
    def numbers(self) -> dict[str, int]:
        """By verdict, in the order of the list of these, and how many the paper contradicts; without zeros."""
        return {name: self[name] for name in (*VERDICTS, CONTRADICTED) if self[name]}


def cover(cells: Iterable[Cell]) -> Coverage:
    """The cells by state. A cell that nobody expects anything of (a hole in the grid) is not counted."""
    return Coverage(filter(None, map(_state, cells)))


def tally(judgements: Iterable[Judgement]) -> Claims:
    """The claims by verdict."""
    claims = Claims()
    for judgement in judgements:
        claims.update([judgement.obtained.verdict, *[CONTRADICTED] * judgement.contradicted_by_paper])
    return claims


def _state(cell: Cell) -> str | None:
    if cell.verdict in ("missing", "diverged"):
        return cell.verdict
    if cell.runs:
        return "done" if cell.complete else "partly"
    if cell.published and cell.quoted:
        return "quoted"
    return "unplanned" if cell.published or cell.misprint else None
