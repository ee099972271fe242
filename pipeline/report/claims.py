"""A paper's claims as checks: do they hold on the obtained values, and do they hold on the published ones?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.report.cells import Cell, noise
from pipeline.report.measured import Value

HOLDS, FAILS, WITHIN_NOISE, NOT_YET = "holds", "fails", "within noise", "not yet"

_SEVERITY = {FAILS: 0, WITHIN_NOISE: 1, HOLDS: 2}


@dataclass(frozen=True)
class Pair:
    """Two cells that differ only in what the claim compares.

    Attributes:
        labels: The labels both cells share.
        difference: How much better the first is, in percentage points; negative: it is worse.
        noise: The combined standard deviation of the two.
    """

    better: dict[str, str]
    than: dict[str, str]
    labels: dict[str, str]
    values: tuple[Value, Value]
    difference: float
    noise: float
    verdict: str


@dataclass(frozen=True)
class Finding:
    """The verdict over all pairs, and the pair that speaks most against the claim.

    Attributes:
        pairs: How many there are.
        lacking: Of how many of them a value is missing.
        judged: The others, those first that speak most against the claim.
    """

    verdict: str
    worst: Pair | None
    pairs: int
    lacking: int
    judged: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """One claim with what was found. `published` is None where the paper prints no pair of the claim's cells."""

    text: str
    margin: float
    obtained: Finding
    published: Finding | None

    @property
    def contradicted_by_paper(self) -> bool:
        return self.published is not None and self.published.verdict == FAILS


def judge_claims(table: dict[str, Any], cells: list[Cell]) -> list[Judgement]:
    """All claims of a resolved table, each on obtained and on published values.

    A pair holds when it is better by more than margin plus noise, fails when it falls short of the margin by more
    than the noise, and is within noise otherwise. A claim fails with its first failing pair; short of that it is not
    yet decided while obtained values are missing, then within noise if any pair is, and else it holds.
    """
    return [_judge(table, claim, cells) for claim in table["claims"]]


def _judge(table: dict[str, Any], claim: dict[str, Any], cells: list[Cell]) -> Judgement:
    planned = _pairs(table, claim, [cell for cell in cells if cell.runs])
    printed = [(a, b) for a, b in _pairs(table, claim, cells) if a.published and b.published]
    obtained = _find(table, claim, planned, lambda cell: cell.obtained if cell.complete else None)
    published = _find(table, claim, printed, lambda cell: cell.published) if printed else None
    return Judgement(claim["text"], claim["margin"], obtained, published)


def _pairs(table: dict[str, Any], claim: dict[str, Any], cells: list[Cell]) -> list[tuple[Cell, Cell]]:
    def chosen(cell: Cell, by: dict[str, list[str]]) -> bool:
        return all(cell.labels[axis] in [str(label) for label in labels] for axis, labels in by.items())

    shared = _shared(table, claim)
    pool = [cell for cell in cells if chosen(cell, claim["where"])]
    better = [cell for cell in pool if chosen(cell, claim["better"])]
    than = [cell for cell in pool if chosen(cell, claim["than"])]
    return [(a, b) for a in better for b in than if a is not b and a.key(shared) == b.key(shared)]


def _shared(table: dict[str, Any], claim: dict[str, Any]) -> list[str]:
    return [axis for axis in (*table["rows"], *table["columns"]) if axis not in {**claim["better"], **claim["than"]}]


def _find(
    table: dict[str, Any],
    claim: dict[str, Any],
    pairs: list[tuple[Cell, Cell]],
    pick: Callable[[Cell], Value | None],
) -> Finding:
    shared = _shared(table, claim)
    sign = -1.0 if table["better"] == "lower" else 1.0
    judged = []
    for a, b in pairs:
        ours, theirs = pick(a), pick(b)
        if ours is None or theirs is None:
            continue
        difference, spread = sign * (ours.mean - theirs.mean), noise(ours, theirs)
        surplus = difference - claim["margin"]
        verdict = HOLDS if surplus > spread else FAILS if surplus < -spread else WITHIN_NOISE
        first, second = ({k: v for k, v in cell.labels.items() if k not in shared} for cell in (a, b))
        labels = {axis: a.labels[axis] for axis in shared}
        judged.append(Pair(first, second, labels, (ours, theirs), difference, spread, verdict))
    judged.sort(key=lambda pair: (_SEVERITY[pair.verdict], pair.difference))
    worst = judged[0] if judged else None
    lacking = len(pairs) - len(judged)
    undecided = worst is None or (lacking > 0 and worst.verdict != FAILS)
    verdict = NOT_YET if worst is None or undecided else worst.verdict
    return Finding(verdict, worst, len(pairs), lacking, tuple(judged))
