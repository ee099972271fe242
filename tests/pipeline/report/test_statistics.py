"""Paired comparisons against numbers made by hand, SciPy's own tests, and draws of which the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.report.statistics import (
    BEYOND,
    NO_VERDICT,
    WITHIN,
    beside_published,
    compare,
    compare_spreads,
    half_interval,
    holm,
    moderated,
    moderated_ps,
    rank_methods,
    significant,
)

T_2 = 4.302652729911275  # Student's 97.5 % quantile with two degrees of freedom


def test_three_seeds_by_hand() -> None:
    # Differences 1, 2, 6: mean 3, deviation √7, error √(7/3).
    found, error = compare(np.array([1.0, 2.0, 6.0])), math.sqrt(7 / 3)
    assert (found.difference, found.n) == (3.0, 3)
    assert (found.low, found.high) == pytest.approx((3 - T_2 * error, 3 + T_2 * error))
    # With two degrees of freedom the distribution is (1 + t/√(2 + t²)) / 2.
    t = 3 / error
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t)) and found.p > 0.05
    first, second = np.random.default_rng(3).normal([[71.5], [70.0]], 4, (2, 9))
    found, known = compare(first - second), stats.ttest_rel(first, second)
    assert (found.p, found.low, found.high) == pytest.approx((known.pvalue, *known.confidence_interval(0.95)))


def test_where_the_spread_of_seeds_is_not_known() -> None:
    # One seed decides nothing, nor do those that are the same but for rounding.
    for differences, mean in (([40.0], 40.0), ([90.1 - 90.0, 91.1 - 91.0, 92.1 - 92.0], 0.1), ([], math.nan)):
        found = compare(np.array(differences))
        assert (found.difference, found.n) == (pytest.approx(mean, nan_ok=True), len(differences))
        assert (found.low, found.high, found.p) == (-math.inf, math.inf, 1.0)


def test_holm_by_hand() -> None:
    # In order 0.005·4, 0.01·3, 0.03·2, and 0.04·1, which may not be less than the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm([0.6, 0.7]), holm([])) == ([1.0, 1.0], [])


def test_the_spread_of_true_variances_is_found() -> None:
    random, degrees, own, common = np.random.default_rng(0), 6.0, 2.0, 4.0
    true = common * degrees / random.chisquare(degrees, 40_000)
    seen = true * random.chisquare(own, len(true)) / own
    moved, of_moved = moderated(seen, np.full(len(seen), own))
    assert of_moved == pytest.approx(degrees + own, rel=0.05)
    assert moved == pytest.approx((degrees * common + own * seen) / (degrees + own), rel=0.05)
    # Variances that scatter as chance has it become one.
    moved, of_moved = moderated(np.array([1.0, 1.1, 0.9, 1.05]), np.array([2.0, 2.0, 4.0, 4.0]))
    assert np.ptp(moved) == 0 and of_moved.tolist() == [12.0] * 4


def test_comparisons_share_what_they_know_of_chance() -> None:
    seeds = {"far": [8.0, 11.0, 12.5], "near": [0.5, -1.0, 2.0], "other": [1.5, -2.0, 0.0], "last": [-1.0, 1.0, 2.5]}
    comparisons = [compare(np.array(values)) for values in seeds.values()]
    far, *others = moderated_ps(comparisons)
    assert comparisons[0].p > 0.05 / 4 > 10 * far and min(others) > 0.05
    # Fewer than three are left as they are, as is what has no spread.
    one, other = compare(np.array([1.0, 2.0, 4.0])), compare(np.array([1.0, 5.0, 2.0]))
    assert moderated_ps([one, compare(np.ones(3)), other, compare(np.ones(1))]) == [one.p, 1.0, other.p, 1.0]
    # One of a single seed among others stays alone, and does not change them.
    assert moderated_ps([*comparisons, compare(np.ones(1))]) == [far, *others, 1.0]


def test_ties_are_paired_by_seeds_and_corrected_for_all_comparisons() -> None:
    best = {0: 70.0, 1: 80.0, 2: 90.0}
    others = [{0: 69.5, 1: 79.0, 2: 89.6}, {0: 69.9, 1: 80.5, 2: 88.0}, {0: 60.0, 1: 70.5, 2: 80.2}]
    ps = [stats.ttest_rel(list(best.values()), list(other.values())).pvalue for other in others]
    assert ps[2] < 0.05 / 3 and 0.05 / 2 < ps[0] < ps[1]
    assert significant([(best, other) for other in others]) == [False, False, True]
    # Seeds are paired by their number, and one decides nothing.
    unlike = [{2: 79.8, 0: 60.0, 1: 70.1}, {2: 10.0}, {3: 1.0, 4: 2.0}]
    assert significant([(best, other) for other in unlike]) == [True, None, None]


# The one rule for noise. The mean of the seeds is 74, they are 4, 1 and 5 from it: a variance of 21 and of 7 of it.


@pytest.mark.parametrize(
    ("deviation", "bound"), [(None, T_2 * math.sqrt(7)), (3.0, math.sqrt(T_2**2 * 7 + 1.959963984540054**2 * 9))]
)
def test_beside_a_published_value(deviation: float | None, bound: float) -> None:
    seeds = [70.0, 73.0, 79.0]
    for sign in (-1, 1):
        assert beside_published(seeds, 74 + sign * (bound - 0.01), deviation) == (WITHIN, pytest.approx(bound))
        assert beside_published(seeds, 74 + sign * (bound + 0.01), deviation)[0] == BEYOND
    assert beside_published(seeds[:2], 10.0, deviation) == (NO_VERDICT, None)  # two seeds decide nothing
    assert beside_published([0.1 + 0.2, 0.3, 0.3], 0.1, 0.1) == (NO_VERDICT, None)  # nor those that do not differ
    assert half_interval((), math.hypot(0.3, 0.4)) == pytest.approx(1.959963984540054 * 0.5)


# Spreads of paired values against the correlation they are tested by.


def test_the_test_of_pitman_and_morgan() -> None:
    first, second = np.array([1.0, 5.0, 2.0, 9.0, 4.0]), np.array([2.0, 3.0, 2.5, 4.0, 2.0])
    found, turned = compare_spreads(first, second), compare_spreads(second, first)
    assert found.p == pytest.approx(stats.pearsonr(first + second, first - second).pvalue) and found.n == 5
    assert (turned.p, turned.low, turned.high) == pytest.approx((found.p, -found.high, -found.low))
    # At the ends of the interval p is the level.
    assert [compare_spreads(first, second, end).p for end in (found.low, found.high)] == pytest.approx([0.05, 0.05])
    assert compare_spreads(first, second, first.std() - second.std()).p == pytest.approx(1.0)
    # Two seeds say nothing, nor does a side that does not vary.
    for few, other in (([1.0, 2.0], [1.0, 9.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])):
        found = compare_spreads(np.array(few), np.array(other))
        assert (found.low, found.high, found.p) == (-math.inf, math.inf, 1.0)


# Mean ranks against tables in print and SciPy's own test.


def test_critical_differences_and_friedman() -> None:
    # Demšar, 2006, table 5a, q at 5 %: 2.343 for three methods, 3.164 for ten.
    for methods, q in ((3, 2.343), (10, 3.164)):
        scores = np.random.default_rng(0).normal(size=(7, methods))
        expected = q * math.sqrt(methods * (methods + 1) / (6 * 7))
        assert rank_methods(scores).critical == pytest.approx(expected, abs=1e-3)
    for decimals in (3, 0):  # without and with ties
        scores = np.random.default_rng(1).normal(0, 1, (8, 4)).round(decimals) + np.array([0, 0, 1, 2])
        assert rank_methods(scores).p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)


def test_groups_of_those_within_the_critical_difference() -> None:
    # Six data sets agree: ranks 1, 2, 3; the critical difference 2.343 · √(12 / 36) = 1.353 joins neighbours only.
    found = rank_methods(np.array([[90.0, 80.0, 70.0]] * 6))
    assert found.mean_ranks.tolist() == [1, 2, 3] and found.p == pytest.approx(math.exp(-6))
    assert found.groups == [[0, 1], [1, 2]]
    chance = rank_methods(np.array([[1.0, 2, 3], [3, 1, 2], [2, 3, 1], [1, 2, 3], [3, 1, 2]]))
    assert chance.groups == [[2, 0, 1]] and chance.p > 0.05  # sums of ranks 10, 11, 9
    equal = rank_methods(np.ones((5, 3)))
    assert equal.p == 1.0 and equal.mean_ranks.tolist() == [2, 2, 2] and equal.groups == [[0, 1, 2]]
