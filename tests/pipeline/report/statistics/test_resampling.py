"""Bootstrap and sign flips against exact enumeration and known cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from pipeline.report.statistics.resampling import bootstrap_interval, sign_flips


def test_sign_flips_are_all_of_them() -> None:
    by_seed = np.array([0.3, 1.1, -0.2, 0.9, 0.4, 0.7, 2.0])
    means = [np.mean(by_seed * signs) for signs in itertools.product((1, -1), repeat=7)]
    exact = np.mean([abs(mean) >= by_seed.mean() - 1e-12 for mean in means])
    assert sign_flips(by_seed) == pytest.approx(exact)
    assert 0.01 < exact < 0.05
    assert sign_flips(-by_seed) == pytest.approx(exact)


@pytest.mark.parametrize("n", [10, 16])
def test_sign_flips_as_scipy_has_them(n: int) -> None:
    by_seed = np.random.default_rng(n).normal(0.6, 1, n)
    known = stats.permutation_test((by_seed,), np.mean, permutation_type="samples", n_resamples=70_000)
    assert sign_flips(by_seed) == pytest.approx(known.pvalue, abs=0.005 if n > 13 else 1e-12)
    assert sign_flips(by_seed) == sign_flips(by_seed)


@pytest.mark.parametrize(("n", "ways"), [(13, 2**13), (14, 10_000)])
def test_of_more_than_thirteen_seeds_signs_are_drawn(n: int, ways: int) -> None:
    by_seed = np.random.default_rng(n).normal(0.4, 1, n)
    p = sign_flips(by_seed)
    assert 0.01 < p < 0.9 and p * ways == pytest.approx(round(p * ways), abs=1e-6)
    if n > 13:  # what was seen counts as one of the draws
        signs = np.random.default_rng(0).choice((-1.0, 1.0), (9999, n))
        assert p * 10_000 == pytest.approx(1 + sum(abs(signs @ by_seed) >= abs(by_seed.sum()) - 1e-9))


def test_five_seeds_are_too_few_for_sign_flips() -> None:
    assert math.isnan(sign_flips(np.full(5, 3.0) + np.arange(5)))  # 2/32 at best
    assert sign_flips(np.full(6, 3.0) + np.arange(6)) == pytest.approx(2 / 64)


def test_seeds_are_drawn_with_all_their_clients() -> None:
    # Clients within a seed are alike and seeds are not; a bootstrap over all 120 would be far narrower.
    by_seed = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 11.0])
    low, high = bootstrap_interval(np.repeat(by_seed[:, None], 20, axis=1))
    assert 1.0 < low < 1.9
    assert 6.0 < high < 9.0  # the longer tail is on the side of 11
    assert (low, high) == bootstrap_interval(by_seed[:, None])
    assert high - 3.5 > 3.5 - low


def test_the_interval_is_bca() -> None:
    by_seed = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 11.0, 2.5])
    ends = {}
    for method in ("BCa", "percentile"):
        random = np.random.default_rng(0)
        found = stats.bootstrap((by_seed,), np.mean, n_resamples=9999, method=method, random_state=random)
        ends[method] = tuple(found.confidence_interval)
    assert bootstrap_interval(by_seed[:, None]) == pytest.approx(ends["BCa"])
    assert ends["BCa"] != pytest.approx(ends["percentile"], abs=0.2)


def test_of_one_seed_the_clients_are_drawn() -> None:
    clients = np.random.default_rng(1).normal(2.0, 3.0, (1, 400))
    low, high = bootstrap_interval(clients)
    error = clients.std(ddof=1) / math.sqrt(400)
    assert (low, high) == pytest.approx((clients.mean() - 1.96 * error, clients.mean() + 1.96 * error), abs=0.03)
    clients[0, :3] = math.nan
    assert np.isfinite(bootstrap_interval(clients)).all()


def test_where_nothing_can_be_drawn() -> None:
    assert bootstrap_interval(np.array([[1.0]])) == (-math.inf, math.inf)
    assert bootstrap_interval(np.empty((0, 3))) == (-math.inf, math.inf)
    assert bootstrap_interval(np.array([[2.0], [2.0]])) == (2.0, 2.0)
    low, high = bootstrap_interval(np.array([[1.0], [4.0]]))
    assert (low, high) == (1.0, 4.0)
