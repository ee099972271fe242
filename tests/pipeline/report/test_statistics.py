"""Paired comparisons against numbers made by hand, and against scipy's own t test."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import friedmanchisquare

from pipeline.report.statistics import (
    BEYOND,
    LEVEL,
    NO_VERDICT,
    WITHIN,
    beside_published,
    bootstrap_interval,
    compare,
    compare_spreads,
    half_interval,
    holm,
    least_detectable,
    moderated,
    moderated_ps,
    rank_methods,
    sign_flips,
)


def test_three_seeds_by_hand() -> None:
    # Differences 1, 2, 6: mean 3, deviation √7, error √(7/3), and t with two degrees is 4.3027.
    found = compare(np.array([1.0, 2.0, 6.0]))
    assert (found.difference, found.n) == (3.0, 3)
    assert found.spread == pytest.approx(math.sqrt(7))
    assert found.low == pytest.approx(3 - 4.30265 * math.sqrt(7 / 3), abs=1e-4)
    assert found.high == pytest.approx(3 + 4.30265 * math.sqrt(7 / 3), abs=1e-4)
    # With two degrees of freedom the distribution is (1 + t/√(2 + t²)) / 2.
    t = 3 / math.sqrt(7 / 3)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.p > LEVEL
    assert math.isnan(found.flipped)


@pytest.mark.parametrize("n", [4, 9])
def test_it_is_the_paired_t_test(n: int) -> None:
    random = np.random.default_rng(3)
    seeds = random.normal(0, 4, n)
    first, second = (70 + seeds + random.normal(shift, 2, n) for shift in (1.5, 0.0))
    found, known = compare(first - second), stats.ttest_rel(first, second)
    assert found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval(0.95)))


@pytest.mark.parametrize("n", [3])
def test_equal_methods_are_called_different_in_one_of_twenty(n: int) -> None:
    random = np.random.default_rng(n)
    by_seeds, by_clients, draws = 0, 0, 1500
    for _ in range(draws):
        sides = random.normal(0, 1.5, (2, n, 1)) + random.normal(0, 3, (2, n, 20))  # trainings, and clients within
        by_seeds += compare((sides[0] - sides[1]).mean(axis=1)).p <= LEVEL
        by_clients += stats.ttest_1samp((sides[0] - sides[1]).ravel(), 0.0).pvalue <= 0.05
    assert by_seeds / draws == pytest.approx(0.05, abs=0.017)
    assert by_clients / draws > 0.3  # what clients would say in the place of seeds


@pytest.mark.parametrize(
    ("differences", "mean"),
    [
        ([40.0], 40.0),  # one seed decides nothing
        ([90.1 - 90.0, 91.1 - 91.0, 92.1 - 92.0], 0.1),  # but for rounding they are the same
        ([0.0, 0.0], 0.0),
        ([], math.nan),
    ],
)
def test_where_the_spread_of_seeds_is_not_known(differences: list[float], mean: float) -> None:
    found = compare(np.array(differences))
    assert (found.difference, found.n) == (pytest.approx(mean, nan_ok=True), len(differences))
    assert (found.low, found.high, found.p, found.least) == (-math.inf, math.inf, 1.0, math.inf)


def test_holm_by_hand() -> None:
    # In order 0.005·4, 0.01·3, 0.03·2, and 0.04·1, which may not be less than the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


# Comparisons that share what they know of chance, on draws of which the truth is known.


def test_the_spread_of_true_variances_is_found() -> None:
    random, degrees, own, common = np.random.default_rng(0), 6.0, 2.0, 4.0
    true = common * degrees / random.chisquare(degrees, 40_000)
    seen = true * random.chisquare(own, len(true)) / own
    moved, of_moved = moderated(seen, np.full(len(seen), own))
    assert of_moved == pytest.approx(degrees + own, rel=0.05)
    assert moved == pytest.approx((degrees * common + own * seen) / (degrees + own), rel=0.05)
    # What was drawn towards the common one is nearer to the truth than what was seen, in proportion.
    assert np.log(moved / true).var() < 0.3 * np.log(seen / true).var()


def test_variances_that_scatter_as_chance_has_it_become_one() -> None:
    seen, degrees = np.array([1.0, 1.1, 0.9, 1.05]), np.array([2.0, 2.0, 4.0, 4.0])
    moved, of_moved = moderated(seen, degrees)
    assert np.ptp(moved) == 0 and of_moved.tolist() == [12.0] * 4


def test_of_equal_methods_at_most_one_in_twenty_is_called_different() -> None:
    random, wrong, plain, tables, rivals = np.random.default_rng(1), 0, 0, 300, 20
    for _ in range(tables):
        spreads = 0.5 * np.sqrt(4.0 / random.chisquare(4.0, rivals))
        comparisons = [compare(random.normal(0, spread, 3)) for spread in spreads]
        wrong += sum(p <= 0.05 for p in moderated_ps(comparisons))
        plain += sum(one.p <= 0.05 for one in comparisons)
    assert 0.01 < wrong / (tables * rivals) < 0.05
    assert plain / (tables * rivals) == pytest.approx(0.05, abs=0.012)


def test_a_difference_is_found_that_three_seeds_alone_do_not_find() -> None:
    seeds = {"far": [8.0, 11.0, 12.5], "near": [0.5, -1.0, 2.0], "other": [1.5, -2.0, 0.0], "last": [-1.0, 1.0, 2.5]}
    comparisons = [compare(np.array(values)) for values in seeds.values()]
    far, *others = moderated_ps(comparisons)
    assert comparisons[0].p > 0.05 / 4 > 10 * far and min(others) > 0.05


def test_fewer_than_three_and_what_has_no_spread_are_left_alone() -> None:
    one, other = compare(np.array([1.0, 2.0, 4.0])), compare(np.array([1.0, 5.0, 2.0]))
    alike, alone = compare(np.ones(3)), compare(np.ones(1))
    assert moderated_ps([one, other]) == [one.p, other.p]
    assert moderated_ps([one, alike, other, alone]) == [one.p, 1.0, other.p, 1.0]
    assert moderated_ps([]) == []


# The one rule for noise, against SciPy and numbers worked out by hand.

SEEDS = [70.0, 73.0, 79.0]  # their mean is 74, they are 4, 1 and 5 from it: a variance of 21 and of 7 of the mean
T_2 = 4.302652729911275  # Student's 97.5 % quantile with two degrees of freedom


def test_two_seeds_decide_nothing() -> None:
    assert beside_published([70.0, 70.1], 10.0, None) == (NO_VERDICT, None)
    assert beside_published([70.0], 10.0, 0.1) == (NO_VERDICT, None)


@pytest.mark.parametrize(("published", "verdict"), [(62.7, WITHIN), (62.5, BEYOND), (85.3, WITHIN), (85.5, BEYOND)])
def test_without_a_printed_deviation_it_is_the_t_test_of_our_seeds(published: float, verdict: str) -> None:
    found, bound = beside_published(SEEDS, published, None)
    assert (found, bound) == (verdict, pytest.approx(T_2 * math.sqrt(7)))
    assert (stats.ttest_1samp(SEEDS, published).pvalue <= 0.05) == (found == BEYOND)


def test_a_printed_deviation_widens_it_as_that_of_one_value() -> None:
    bound = math.sqrt(T_2**2 * 7 + 1.959963984540054**2 * 9)  # 12.8
    for published, verdict in ((61.2, WITHIN), (61.1, BEYOND), (86.8, WITHIN), (86.9, BEYOND)):
        assert beside_published(SEEDS, published, 3.0) == (verdict, pytest.approx(bound))


def test_of_printed_values_alone_it_is_normal() -> None:
    assert half_interval((), math.hypot(0.3, 0.4)) == pytest.approx(1.959963984540054 * 0.5)
    assert half_interval((), 0.0) == 0.0


def test_seeds_that_do_not_differ_say_nothing_of_chance() -> None:
    assert beside_published([0.1 + 0.2, 0.3, 0.3], 0.1, 0.1) == (NO_VERDICT, None)


# What seeds can tell, against draws and against the textbook.


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_least_difference_is_found_in_four_of_five_draws(n: int) -> None:
    drawn = np.random.default_rng(n).normal(least_detectable(n, 2.5), 2.5, (20_000, n))
    found = stats.ttest_1samp(drawn, 0.0, axis=1)
    assert np.mean((found.pvalue <= 0.05) & (found.statistic > 0)) == pytest.approx(0.8, abs=0.01)


def test_the_number_of_the_textbook() -> None:
    # A paired t test notices half a standard deviation with 80 % from 34 pairs on.
    assert least_detectable(34, 1.0) <= 0.5 < least_detectable(33, 1.0)
    assert least_detectable(1, 1.0) == math.inf


# Mean ranks against tables in print and scipy's own test.

AGREED = np.array([[90.0, 80.0, 70.0]] * 6)


def test_critical_differences_are_those_in_print() -> None:
    # Demšar, 2006, table 5a, q at 5 %: 2.343 for three methods, 3.164 for ten.
    for methods, q in ((3, 2.343), (10, 3.164)):
        scores = np.random.default_rng(0).normal(size=(7, methods))
        expected = q * math.sqrt(methods * (methods + 1) / (6 * 7))
        assert rank_methods(scores).critical == pytest.approx(expected, abs=1e-3)


def test_friedman_with_and_without_ties_is_that_of_scipy() -> None:
    for decimals in (3, 0):
        scores = np.random.default_rng(1).normal(0, 1, (8, 4)).round(decimals) + np.array([0, 0, 1, 2])
        assert rank_methods(scores).p == pytest.approx(friedmanchisquare(*scores.T).pvalue)


def test_groups_of_those_within_the_critical_difference() -> None:
    # Six data sets agree: ranks 1, 2, 3; the critical difference 2.343 · √(12 / 36) = 1.353 joins neighbours only.
    found = rank_methods(AGREED)
    assert found.mean_ranks.tolist() == [1, 2, 3] and found.p == pytest.approx(math.exp(-6))
    assert found.groups == [[0, 1], [1, 2]]
    # Of a hundred nobody is joined.
    assert rank_methods(np.repeat(AGREED, 20, axis=0)).groups == []


def test_one_group_of_all_where_ranks_may_be_chance() -> None:
    scores = np.array([[1.0, 2, 3], [3, 1, 2], [2, 3, 1], [1, 2, 3], [3, 1, 2]])
    assert rank_methods(scores).groups == [[2, 0, 1]]  # sums of ranks 10, 11, 9
    assert rank_methods(scores).p > 0.05
    equal = rank_methods(np.ones((5, 3)))
    assert equal.p == 1.0 and equal.mean_ranks.tolist() == [2, 2, 2] and equal.groups == [[0, 1, 2]]


# Bootstrap and sign flips against exact enumeration and known cases.


def test_sign_flips_are_all_of_them() -> None:
    by_seed = np.array([0.3, 1.1, -0.2, 0.9, 0.4, 0.7, 2.0])
    means = [np.mean(by_seed * signs) for signs in itertools.product((1, -1), repeat=7)]
    exact = np.mean([abs(mean) >= by_seed.mean() - 1e-12 for mean in means])
    assert sign_flips(by_seed) == pytest.approx(exact)
    assert 0.01 < exact < 0.05
    assert sign_flips(-by_seed) == pytest.approx(exact)


def test_five_seeds_are_too_few_for_sign_flips() -> None:
    assert math.isnan(sign_flips(np.full(5, 3.0) + np.arange(5)))  # 2/32 at best
    assert sign_flips(np.full(6, 3.0) + np.arange(6)) == pytest.approx(2 / 64)


def test_the_interval_is_bca() -> None:
    clients = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 11.0, 2.5])
    ends = {}
    for method in ("BCa", "percentile"):
        random = np.random.default_rng(0)
        found = stats.bootstrap((clients,), np.mean, n_resamples=9999, method=method, rng=random)
        ends[method] = tuple(found.confidence_interval)
    assert bootstrap_interval(clients) == pytest.approx(ends["BCa"])
    assert ends["BCa"] != pytest.approx(ends["percentile"], abs=0.2)


def test_of_many_clients_it_is_the_normal_one() -> None:
    clients = np.random.default_rng(1).normal(2.0, 3.0, 400)
    error = clients.std(ddof=1) / math.sqrt(400)
    ends = clients.mean() - 1.96 * error, clients.mean() + 1.96 * error
    assert bootstrap_interval(clients) == pytest.approx(ends, abs=0.03)


def test_where_nothing_can_be_drawn() -> None:
    assert bootstrap_interval(np.array([1.0])) == (-math.inf, math.inf)
    assert bootstrap_interval(np.array([2.0, 2.0])) == (2.0, 2.0)
    assert bootstrap_interval(np.array([1.0, 4.0])) == (1.0, 4.0)


# Spreads of paired values against the correlation they are tested by, and against draws.


def test_it_is_the_correlation_of_sum_and_difference() -> None:
    first, second = np.array([1.0, 5.0, 2.0, 9.0, 4.0]), np.array([2.0, 3.0, 2.5, 4.0, 2.0])
    found = compare_spreads(first, second)
    assert found.p == pytest.approx(stats.pearsonr(first + second, first - second).pvalue)
    assert found.n == 5
    turned = compare_spreads(second, first)
    assert (turned.p, turned.low, turned.high) == pytest.approx((found.p, -found.high, -found.low))


def test_the_ends_of_the_interval_are_where_p_is_the_level() -> None:
    first, second = np.random.default_rng(2).normal(0, [[3.0], [1.0]], (2, 9))
    found = compare_spreads(first, second)
    assert found.low < first.std() - second.std() < found.high
    assert compare_spreads(first, second, found.low).p == pytest.approx(0.05)
    assert compare_spreads(first, second, found.high).p == pytest.approx(0.05)
    assert compare_spreads(first, second, first.std() - second.std()).p == pytest.approx(1.0)


@pytest.mark.parametrize("n", [3])
def test_equal_spreads_are_called_different_in_one_of_twenty(n: int) -> None:
    random = np.random.default_rng(n)
    common = random.normal(0, 1, (1500, n))
    called = [
        compare_spreads(seeds + random.normal(0, 1, n), seeds + random.normal(0, 1, n)).p <= 0.05 for seeds in common
    ]
    assert np.mean(called) == pytest.approx(0.05, abs=0.018)


def test_two_seeds_and_no_spread_say_nothing() -> None:
    for first, second in (([1.0, 2.0], [1.0, 9.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])):
        found = compare_spreads(np.array(first), np.array(second))
        assert (found.low, found.high, found.p) == (-math.inf, math.inf, 1.0)
