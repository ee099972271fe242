"""Gaussians of classes and Gaussian processes, against everything computed anew and integrals over a grid."""

import math

import numpy as np
import pytest
import torch

from pflcore.operators import gaussian_process as gp
from pflcore.operators.gaussian_classifier import Gaussians, Interpolation, Moments

WIDTH, SCALE = 3, gp.SCALE
GIVEN = Gaussians(torch.tensor([[0.5] * 3, [1.0, 0.0, 0.0], [0.0, 1.0, 2.0], [3.0, 3.0, 3.0]]), torch.eye(3) + 0.3)
PRIORS = torch.tensor([0.3, 0.4, 0.2, 0.1]).log()
SHARES = torch.linspace(0, 1, 5)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def mixture(x, y, share):
    """Means and covariance of some samples' classes, mixed with the given ones."""
    reference, means, scatter = GIVEN.means.double(), GIVEN.means.double().clone(), torch.eye(WIDTH).double()
    for label in set(y.tolist()):
        means[label] = x[y == label].mean(0)
    away = x - means[y]
    covariance = scatter + away.T @ away / max(len(y) - 1, 1)
    return share * means + (1 - share) * reference, share * covariance + (1 - share) * GIVEN.covariance.double()


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3], [2, 2, 0], [3]])
def test_losses_are_those_of_gaussians_without_the_sample(labels):
    drawn, right = torch.randn(len(labels), WIDTH, generator=seeded(len(labels))), torch.tensor(labels)
    features, moments = drawn + torch.arange(len(labels)).unsqueeze(1) % 3, Moments.zeros(GIVEN)
    for part, their in zip(features.split(5), right.split(5), strict=True):
        moments = moments.plus(part, their, GIVEN)
    fit, expected = Interpolation.create(moments.estimates(), GIVEN, SHARES, PRIORS), torch.zeros(len(SHARES))
    for place, share in enumerate(SHARES.tolist()):
        for row in range(len(labels)):
            rest = torch.arange(len(labels)) != row
            means, covariance = mixture(features[rest].double(), right[rest], share)
            away = features[row].double() - means
            logits = PRIORS - 0.5 * torch.einsum("cf,fg,cg->c", away, torch.linalg.inv(covariance), away)
            expected[place] -= logits.log_softmax(0)[right[row]]
    losses = fit.losses(features, right)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=0)
    means, covariance = mixture(features.double(), right, float(SHARES[expected.argmin()]))
    best = fit.best(losses)
    torch.testing.assert_close(best.means, means.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(best.covariance, covariance.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tilt", [0.0, -2.0, 9.0])
def test_draws_have_the_moments_of_the_polya_gamma_distribution(tilt):
    count, c = 100_000, abs(tilt)
    drawn = gp.polya_gamma(torch.full((count,), tilt), seeded())
    mean = math.tanh(c / 2) / (2 * c) if c else 1 / 4
    variance = (math.sinh(c) - c) / (4 * c**3 * math.cosh(c / 2) ** 2) if c else 1 / 24
    assert drawn.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / count))
    assert drawn.min() > 0 and drawn.var().item() == pytest.approx(variance, rel=0.03)


def test_draws_of_omega_are_of_the_posterior():
    """Their mean, which has a closed form given f, against f on a grid."""
    covariance, signs = torch.tensor([[SCALE, 5.0], [5.0, SCALE]]).double(), torch.tensor([0.5, -0.5]).double()
    drawn = gp.gibbs(covariance, signs, steps=20, chains=20_000, generator=seeded())
    grid = np.linspace(-14, 14, 141)
    axes = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1)
    weight = np.exp(-0.5 * np.einsum("...i,ij,...j->...", axes, np.linalg.inv(covariance.numpy()), axes))
    weight /= (1 + np.exp(-axes[..., 0])) * (1 + np.exp(axes[..., 1]))
    means = np.tanh(axes / 2 + 1e-9) / (2 * axes + 4e-9)
    expected = (means * weight[..., None]).sum((0, 1)) / weight.sum()
    assert drawn.mean(0).tolist() == pytest.approx(expected.tolist(), abs=0.003)


def test_probabilities_are_those_of_a_textbook():
    """By inverses and a sum over a grid, given the ω of the same draws."""
    features, others = torch.randn(7, 3, generator=seeded()), torch.randn(4, 3, generator=seeded(1))
    first = torch.tensor([True, False, True, True, False, False, True])
    probabilities = gp.BinaryClassifier.fit(features, first, 3, 4, seeded(2)).probability(others)
    x, y = (part.double() / part.double().norm(dim=1, keepdim=True) for part in (features, others))
    prior, across = (SCALE * torch.exp(-torch.cdist(x, each).square() / 2) for each in (x, y))
    prior = prior + gp.JITTER * torch.eye(7)
    signs, parts = torch.where(first, 0.5, -0.5).double(), []
    grid = torch.linspace(-9, 9, 721, dtype=torch.float64)
    weight = torch.exp(-grid.square() / 2) / torch.exp(-grid.square() / 2).sum()
    for omega in gp.gibbs(prior, signs, 3, 4, seeded(2)):
        inverse = torch.linalg.inv(prior + torch.diag(1 / omega))
        variance = SCALE + gp.JITTER - torch.einsum("nm,nk,km->m", across, inverse, across)
        points = (across.T @ inverse @ (signs / omega)).unsqueeze(1) + variance.sqrt().unsqueeze(1) * grid
        parts.append(points.sigmoid() @ weight)
    torch.testing.assert_close(probabilities, torch.stack(parts).mean(0), rtol=1e-3, atol=1e-4)


def test_the_nearest_classes_part_last():
    means = torch.tensor([[0.0, 0.0], [9.0, 9.0], [0.5, 0.0], [0.0, 30.0], [9.0, 8.0], [3.0, 3.0]])
    tree = gp.class_tree(means, torch.tensor([True, True, True, True, True, False])).tolist()
    first = [1, 1, 1, -1, 1, 0]  # a class far from all
    assert tree == [first, [1, -1, 1, 0, -1, 0], [1, 0, -1, 0, 0, 0], [0, 1, 0, 0, -1, 0]]
    assert gp.class_tree(torch.randn(3, 2), torch.arange(3) < 1).shape == (0, 3)


@pytest.mark.parametrize("value", [2.0, float("nan")])
def test_equal_classes_part_too(value):
    assert gp.kmeans2(torch.full((5, 3), value)).tolist() == [True, True, False, False, False]
    tree = gp.class_tree(torch.full((7, 3), value), torch.ones(7, dtype=torch.bool))
    assert tree.shape == (6, 7) and len({tuple(path) for path in tree.T.tolist()}) == 7


def test_two_clusters_are_the_best_of_all():
    points = torch.from_numpy(np.random.default_rng(3).normal(size=(8, 2)))

    def spread(first):
        return sum(float((part - part.mean(0)).square().sum()) for part in (points[first], points[~first]))

    every = [torch.tensor([True, *(bool(bits >> bit & 1) for bit in range(7))]) for bits in range(127)]
    assert gp.kmeans2(points).tolist() == min(every, key=spread).tolist()
