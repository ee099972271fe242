"""Several methods on several data sets: do their ranks differ, and which of them by more than chance (Demšar, 2006)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipeline.report.statistics.power import LEVEL


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean ranks.

    Attributes:
        mean_ranks: [methods]; 1 is the best.
        p: Of the Friedman test that all have the same rank, by its χ² distribution.
        critical: The difference of mean ranks beyond which two methods differ (Nemenyi).
        groups: The largest sets of methods, best first, that cannot be told apart; all of them where `p` is above
            5 %. Methods that stand alone are in none.
    """

    mean_ranks: NDArray[np.float64]
    p: float
    critical: float
    groups: list[list[int]]


def rank_methods(scores: NDArray[np.float64]) -> Ranking:
    """Rank methods on each data set, equal scores sharing the mean of their ranks, and compare the mean ranks.

    The data sets are what is counted: each gives one rank per method, and they are assumed to be independent.

    Args:
        scores: [data sets, methods], two methods at least; the highest is the best.
    """
    ranks = np.apply_along_axis(stats.rankdata, 1, -scores)
    count, methods = ranks.shape
    mean_ranks = ranks.mean(axis=0)
    # The variance of ranks within data sets, ties included, is what chance alone gives the sums (Conover, 1999).
    chance = float(((ranks - (methods + 1) / 2) ** 2).sum()) / (methods - 1)
    spread = float(((ranks.sum(axis=0) - count * (methods + 1) / 2) ** 2).sum())
    p = float(stats.chi2.sf(spread / chance, methods - 1)) if chance else 1.0
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(methods * (methods + 1) / (6 * count))
    return Ranking(mean_ranks, p, critical, _groups(mean_ranks, critical if p <= LEVEL else math.inf))


def _groups(mean_ranks: NDArray[np.float64], critical: float) -> list[list[int]]:
    order = [int(method) for method in np.argsort(mean_ranks, kind="stable")]
    groups: list[list[int]] = []
    reached = 0
    for at, first in enumerate(order):
        end = next(
            (i for i in range(at, len(order)) if mean_ranks[order[i]] - mean_ranks[first] > critical), len(order)
        )
        if end > max(reached, at + 1):
            groups.append(order[at:end])
            reached = end
    return groups
