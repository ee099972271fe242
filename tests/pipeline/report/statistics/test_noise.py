"""The one rule for noise, against SciPy and numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from pipeline.report.statistics.noise import BEYOND, NO_VERDICT, WITHIN, beside_published, half_interval

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
