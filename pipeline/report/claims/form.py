"""What the forms of a claim have in common: what a comparison is, and when it holds."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pipeline.report.claims.chance import Chance
from pipeline.report.claims.sides import Group, Match
from pipeline.report.claims.verdicts import FAILS, HOLDS, ONE_SEED, WITHIN_NOISE
from pipeline.report.claims.yardstick import Yardstick
from pipeline.report.statistics.power import LEVEL
from pipeline.report.table.cells import Cell
from pipeline.report.table.layout import headed
from pipeline.report.table.measured import Value


@dataclass(frozen=True)
class Pair:
    """What a claim compares once: two cells, the means or the ranges of two groups, or the ends of one range.

    Attributes:
        better: The labels that the claim speaks for; of one range those of its highest cell.
        than: Those they are compared with; of one range those of its lowest cell.
        labels: The labels that are shared.
        values: Of either side; where ranges are compared, how wide they are, and where spreads are, the spreads.
        chance: How much better the first is, in percentage points (negative: it is worse), and what that is worth. Or
            how much narrower; of one range how wide it is.
        surplus: By how much that is more than what the claim asks for.
        cells: How many cells either side is made of.
        ends: Where ranges are compared, per side the labels of the highest and of the lowest cell; of one range its
            highest cell is one side, and its lowest the other.
        corrected: p where the pair speaks against the claim, by Holm over all of its pairs.
    """

    better: dict[str, str]
    than: dict[str, str]
    labels: dict[str, str]
    values: tuple[Value, Value]
    chance: Chance
    surplus: float
    cells: int = 1
    ends: tuple[tuple[dict[str, str], ...], ...] = ()
    corrected: float = 1.0

    @property
    def difference(self) -> float:
        """That of the chance."""
        return self.chance.difference

    @property
    def against(self) -> float:
        """p where it speaks against the claim, else 1."""
        return self.chance.p if self.surplus < 0 else 1.0

    @property
    def verdict(self) -> str:
        """It holds or fails where chance is no explanation.

        A claim holds when all its pairs do, so each has to hold by itself, and more of them make that no likelier. One
        that fails is enough against it, and of many one will do so by chance, so there the corrected p counts.
        """
        if self.chance.seeds == 1:
            return ONE_SEED
        if self.surplus > 0 and self.chance.p <= LEVEL:
            return HOLDS
        return FAILS if self.surplus < 0 and self.corrected <= LEVEL else WITHIN_NOISE


@dataclass(frozen=True)
class Form(ABC):
    """A claim's form. What is not overridden is that of a form which compares two sides.

    Attributes:
        over: The axes that a group of cells runs along.
        margin: What the claim asks for: by how much better or narrower, or how wide a range may be.
        lower: Whether lower values are better.
    """

    over: tuple[str, ...]
    margin: float
    lower: bool

    @abstractmethod
    def measure(self, match: Match, scale: Yardstick) -> Pair:
        """The comparison, of cells that all have a value which tells."""

    @property
    def least(self) -> int:
        """How many cells a group needs."""
        return 1

    def tells(self, value: Value) -> bool:
        """Whether a value has what the claim is about."""
        return True

    def can_tell(self, match: Match, scale: Yardstick) -> bool:
        """Whether every cell has what the claim is about."""
        values = [scale.pick(cell) for cell in (*match.first, *match.second)]
        return all(value is not None and self.tells(value) for value in values)

    def pair(self, match: Match, values: tuple[Value, Value], chance: Chance, **more: Any) -> Pair:
        """A pair with its surplus, rounded so that the last digit of a float decides nothing."""
        one, other = match.compared
        surplus = round(chance.difference - self.margin, 9)
        return Pair(one, other, match.labels, values, chance, surplus, len(match.first), **more)

    def ends(self, group: Group, scale: Yardstick) -> tuple[Cell, Cell]:
        """The highest and the lowest cell; of equal ones the first and the last, so that they are two."""
        by_value = sorted(group, key=lambda cell: -scale.value(cell).mean)
        return by_value[0], by_value[-1]

    def along(self, cell: Cell) -> dict[str, str]:
        """The labels of a cell within its group."""
        return {axis: cell.labels[axis] for axis in self.over}

    def what(self, pair: Pair) -> str:
        """What is compared with what."""
        return f"{in_words(pair.better)} against {in_words(pair.than)}"


def in_words(labels: dict[str, str]) -> str:
    """Labels in one line."""
    return " · ".join(itertools.starmap(headed, labels.items()))
