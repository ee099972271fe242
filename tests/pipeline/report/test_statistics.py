"""Paired comparisons against numbers made by hand, SciPy's own tests, and draws of which the truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.report import statistics as ours
from pipeline.report.statistics import BEYOND, NO_VERDICT, WITHIN, compare, compare_spreads, holm, noise_verdict

T_2, Z = 4.302652729911275, 1.959963984540054  # the 97.5 % quantiles of Student, two degrees of freedom, and Gauss
UNKNOWN = (-math.inf, math.inf, 1.0)


def test_paired_differences():
    # Differences 1, 2, 6: mean 3, deviation √7, error √(7/3); with two degrees of freedom p is 1 - t / √(2 + t²).
    found, error = compare(np.array([1.0, 2.0, 6.0])), math.sqrt(7 / 3)
    t = 3 / error
    assert (found.difference, found.n, found.low, found.high) == pytest.approx((3, 3, 3 - T_2 * error, 3 + T_2 * error))
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    first, second = np.random.default_rng(3).normal([[71.5], [70.0]], 4, (2, 9))
    found, known = compare(first - second), stats.ttest_rel(first, second)
    assert (found.p, found.low, found.high) == pytest.approx((known.pvalue, *known.confidence_interval(0.95)))
    # One seed decides nothing, nor do those that are the same but for rounding.
    for differences, mean in (([40.0], 40.0), ([90.1 - 90.0, 91.1 - 91.0, 92.1 - 92.0], 0.1), ([], math.nan)):
        found = compare(np.array(differences))
        assert (found.difference, found.n) == (pytest.approx(mean, nan_ok=True), len(differences))
        assert (found.low, found.high, found.p) == UNKNOWN
    # Holm: in order 0.005·4, 0.01·3, 0.03·2, and 0.04·1, which may not be less than the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm([0.6, 0.7]), holm([])) == ([1.0, 1.0], [])


def test_the_spread_of_true_variances_is_found():
    random, degrees, own, common = np.random.default_rng(0), 6.0, 2.0, 4.0
    true = common * degrees / random.chisquare(degrees, 40_000)
    seen = true * random.chisquare(own, len(true)) / own
    moved, of_moved = ours.moderate_variances(seen, np.full(len(seen), own))
    assert of_moved == pytest.approx(degrees + own, rel=0.05)
    assert moved == pytest.approx((degrees * common + own * seen) / (degrees + own), rel=0.05)
    # Variances that scatter as chance has it become one.
    moved, of_moved = ours.moderate_variances(np.array([1.0, 1.1, 0.9, 1.05]), np.array([2.0, 2.0, 4.0, 4.0]))
    assert np.ptp(moved) == 0 and of_moved.tolist() == [12.0] * 4


def test_comparisons_share_what_they_know_of_chance():
    seeds = [8.0, 11.0, 12.5], [0.5, -1.0, 2.0], [1.5, -2.0, 0.0], [-1.0, 1.0, 2.5]
    comparisons = [compare(np.array(values)) for values in seeds]
    far, *others = ours.moderated_p_values(comparisons)
    assert comparisons[0].p > 0.05 / 4 > 10 * far and min(others) > 0.05
    # Fewer than three are left as they are, as is what has no spread; one of a single seed does not change others.
    one, other = compare(np.array([1.0, 2.0, 4.0])), compare(np.array([1.0, 5.0, 2.0]))
    assert ours.moderated_p_values([one, compare(np.ones(3)), other, compare(np.ones(1))]) == [one.p, 1.0, other.p, 1.0]
    assert ours.moderated_p_values([*comparisons, compare(np.ones(1))]) == [far, *others, 1.0]


def test_ties_are_paired_by_seeds_and_corrected_for_all_comparisons():
    best, near = {0: 70.0, 1: 80.0, 2: 90.0}, {0: 69.0, 1: 78.5, 2: 88.0}  # t is √27, so p is 0.035: enough for one
    assert ours.significant([(best, near)]) == [True] and ours.significant([(best, near)] * 2) == [False, False]
    # Seeds are paired by their number, and one decides nothing.
    # What is known of the spread of others helps, though they have no verdict.
    others = [(best, {0: 40.0, 1: 50.1, 2: 60.2}), (best, {0: 30.0, 1: 40.1, 2: 49.9})]
    wide = {0: 69.0, 1: 78.0, 2: 89.0}
    assert ours.significant([(best, wide)]) == [False] and ours.significant([(best, wide)], others) == [True]
    unlike = [{2: 79.8, 0: 60.0, 1: 70.1}, {2: 10.0}, {3: 1.0, 4: 2.0}]
    assert ours.significant([(best, other) for other in unlike]) == [True, None, None]


def test_beside_a_published_value():
    seeds = [70.0, 73.0, 79.0]  # their mean is 74, they are 4, 1 and 5 from it: a variance of 21 and of 7 of it
    for deviation, bound in ((None, T_2 * math.sqrt(7)), (3.0, math.hypot(T_2 * math.sqrt(7), Z * 3))):
        for sign in (-1, 1):
            assert noise_verdict(seeds, 74 + sign * (bound - 0.01), deviation) == (WITHIN, pytest.approx(bound))
            assert noise_verdict(seeds, 74 + sign * (bound + 0.01), deviation)[0] == BEYOND
        assert noise_verdict(seeds[:2], 10.0, deviation) == (NO_VERDICT, None)  # two seeds decide nothing
    assert noise_verdict([0.1 + 0.2, 0.3, 0.3], 0.1, 0.1) == (NO_VERDICT, None)  # nor those that do not differ


def test_spreads_by_the_correlation_of_pitman_and_morgan():
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
        assert (found.low, found.high, found.p) == UNKNOWN


def test_mean_ranks():
    for methods, q in ((3, 2.343), (10, 3.164)):  # Demšar, 2006, table 5a, at 5 %
        scores = np.random.default_rng(0).normal(size=(7, methods))
        expected = q * math.sqrt(methods * (methods + 1) / (6 * 7))
        assert ours.rank_methods(scores).critical == pytest.approx(expected, abs=1e-3)
    for decimals in (3, 0):  # without and with ties
        scores = np.random.default_rng(1).normal(0, 1, (8, 4)).round(decimals) + np.array([0, 0, 1, 2])
        assert ours.rank_methods(scores).p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)
    chance = ours.rank_methods(np.array([[1.0, 2, 3], [3, 1, 2], [2, 3, 1], [1, 2, 3], [3, 1, 2]]))
    assert chance.groups == [[2, 0, 1]] and chance.p > 0.05  # sums of ranks 10, 11, 9
    equal = ours.rank_methods(np.ones((5, 3)))
    assert equal.p == 1.0 and equal.mean_ranks.tolist() == [2, 2, 2] and equal.groups == [[0, 1, 2]]
