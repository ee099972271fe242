"""How much of a table is there: its cells by state, and its claims by verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipeline.report.claims.claims import Judgement
from pipeline.report.claims.form import FAILS, HOLDS, NOT_YET, WITHIN_NOISE
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

VERDICTS = {HOLDS: "holds", FAILS: "fails", WITHIN_NOISE: "within_noise", NOT_YET: "not_yet"}
"""Verdicts on claims, in the order in which they are told, and their fields of :class:`Claims`."""


@dataclass(frozen=True)
class Coverage:
    """Cells by state; each cell is in one.

    Attributes:
        done: All of its runs are in the number.
        partly: Some of them are.
        quoted: No run is planned, and the paper has the value from an earlier one.
        unplanned: No run is planned, though the paper has a value or the spec a reason.
    """

    done: int = 0
    partly: int = 0
    missing: int = 0
    diverged: int = 0
    quoted: int = 0
    unplanned: int = 0

    @property
    def total(self) -> int:
        return sum(self.numbers.values())

    @property
    def numbers(self) -> dict[str, int]:
        """By state, in the order of :data:`STATES`."""
        return {state: getattr(self, state) for state in STATES}

    @property
    def words(self) -> str:
        """``56 cells: 28 done, 20 missing``."""
        counts = ", ".join(f"{number:,} {STATES[state]}" for state, number in self.numbers.items() if number)
        return f"{self.total:,} cell{'' if self.total == 1 else 's'}" + (f": {counts}" if counts else "")

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(**{state: number + other.numbers[state] for state, number in self.numbers.items()})


@dataclass(frozen=True)
class Claims:
    """Claims by verdict on the obtained values; `contradicted`: how many of all the paper's own table contradicts."""

    holds: int = 0
    fails: int = 0
    within_noise: int = 0
    not_yet: int = 0
    contradicted: int = 0

    @property
    def total(self) -> int:
        return self.holds + self.fails + self.within_noise + self.not_yet

    @property
    def by_verdict(self) -> dict[str, int]:
        """By verdict as :mod:`pipeline.report.claims.claims` calls it."""
        return {verdict: getattr(self, field) for verdict, field in VERDICTS.items()}

    @property
    def phrases(self) -> dict[str, str]:
        """Verdict → ``2 hold``, for the verdicts that there are."""
        plural = {HOLDS: "hold", FAILS: "fail"}
        return {
            verdict: f"{number} {verdict if number == 1 else plural.get(verdict, verdict)}"
            for verdict, number in self.by_verdict.items()
            if number
        }

    @property
    def words(self) -> str:
        """``2 hold, 1 fails; the paper's own table contradicts 1``; "" where there is no claim."""
        against = f"; the paper's own table contradicts {self.contradicted}" if self.contradicted else ""
        return ", ".join(self.phrases.values()) + against

    def __add__(self, other: Claims) -> Claims:
        own, others = asdict(self), asdict(other)
        return Claims(**{field.name: own[field.name] + others[field.name] for field in fields(self)})


def cover(cells: Iterable[Cell]) -> Coverage:
    """The cells by state. A cell that nobody expects anything of (a hole in the grid) is not counted."""
    counts: dict[str, int] = dict.fromkeys(STATES, 0)
    for cell in cells:
        if state := _state(cell):
            counts[state] += 1
    return Coverage(**counts)


def tally(judgements: Iterable[Judgement]) -> Claims:
    """The claims by verdict."""
    counts: dict[str, Any] = dict.fromkeys(VERDICTS.values(), 0)
    contradicted = 0
    for judgement in judgements:
        counts[VERDICTS[judgement.obtained.verdict]] += 1
        contradicted += judgement.contradicted_by_paper
    return Claims(**counts, contradicted=contradicted)


def _state(cell: Cell) -> str | None:
    if cell.verdict in ("missing", "diverged"):
        return cell.verdict
    if cell.runs:
        return "done" if cell.complete else "partly"
    if cell.published and cell.quoted:
        return "quoted"
    return "unplanned" if cell.published or cell.absent else None
