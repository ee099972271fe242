"""Robust means against their formulas by hand, and against SciPy."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import trim_mean
from support.tiny import backbone, method, run, spied, training

from pflcore.operators.robust_means import geometric_median, krum, trimmed_mean

# Seven clients, five entries, two of the clients far away; no two numbers are alike.
VALUES = np.random.default_rng(4).normal(2.0, 1.0, (7, 5))
VALUES[[1, 4]] = [[40.0, -9.0, 3.0, 70.0, -8.0], [-31.0, 55.0, 12.0, -6.0, 9.0]]
VALUES = torch.tensor(VALUES)


@pytest.mark.parametrize("share", (0.0, 0.1, 0.2, 0.3, 0.43))
def test_a_trimmed_mean_is_scipys_and_half_of_all_trimmed_is_the_median(share):
    np.testing.assert_allclose(trimmed_mean(VALUES, share), trim_mean(VALUES, share), rtol=1e-12)
    for count in (1, 2, 6, 7):
        np.testing.assert_allclose(trimmed_mean(VALUES[:count], 0.5), np.median(VALUES[:count], 0), rtol=1e-12)


@pytest.mark.parametrize(("share", "nearest"), ((0.0, 5), (0.2, 4), (0.3, 3), (0.45, 2)))
def test_krum_is_the_client_nearest_to_its_nearest(share, nearest):
    scores = []
    for value in VALUES:
        squares = sorted(float(((value - other) ** 2).sum()) for other in VALUES)
        scores.append(sum(squares[1 : nearest + 1]))  # without the distance to itself
    assert torch.equal(krum(VALUES, share), VALUES[int(np.argmin(scores))])
    assert torch.equal(krum(VALUES[:1], share), VALUES[0])


def test_the_geometric_median_has_the_least_weighted_distance():
    shares = torch.tensor([3.0, 1.0, 4.0, 2.0, 2.0, 5.0, 1.0]).double() / 18
    median = geometric_median(VALUES, shares)
    best = minimize(lambda point: float(shares @ (VALUES - torch.tensor(point)).norm(dim=1)), np.zeros(5))
    np.testing.assert_allclose(median, best.x, atol=2e-3)


@pytest.mark.parametrize("rule", ("median", "trimmed_mean"))
def test_a_method_puts_it_in_the_place_of_its_mean(rule):
    seen = []
    entry = spied(method("fedper", averaging=rule, suspects=0.34), seen)
    result = run(entry, backbone("convnet"), training=training(rounds=1, sample_rate=1.0))
    names = [name for name in result.weights if name.startswith("conv")]
    for name in names:
        returned = np.stack([update.returned[name] for update in seen[0]])
        np.testing.assert_allclose(result.weights[name], np.median(returned, 0), rtol=1e-6)  # of three both are it
