"""The one rule for noise: how far two values have to be apart for chance to be no explanation.

A difference is beyond noise where its 95 % interval leaves out zero. Our side of it is Student's t over seeds. What
papers print after ± means different things, mostly unsaid: a spread over seeds, over rounds of one run, over clients.
It is taken as the standard deviation of the printed value itself. If it is that of one of n seeds, this is too wide by
√n, so it errs towards *within*; of rounds of one run it lacks the spread over the paper's seeds, which nothing tells.
Without ± a value counts as exact. The half widths of both sides are added in squares (MOVER, Zou and Donner 2008): with
three seeds it errs in at most 5 of 100 cases, where Welch's degrees of freedom err in up to 8, and let a ± make the
interval narrower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, stdev

from pipeline.report.statistics.power import LEVEL

WITHIN, BEYOND, NO_VERDICT = "within noise", "beyond noise", "no verdict"

FEWEST_SEEDS = 3
"""Of our own, below which no verdict is given beside a published value."""

LEGEND = (
    "Noise: a difference is beyond noise where its 95 % interval leaves out zero, of a claim what that asks for, and "
    "within noise otherwise; the interval is by t over our seeds, a printed ± counts as the standard deviation of the "
    f"printed value, and beside a published value fewer than {FEWEST_SEEDS} seeds of ours have no verdict."
)


def half_interval(seeds: Sequence[float], deviation: float = 0.0) -> float:
    """Return half the width of the 95 % interval of a difference; infinite where the spread of seeds is not known.

    Args:
        seeds: The difference under each of our seeds [seeds]; none where both of its values are printed.
        deviation: The ± of the printed values in it, added in squares; 0 where none is printed.
    """
    printed = NormalDist().inv_cdf(1 - LEVEL / 2) * deviation
    if not len(seeds):
        return printed
    # Seeds that differ by the same to the last digit differ by rounding and not by chance.
    if len(seeds) < 2 or max(seeds) - min(seeds) <= 1e-9 * max(map(abs, seeds)):
        return math.inf
    from scipy import stats  # takes longer to import than most reports to write

    return math.hypot(float(stats.t.ppf(1 - LEVEL / 2, len(seeds) - 1)) * stdev(seeds) / math.sqrt(len(seeds)), printed)


def beside_published(seeds: Sequence[float], published: float, deviation: float | None) -> tuple[str, float | None]:
    """Return the verdict on what is obtained beside a published value, and by how much the two may differ by chance.

    Args:
        seeds: What is obtained under each seed [seeds], in percent.
        deviation: The ± of the published value; None where none is printed.
    """
    if len(seeds) < FEWEST_SEEDS:
        return NO_VERDICT, None
    differences = [value - published for value in seeds]
    bound = half_interval(differences, deviation or 0.0)
    if math.isinf(bound):
        return NO_VERDICT, None
    return WITHIN if abs(math.fsum(differences) / len(differences)) <= bound else BEYOND, bound
