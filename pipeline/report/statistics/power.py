"""What so many seeds can tell: the least difference they detect, and how many a difference needs."""

from __future__ import annotations

import math
from functools import cache

LEVEL = 0.05
"""The error that is allowed: how often chance alone is called a difference."""
POWER = 0.8
"""How often a difference is to be noticed that is there."""
MOST_SEEDS = 1000
"""Beyond so many seeds nobody wants to know how many more."""


def least_detectable(n: int, spread: float, level: float = LEVEL) -> float:
    """The true difference that a paired t test detects with :data:`POWER`; infinite for fewer than two pairs.

    Args:
        n: Pairs, such as seeds.
        spread: The standard deviation of their differences.
        level: The allowed error of the test, of two sides.
    """
    return spread * _least(n, level) if n > 1 else math.inf


def seeds_needed(difference: float, spread: float, level: float = LEVEL) -> int | None:
    """The fewest seeds that detect `difference` with :data:`POWER`; None where :data:`MOST_SEEDS` do not suffice."""
    enough, too_few = MOST_SEEDS, 1
    if not least_detectable(enough, spread, level) <= abs(difference):
        return None
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if least_detectable(middle, spread, level) <= abs(difference):
            enough = middle
        else:
            too_few = middle
    return enough


@cache
def _least(n: int, level: float) -> float:
    """The least detectable difference in standard deviations of a pair."""
    from scipy import optimize, stats  # takes longer to import than most reports to write

    bar = float(stats.t.ppf(1 - level / 2, n - 1))

    def lacking(shift: float) -> float:
        # The other tail counts next to nothing where the power is large.
        return float(stats.nct.sf(bar, n - 1, shift)) - POWER

    return float(optimize.brentq(lacking, 0.0, 10 * (bar + 1))) / math.sqrt(n)
