"""Spreads of paired values against the correlation they are tested by, and against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.report.statistics.spreads import compare_spreads


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


@pytest.mark.parametrize("n", [3, 6])
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
