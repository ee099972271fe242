"""Paired comparisons against numbers made by hand, and against scipy's own t test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.report.statistics.comparison import compare, holm, paired_differences
from pipeline.report.statistics.power import LEVEL

NAN = math.nan


def test_three_seeds_by_hand() -> None:
    # Differences 1, 2, 6: mean 3, deviation √7, error √(7/3), and t with two degrees is 4.3027.
    found = compare(np.array([71.0, 73.0, 79.0]), np.array([70.0, 71.0, 73.0]))
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
def test_it_is_the_t_test_of_the_seeds_means(n: int) -> None:
    random = np.random.default_rng(3)
    seeds = random.normal(0, 4, (n, 1))
    first, second = (70 + seeds + random.normal(shift, 2, (n, 20)) for shift in (1.5, 0.0))
    found, known = compare(first, second), stats.ttest_rel(first.mean(axis=1), second.mean(axis=1))
    assert found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval(0.95)))
    turned = compare(second, first)
    assert (turned.difference, turned.low) == pytest.approx((-found.difference, -found.high))
    assert turned.p == pytest.approx(found.p)


def test_many_clients_do_not_stand_for_seeds() -> None:
    # Within either seed all of fifty clients agree; that the seeds do not is what counts.
    first, second = np.full((2, 50), 70.0), np.full((2, 50), 70.0)
    first[0] += 4 + np.linspace(-1, 1, 50)
    first[1] += np.linspace(-1, 1, 50)
    assert compare(first, second).p > LEVEL


@pytest.mark.parametrize("n", [3, 6])
def test_equal_methods_are_called_different_in_one_of_twenty(n: int) -> None:
    random = np.random.default_rng(n)
    by_seeds, by_clients, draws = 0, 0, 1500
    for _ in range(draws):
        sides = random.normal(0, 1.5, (2, n, 1)) + random.normal(0, 3, (2, n, 20))  # trainings, and clients within
        by_seeds += compare(*sides).p <= LEVEL
        by_clients += stats.ttest_1samp((sides[0] - sides[1]).ravel(), 0.0).pvalue <= 0.05
    assert by_seeds / draws == pytest.approx(0.05, abs=0.017)
    assert by_clients / draws > 0.3  # what clients would say in the place of seeds


def test_one_seed_decides_nothing() -> None:
    found = compare(np.linspace(80, 90, 40)[None], np.linspace(40, 50, 40)[None])
    assert (found.difference, found.n, found.p) == (pytest.approx(40.0), 1, 1.0)
    assert (found.low, found.high, found.least) == (-math.inf, math.inf, math.inf)
    assert found.p > LEVEL


def test_seeds_that_agree_to_the_last_digit_say_nothing_of_chance() -> None:
    found = compare(np.array([90.1, 91.1, 92.1]), np.array([90.0, 91.0, 92.0]))  # 0.1, but for rounding
    assert (found.low, found.high, found.p, found.n) == (-math.inf, math.inf, 1.0, 3)
    same = compare(np.array([90.0, 91.0]), np.array([90.0, 91.0]))
    assert (same.difference, same.p) == (0.0, 1.0)


def test_what_either_side_lacks_is_left_out_of_both() -> None:
    first = np.array([[1.0, NAN, 9.0], [4.0, 5.0, 6.0], [NAN, 7.0, 7.0]])
    second = np.array([[0.0, 0.0, NAN], [1.0, 3.0, 5.0], [7.0, NAN, NAN]])
    assert np.array_equal(paired_differences(first, second), [[1, NAN, NAN], [3, 2, 1]], equal_nan=True)
    found = compare(first, second)
    assert (found.difference, found.n) == (1.5, 2)
    nothing = compare(np.array([NAN, 1.0]), np.array([1.0, NAN]))
    assert (nothing.n, nothing.p, math.isnan(nothing.difference)) == (0, 1.0, True)
    assert (nothing.low, nothing.high, nothing.least) == (-math.inf, math.inf, math.inf)
    assert math.isnan(nothing.spread) and math.isnan(nothing.flipped)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="not seeds"):
        compare(np.zeros((3, 2)), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="not seeds"):
        compare(np.zeros((3, 2, 1)), np.zeros((3, 2, 1)))


def test_holm_by_hand() -> None:
    # In order 0.005·4, 0.01·3, 0.03·2, and 0.04·1, which may not be less than the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
