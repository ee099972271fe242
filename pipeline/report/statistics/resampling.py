"""Statistics that draw from what was measured instead of assuming a distribution: bootstrap and sign flips."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipeline.report.statistics.power import LEVEL

Array = NDArray[np.float64]

RESAMPLES = 9999
"""How often is drawn."""
_ALL = 13  # Of so many seeds all signs are fewer than that, so all are tried.


def bootstrap_interval(differences: Array) -> tuple[float, float]:
    """The interval at 95 % of a mean difference, by the bootstrap over seeds, or over the clients of a single one.

    Of several seeds each is drawn as a whole, with all its clients (the cluster bootstrap): seeds are assumed to be
    exchangeable, clients of one seed are not, nor is anything assumed about them. Of a single seed its clients are
    drawn, as if they were exchangeable; that says what other clients of the same training would change, and nothing
    about another seed. Either is too narrow where there are few to draw from: of three seeds it covers the truth in
    about three of four cases instead of 19 of 20. So verdicts do not go by it.

    The interval is BCa; where that is not defined it is the one of percentiles. The same input gives the same interval.

    Args:
        differences: [seeds, clients], NaN where a client is missing; of each seed there is one client at least.

    Returns:
        Its ends; infinite ones where there is but one seed with one client, or nothing.
    """
    units = np.nanmean(differences, axis=1) if len(differences) > 1 else differences[~np.isnan(differences)]
    if len(units) < 2:
        return -math.inf, math.inf
    if np.ptp(units) == 0:
        return float(units[0]), float(units[0])
    from scipy import stats  # takes longer to import than most reports to write

    for method in ("BCa", "percentile"):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # that BCa is not defined is asked for below
            found = stats.bootstrap(
                (units,),
                np.mean,
                n_resamples=RESAMPLES,
                confidence_level=1 - LEVEL,
                method=method,
                random_state=np.random.default_rng(0),
            ).confidence_interval
        if np.isfinite(found).all():
            break
    return float(found.low), float(found.high)


def sign_flips(by_seed: Array) -> float:
    """The two-sided p of the test that flips signs: if neither method were better, each seed could as well have had
    the opposite difference. Nothing else is assumed.

    Args:
        by_seed: One mean difference per seed.

    Returns:
        NaN where the seeds are so few that no differences whatever could reach :data:`LEVEL`.
    """
    n = len(by_seed)
    if 2.0 ** (1 - n) > LEVEL:
        return math.nan
    observed = abs(by_seed.sum()) * (1 - 1e-12)  # equal but for rounding is equal
    if n <= _ALL:
        return float(np.mean(np.abs(_signs(n) @ by_seed) >= observed))
    drawn = np.random.default_rng(0).choice((-1.0, 1.0), (RESAMPLES, n))
    return float((1 + np.sum(np.abs(drawn @ by_seed) >= observed)) / (1 + RESAMPLES))


@cache
def _signs(n: int) -> Array:
    """All ways to sign so many seeds, [2ⁿ, n]."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
