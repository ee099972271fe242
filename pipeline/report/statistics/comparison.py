"""Whether one method is better than another: differences paired by seed and by client, judged over the seeds.

The clients of a run share one training: its initial weights, its order of batches, its server. What another seed would
change therefore shows between seeds alone, however many clients there are, and so the seed is what is counted: each
gives one number, the mean over its clients of the paired differences. A test over clients would answer another
question (would other clients of this very training agree?), and calls chance a result when it is taken for an answer
to this one. One seed decides nothing.

Over seeds it is the t test. Three of them cannot reach 5 % by flipping signs, whatever they are: there are eight ways,
so the smallest p is 2/8. What t asks for in return is that the differences of seeds are about normal, which means over
clients and test samples are. Where signs can be flipped often enough their p stands beside it, as a check of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.report.statistics.noise import half_interval
from pipeline.report.statistics.power import least_detectable
from pipeline.report.statistics.resampling import sign_flips

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """By how much the first is larger than the second, and what that is worth. Unit: that of the values.

    Attributes:
        difference: The mean over seeds; NaN where no seed has both.
        low, high: Its interval at 95 %; infinite where the spread between seeds is not known.
        p: Two-sided; 1 where the spread is not known.
        n: Seeds.
        spread: The standard deviation between seeds of the difference; NaN for fewer than two.
        least: The difference that so many seeds of that spread detect in four of five cases; infinite where unknown.
        flipped: The p of the sign-flip test, which assumes no normality; NaN for so few seeds that it cannot reach 5 %.
    """

    difference: float
    low: float
    high: float
    p: float
    n: int
    spread: float
    least: float
    flipped: float


def paired_differences(first: Array, second: Array) -> Array:
    """First less second, [seeds, clients], of two arrays of that shape or of [seeds].

    What either side lacks (NaN) is NaN. Seeds in which nothing is left are left out, so there may be none.

    Raises:
        ValueError: The shapes differ, or have more than two axes.
    """
    one, other = (np.asarray(side, dtype=np.float64) for side in (first, second))
    if one.shape != other.shape or one.ndim not in (1, 2):
        raise ValueError(f"{one.shape} and {other.shape} are not seeds, or seeds and clients, of two sides")
    differences = (one - other).reshape(len(one), -1)
    return differences[~np.isnan(differences).all(axis=1)]


def compare(first: Array, second: Array) -> Comparison:
    """The two sides as a paired comparison over seeds.

    Seeds are assumed to be exchangeable, and their mean differences to be normal; of clients nothing is assumed, not
    even that there is more than one. Where all seeds differ by the same to the last digit their spread is that of
    rounding and not of chance, so it counts as not known.

    Args:
        first, second: [seeds, clients] or [seeds]; the same seed and client at the same place, NaN where missing.

    Raises:
        ValueError: The shapes differ, or have more than two axes.
    """
    differences = paired_differences(first, second)
    n = len(differences)
    if not n:
        return Comparison(math.nan, -math.inf, math.inf, 1.0, 0, math.nan, math.inf, math.nan)
    by_seed = np.nanmean(differences, axis=1)
    difference = float(by_seed.mean())
    spread = float(by_seed.std(ddof=1)) if n > 1 else math.nan
    reach = half_interval(by_seed.tolist()) if n > 1 else math.inf
    if math.isinf(reach):
        return Comparison(difference, -math.inf, math.inf, 1.0, n, spread, math.inf, math.nan)
    from scipy import stats  # takes longer to import than most reports to write

    error = spread / math.sqrt(n)
    return Comparison(
        difference=difference,
        low=difference - reach,
        high=difference + reach,
        p=float(2 * stats.t.sf(abs(difference) / error, n - 1)),
        n=n,
        spread=spread,
        least=least_detectable(n, spread),
        flipped=sign_flips(by_seed),
    )


def holm(ps: Sequence[float]) -> list[float]:
    """The p of several comparisons, in their order, so that any false one is as likely as a single one alone."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = largest
    return adjusted
