"""How much of a difference may be chance: see :mod:`pipeline.report.statistics.noise`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.report.statistics.comparison import Comparison
from pipeline.report.statistics.noise import half_interval


@dataclass(frozen=True)
class Chance:
    """A difference, and what it is worth. Unit: percentage points.

    Attributes:
        low, high: Where the true difference is at 95 %; infinite where seeds do not tell.
        p: Of the difference against what the claim asks for, two-sided. Of printed values 0 where the interval
            leaves out what is asked for, else 1.
        seeds: Those that both sides have; None: the values are printed ones.
        spread: The standard deviation of the difference between seeds; NaN where it is not known.
        least: The difference that so many seeds detect in four of five cases; infinite where that is unknown.
        flipped: p by flipping the signs of seeds; NaN for too few of them.
        clients: Of a single seed how many clients there are, and the interval over these.
        between_clients: Whether the deviation of printed values is the one between a run's clients.
    """

    difference: float
    low: float
    high: float
    p: float
    seeds: int | None = None
    spread: float = math.nan
    least: float = math.inf
    flipped: float = math.nan
    clients: tuple[int, float, float] | None = None
    between_clients: bool = False

    @property
    def size(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def over_seeds(found: Comparison, asked: float) -> Chance:
    """Of a comparison in which what the claim asks for has been taken off the first side."""
    low, high = found.low + asked, found.high + asked
    return Chance(found.difference + asked, low, high, found.p, found.n, found.spread, found.least, found.flipped)


def of_printed(difference: float, asked: float, deviation: float, *, between_clients: bool = False) -> Chance:
    """Of values of which their ± is all that is known."""
    size = half_interval((), deviation)
    beyond = round(abs(difference - asked), 9) > size
    return Chance(
        difference, difference - size, difference + size, 0.0 if beyond else 1.0, between_clients=between_clients
    )
