"""What so many seeds can tell: the least difference that they detect."""

from __future__ import annotations

import math
from functools import cache

LEVEL = 0.05
"""The error that is allowed: how often chance alone is called a difference."""
POWER = 0.8
"""How often a difference is to be noticed that is there."""


def least_detectable(n: int, spread: float) -> float:
    """Return the true difference that a two-sided paired t test at :data:`LEVEL` detects with :data:`POWER`.

    It is infinite for fewer than two pairs.

    Args:
        n: Pairs, such as seeds.
        spread: The standard deviation of their differences.
    """
    return spread * _least(n) if n > 1 else math.inf


@cache
def _least(n: int) -> float:
    """Return the least detectable difference in standard deviations of a pair."""
    from scipy import optimize, stats  # takes longer to import than most reports to write

    bar = float(stats.t.ppf(1 - LEVEL / 2, n - 1))

    def lacking(shift: float) -> float:
        # The other tail counts next to nothing where the power is large.
        return float(stats.nct.sf(bar, n - 1, shift)) - POWER

    return float(optimize.brentq(lacking, 0.0, 10 * (bar + 1))) / math.sqrt(n)
