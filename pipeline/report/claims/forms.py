"""What each form of a claim measures: differences of cells or of means, ranges, spreads, rounds to convergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.report.claims.noise import Pick, Uncertainty, Yardstick
from pipeline.report.claims.sides import Group, Match
from pipeline.report.table.cells import Cell
from pipeline.report.table.measured import Value
from pipeline.spec.table import ClaimForm

HOLDS, FAILS, WITHIN_NOISE, NOT_YET = "holds", "fails", "within noise", "not yet"


@dataclass(frozen=True)
class Pair:
    """What a claim compares once: two cells, the means or the ranges of two groups, or the ends of one range.

    Attributes:
        better: The labels that the claim speaks for; of one range those of its highest cell.
        than: Those they are compared with; of one range those of its lowest cell.
        labels: The labels that are shared.
        values: Of either side; where ranges are compared, how wide they are, and where spreads are, the spreads.
        difference: How much better the first is, in percentage points; negative: it is worse. Or how much narrower, or
            how many rounds sooner; of one range how wide it is.
        surplus: By how much that is more than what the claim asks for.
        noise: How much of it may be chance.
        cells: How many cells either side is made of.
        ends: Where ranges are compared, per side the labels of the highest and of the lowest cell.
    """

    better: dict[str, str]
    than: dict[str, str]
    labels: dict[str, str]
    values: tuple[Value, Value]
    difference: float
    surplus: float
    noise: Uncertainty
    cells: int = 1
    ends: tuple[tuple[dict[str, str], dict[str, str]], ...] = ()

    @property
    def verdict(self) -> str:
        """It holds or fails by more than the noise."""
        return HOLDS if self.surplus > self.noise.size else FAILS if self.surplus < -self.noise.size else WITHIN_NOISE


@dataclass(frozen=True)
class Form:
    """A claim's form, applied to one kind of values: the obtained or the published ones.

    Attributes:
        over: The axes that a group runs along.
        margin: What the claim asks for: by how much better or narrower, or how wide a range may be.
        lower: Whether lower values are better.
    """

    name: ClaimForm
    over: tuple[str, ...]
    margin: float
    lower: bool
    pick: Pick
    yardstick: Yardstick

    def can_tell(self, match: Match) -> bool:
        """Whether every cell has what the claim is about."""
        values = [self.pick(cell) for cell in (*match.first, *match.second)]
        return all(value is not None and (self.name != "spread" or value.std is not None) for value in values)

    def apply(self, match: Match) -> Pair:
        """The comparison, for a match that it can tell about."""
        return _MEASURES[self.name](self, match)

    def value(self, cell: Cell) -> Value:
        """A cell's value, which is known to be there."""
        value = self.pick(cell)
        assert value is not None
        return value

    def pair(
        self, match: Match, values: tuple[Value, Value], difference: float, noise: Uncertainty, **more: Any
    ) -> Pair:
        """A pair with its surplus, rounded so that the last digit of a float decides nothing."""
        surplus = round(difference - self.margin, 9)
        one, other = match.compared
        return Pair(one, other, match.labels, values, difference, surplus, noise, len(match.first), **more)


def _means(form: Form, match: Match) -> Pair:
    noise = form.yardstick.of_mean(list(zip(match.first, match.second, strict=True)))
    groups = ([form.value(cell) for cell in group] for group in (match.first, match.second))
    ours, theirs = (_mean(values, independent=not noise.paired) for values in groups)
    difference = theirs.mean - ours.mean if form.lower else ours.mean - theirs.mean
    return form.pair(match, (ours, theirs), difference, noise)


def _ranges(form: Form, match: Match) -> Pair:
    ends = [_ends(form, group) for group in (match.first, match.second)]
    noises = [form.yardstick.between(high, low) for high, low in ends]
    ours, theirs = (
        Value(form.value(high).mean - form.value(low).mean, noise.size)
        for (high, low), noise in zip(ends, noises, strict=True)
    )
    named = tuple((_along(form, high), _along(form, low)) for high, low in ends)
    return form.pair(match, (ours, theirs), theirs.mean - ours.mean, _combined(*noises), ends=named)


def _spreads(form: Form, match: Match) -> Pair:
    ours, theirs = (Value(form.value(group[0]).std or 0.0) for group in (match.first, match.second))
    return form.pair(match, (ours, theirs), theirs.mean - ours.mean, Uncertainty(0.0))


def _width(form: Form, match: Match) -> Pair:
    high, low = _ends(form, match.first)
    values = form.value(high), form.value(low)
    width = values[0].mean - values[1].mean
    noise = form.yardstick.between(high, low)
    surplus = round(form.margin - width, 9)
    return Pair(_along(form, high), _along(form, low), match.labels, values, width, surplus, noise, len(match.first))


_MEASURES: Mapping[ClaimForm, Callable[[Form, Match], Pair]] = {
    "better": _means,
    "sooner": _means,
    "steadier": _ranges,
    "spread": _spreads,
    "within": _width,
}


def _mean(values: list[Value], *, independent: bool) -> Value:
    """Deviations of independent values add in squares; of others that of their mean is not known."""
    if len(values) == 1:
        return values[0]
    deviations = [value.std for value in values if value.std is not None and independent]
    mean = math.fsum(value.mean for value in values) / len(values)
    return Value(mean, math.hypot(*deviations) / len(values) if deviations else None)


def _ends(form: Form, group: Group) -> tuple[Cell, Cell]:
    """The highest and the lowest cell; of equal ones the first."""
    return max(group, key=lambda cell: form.value(cell).mean), min(group, key=lambda cell: form.value(cell).mean)


def _along(form: Form, cell: Cell) -> dict[str, str]:
    return {axis: cell.labels[axis] for axis in form.over}


def _combined(one: Uncertainty, other: Uncertainty) -> Uncertainty:
    """Of the difference of what has these noises."""
    between_clients = one.between_clients or other.between_clients
    return Uncertainty(math.hypot(one.size, other.size), min(one.paired, other.paired), between_clients)
