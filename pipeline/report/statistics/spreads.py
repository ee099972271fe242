"""Whether one method spreads more over the seeds than another: the test of Pitman and Morgan for paired values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.report.statistics.power import LEVEL

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Spreads:
    """By how much the first spreads more than the second: the interval of the difference of their deviations, the p of
    what was asked for, and the number of seeds. Fewer than three say nothing.
    """

    low: float
    high: float
    p: float
    n: int


def compare_spreads(first: Array, second: Array, asked: float = 0.0) -> Spreads:
    """Two population standard deviations over the same seeds.

    Values are assumed to be jointly normal and exchangeable over seeds. Then sum and difference of the two sides are
    correlated exactly if one side varies more, which is what is tested; other ratios are tested after scaling. A ratio
    of deviations is turned into a difference at their geometric mean, so that of no difference p is exact.

    Args:
        first, second: [seeds].
        asked: The difference that p is about.
    """
    n = len(first)
    ours, theirs = float(first.std()) if n else 0.0, float(second.std()) if n else 0.0
    if n < 3 or min(ours, theirs) <= 1e-9:
        return Spreads(-math.inf, math.inf, 1.0, n)
    from scipy import stats  # takes longer to import than most reports to write

    correlation = float(np.corrcoef(first, second)[0, 1])
    bar = float(stats.t.ppf(1 - LEVEL / 2, n - 2))
    half = 2 * (1 - correlation**2) * bar**2 / (n - 2)
    # By this the deviations may be off, one to either side, at the end of the interval of their ratio.
    factor = (1 + half + math.sqrt(half * (half + 2))) ** 0.25
    # And by this where they differ by just what is asked for.
    shift = (math.sqrt(asked**2 + 4 * ours * theirs) - asked) / (2 * theirs)
    scaled = first * theirs * shift**2 / ours
    return Spreads(ours / factor - theirs * factor, ours * factor - theirs / factor, _pitman(scaled, second), n)


def _pitman(first: Array, second: Array) -> float:
    from scipy import stats

    correlation = min(1.0, abs(float(np.corrcoef(first + second, first - second)[0, 1])))
    if correlation == 1.0:
        return 0.0
    n = len(first)
    return float(2 * stats.t.sf(correlation * math.sqrt((n - 2) / (1 - correlation**2)), n - 2))
