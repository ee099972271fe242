"""Mean ranks against tables in print and scipy's own test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from pipeline.report.statistics.ranking import rank_methods

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
