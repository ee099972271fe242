"""Comparisons that share what they know of chance, on draws of which the truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.report.statistics.comparison import compare
from pipeline.report.statistics.moderation import moderated, moderated_ps


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


def test_variances_that_are_known_well_and_scatter_less_than_that_become_one() -> None:
    moved, of_moved = moderated(np.array([1.0, 1.1, 0.95]), np.full(3, 12.0))
    assert np.ptp(moved) == 0 and of_moved.tolist() == [36.0] * 3


def test_variances_that_scatter_widely_stay_what_they_are() -> None:
    seen, degrees = np.array([1e-6, 1e-2, 1.0, 1e3, 1e6]), np.full(5, 9.0)
    moved, of_moved = moderated(seen, degrees)
    assert moved[1:] == pytest.approx(seen[1:], rel=0.1) and of_moved == pytest.approx(9.0, abs=1)


def test_of_equal_methods_at_most_one_in_twenty_is_called_different() -> None:
    random, wrong, plain, tables, rivals = np.random.default_rng(1), 0, 0, 300, 20
    for _ in range(tables):
        spreads = 0.5 * np.sqrt(4.0 / random.chisquare(4.0, rivals))
        comparisons = [compare(random.normal(0, spread, 3), np.zeros(3)) for spread in spreads]
        wrong += sum(p <= 0.05 for p in moderated_ps(comparisons))
        plain += sum(one.p <= 0.05 for one in comparisons)
    assert 0.01 < wrong / (tables * rivals) < 0.05
    assert plain / (tables * rivals) == pytest.approx(0.05, abs=0.012)


def test_a_difference_is_found_that_three_seeds_alone_do_not_find() -> None:
    seeds = {"far": [8.0, 11.0, 12.5], "near": [0.5, -1.0, 2.0], "other": [1.5, -2.0, 0.0], "last": [-1.0, 1.0, 2.5]}
    comparisons = [compare(np.array(values), np.zeros(3)) for values in seeds.values()]
    far, *others = moderated_ps(comparisons)
    assert comparisons[0].p > 0.05 / 4 > 10 * far and min(others) > 0.05


def test_a_spread_above_the_common_one_is_not_made_smaller() -> None:
    random = np.random.default_rng(2)
    steady = [compare(random.normal(0, 0.3, 3), np.zeros(3)) for _ in range(20)]
    wild = compare(np.array([1.0, 9.0, 6.0]), np.zeros(3))
    assert 0.05 < moderated_ps([*steady, wild])[-1] <= wild.p


def test_fewer_than_three_and_what_has_no_spread_are_left_alone() -> None:
    one, other = compare(np.array([1.0, 2.0, 4.0]), np.zeros(3)), compare(np.array([1.0, 5.0, 2.0]), np.zeros(3))
    alike, alone = compare(np.ones(3), np.zeros(3)), compare(np.ones(1), np.zeros(1))
    assert moderated_ps([one, other]) == [one.p, other.p]
    assert moderated_ps([one, alike, other, alone]) == [one.p, 1.0, other.p, 1.0]
    assert moderated_ps([]) == []
