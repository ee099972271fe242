"""Gaussians of classes, and Gaussian processes that tell two sides of a tree of classes apart.

Discriminant analysis works under ``torch.func.vmap``, and :meth:`Interpolation.losses` makes only products, so that it
can be part of a recorded step. Of a process, a latent function f has the prior N(0, K), K an exponential kernel of
features on the unit sphere, and a sample is of the first side with probability sigmoid(f). Given one Pólya-Gamma
variable ω for each sample, f is Gaussian; given f, the ω are independent (Polson et al., 2013). All is computed in
float64, by factors of I + √Ω K √Ω, whose eigenvalues are 1 and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Gaussians:
    """Classes as Gaussians of one covariance."""

    means: Tensor  # (classes, features)
    covariance: Tensor  # (features, features)

    def mixed(self, other: Gaussians, share: Tensor) -> Gaussians:
        """Return `share` of these and the rest of the others."""
        pairs = (self.means, other.means), (self.covariance, other.covariance)
        return Gaussians(*(share * mine + (1 - share) * theirs for mine, theirs in pairs))

    def classifier(self, log_priors: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight (classes, features) and bias (classes,) of logits log p(class) + log p(features | class)."""
        weight = torch.linalg.solve(self.covariance, self.means.T).T
        return weight, log_priors - 0.5 * (weight * self.means).sum(1)


@dataclass(frozen=True)
class Moments:
    """Sums over samples, of what they are away from the given mean of their class."""

    counts: Tensor  # (classes,)
    sums: Tensor  # (classes, features)
    products: Tensor  # (features, features)

    @classmethod
    def none(cls, given: Gaussians) -> Moments:
        parts = given.means[:, 0], given.means, given.covariance
        return cls(*map(torch.zeros_like, parts))

    def plus(self, features: Tensor, labels: Tensor, given: Gaussians) -> Moments:
        """Return sums with further samples: features (samples, features), labels (samples,)."""
        away, members = features - given.means[labels], membership(labels, len(self.counts)).to(features.dtype)
        return Moments(self.counts + members.sum(0), self.sums + members.T @ away, self.products + away.T @ away)

    def estimates(self) -> Estimates:
        shifts = self.sums / self.counts.clamp_min(1).unsqueeze(1)
        spread = (self.products - shifts.T @ self.sums) / self.counts.sum()
        return Estimates(self.counts, shifts, spread)


@dataclass(frozen=True)
class Estimates:
    """What some samples say of their classes."""

    counts: Tensor  # samples of each class: (classes,)
    shifts: Tensor  # of the means of classes from the given ones, 0 of a class without samples: (classes, features)
    spread: Tensor  # mean product of what samples are away from the mean of their class: (features, features)

    def gaussians(self, given: Gaussians, missing: int = 0) -> Gaussians:
        """Return the classes; the covariance has the identity added, and is of `missing` samples fewer."""
        count = self.counts.sum()
        one = torch.eye(len(self.spread), dtype=self.spread.dtype, device=self.spread.device)
        return Gaussians(given.means + self.shifts, self.spread * (count / (count - 1 - missing).clamp_min(1)) + one)


@dataclass(frozen=True)
class Interpolation:
    """Mixtures of own and given Gaussians, in several shares, judged by samples of which each is left out of the
    own."""

    own: Estimates
    given: Gaussians
    shares: Tensor  # β of the own ones: (shares,)
    log_priors: Tensor  # (classes,)
    inverses: Tensor  # of mixed covariances where one sample is missing but its products are not: (shares, f, f)

    @classmethod
    def of(cls, own: Estimates, given: Gaussians, shares: Tensor, log_priors: Tensor) -> Interpolation:
        """Return what does not depend on which sample is left out."""
        mixed = torch.lerp(given.covariance, own.gaussians(given, missing=1).covariance, shares.view(-1, 1, 1))
        return cls(own, given, shares, log_priors, torch.linalg.inv(mixed))

    def losses(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return sums over own samples of their cross-entropies, each left out of the own: (shares,).

        Without a sample x of class y, of n, the own mean of y is away from x by d · n / (n − 1), d = x − mean, and the
        scatter is less by d dᵀ · n / (n − 1), which changes the inverse of a covariance by one product.
        """
        counts, shifts, share = self.own.counts, self.own.shifts, self.shares.view(-1, 1)
        n = counts[labels]
        ratio = torch.where(n > 1, n / (n - 1).clamp_min(1), 0.0)
        away = features - self.given.means[labels] - shifts[labels]
        u = away @ self.inverses  # (shares, samples, features), as all below
        kappa = share * ratio / (counts.sum() - 2).clamp_min(1)  # (shares, samples)
        factor = (kappa / (1 - kappa * (u * away).sum(-1))).unsqueeze(-1)

        def product(one: Tensor, solved: Tensor, along: Tensor, others: Tensor) -> Tensor:
            return (one * solved).sum(-1) + factor.squeeze(-1) * along * (others * u).sum(-1)

        means = self.given.means + share.unsqueeze(-1) * shifts  # (shares, classes, features)
        solved = means @ self.inverses
        along, across = (u * features).sum(-1, keepdim=True), u @ means.mT
        linear = features @ solved.mT + factor * along * across
        square = (solved * means).sum(-1).unsqueeze(1) + factor * across.square()
        logits = linear - 0.5 * square + self.log_priors  # (shares, samples, classes), but for a sample's own class
        # A class without others has the given mean.
        left = torch.where((n > 1).unsqueeze(-1), shifts[labels] - away * (ratio - 1).unsqueeze(-1), 0.0)
        own = self.given.means[labels] + share.unsqueeze(-1) * left
        mine = own @ self.inverses
        right = product(features, mine, along.squeeze(-1), own) - 0.5 * product(own, mine, (own * u).sum(-1), own)
        logits = torch.where(membership(labels, len(counts)), (right + self.log_priors[labels]).unsqueeze(-1), logits)
        chosen = torch.where(membership(labels, len(counts)), logits, 0.0).sum(-1)
        return (logits.logsumexp(-1) - chosen).sum(-1)

    def best(self, losses: Tensor) -> Gaussians:
        """Return the mixture of the least loss, of all own samples; of equal ones that with the smallest share."""
        share = self.shares[losses.argmin()]
        return self.own.gaussians(self.given).mixed(self.given, share)


def membership(labels: Tensor, classes: int) -> Tensor:
    """Return which samples are of which class: (samples, classes)."""
    return labels.unsqueeze(1) == torch.arange(classes, device=labels.device)


# Of the prior: k(x, x') = 8 · exp(−|x − x'|² / 2), with 0.001 more between a sample and itself.
SCALE, JITTER = 8.0, 1e-3
_TERMS = 32
_POINTS, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.hermite.hermgauss(20))


@dataclass(frozen=True)
class BinaryClassifier:
    """A Gaussian process given samples of two sides, for each of several chains of Gibbs sampling."""

    features: Tensor  # of the samples, on the unit sphere: (samples, features)
    root: Tensor  # √ω: (chains, samples)
    factor: Tensor  # the lower factor of I + √Ω K √Ω: (chains, samples, samples)
    targets: Tensor  # what f is in the place of the samples, as a solution with the factor: (chains, samples, 1)

    @classmethod
    def fitted(
        cls, features: Tensor, first: Tensor, steps: int, chains: int, generator: torch.Generator
    ) -> BinaryClassifier:
        """Return the process given features (samples, features) and who is of the first side (samples,).

        Gradients of what it predicts reach the features through the kernel; the ω are taken as they were drawn, by a
        `generator` on the CPU, so that they are the same on every device.
        """
        features = F.normalize(features.double())
        covariance = kernel(features, features)
        covariance = covariance + JITTER * torch.eye(len(covariance), device=covariance.device)
        signs = first.double() - 0.5
        root = gibbs(covariance.detach(), signs, steps, chains, generator).sqrt()
        factor = _factor(covariance, root)
        return cls(features, root, factor, _solved(factor, (signs / root).unsqueeze(-1)))

    def probability(self, features: Tensor) -> Tensor:
        """Return that of the first side (others,) for features (others, features): the mean of the chains."""
        across = kernel(self.features, F.normalize(features.double()))
        reduced = _solved(self.factor, self.root.unsqueeze(-1) * across)
        mean = (reduced * self.targets).sum(1)
        deviation = (SCALE + JITTER - reduced.square().sum(1)).sqrt()
        points, weights = _POINTS.to(mean.device), _WEIGHTS.to(mean.device)
        at = mean.unsqueeze(-1) + math.sqrt(2) * deviation.unsqueeze(-1) * points
        return (at.sigmoid() @ weights).mean(0) / math.sqrt(math.pi)


def kernel(one: Tensor, other: Tensor) -> Tensor:
    """Return covariances of the prior, without jitter: (m, n) of (m, features) and (n, features)."""
    squared = one.square().sum(1, keepdim=True) + other.square().sum(1) - 2 * one @ other.T
    return SCALE * torch.exp(-squared / 2)


@torch.no_grad()
def gibbs(covariance: Tensor, signs: Tensor, steps: int, chains: int, generator: torch.Generator) -> Tensor:
    """Draw Pólya-Gamma variables (chains, samples), given K with jitter, and `signs`: ½ of the first side, else −½."""
    prior = _lower(covariance)

    def normal() -> Tensor:
        drawn = torch.randn(chains, len(signs), generator=generator, dtype=signs.dtype)
        return drawn.to(signs.device)

    function = normal() @ prior.T
    for _ in range(steps):
        root = polya_gamma(function, generator).sqrt()
        # A draw of the prior, corrected by how far it is, with noise, from what the samples say: no covariance of the
        # posterior has to be formed, nor factored.
        function = normal() @ prior.T
        away = signs / root - root * function - normal()
        moved = torch.cholesky_solve(away.unsqueeze(-1), _factor(covariance, root)).squeeze(-1)
        function = function + (root * moved) @ covariance
    return polya_gamma(function, generator)


def polya_gamma(tilt: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from the Pólya-Gamma distribution PG(1, c) for each c of `tilt`, in float64.

    It is 32 terms of the series that defines it and the mean of those left out: so the mean is exact, and the variance
    less by a hundred-thousandth at most.
    """
    tilt = tilt.double()
    places = torch.arange(_TERMS, device=tilt.device, dtype=tilt.dtype) + 0.5
    rates = 2 * math.pi**2 * places.square() + tilt.unsqueeze(-1).square() / 2
    drawn = torch.empty(rates.shape, dtype=rates.dtype).exponential_(generator=generator).to(tilt.device)
    half = (tilt / 2).abs().clamp_min(1e-6)
    return ((drawn - 1) / rates).sum(-1) + half.tanh() / (4 * half)


def _factor(covariance: Tensor, root: Tensor) -> Tensor:
    """Return the lower factors of I + √Ω K √Ω: (chains, samples, samples)."""
    scaled = root.unsqueeze(-1) * covariance * root.unsqueeze(-2)
    return _lower(scaled + torch.eye(len(covariance), dtype=scaled.dtype, device=scaled.device))


def _lower(matrix: Tensor) -> Tensor:
    # Nothing here can fail to be positive, unless it is not finite: then nor is the loss, which is told of as such.
    lower: Tensor = torch.linalg.cholesky_ex(matrix).L
    return lower


def _solved(factor: Tensor, right: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve_triangular(factor, right, upper=False)
    return solution


_MAX_STEPS = 100  # of Lloyd's algorithm, which ends when nothing moves, but ties of rounded distances could go round


def class_tree(means: Tensor, present: Tensor) -> Tensor:
    """Return the inner nodes, from the root down: (nodes, classes), 1 on a node's first side, −1 on its other, else 0.

    Of means (classes, features), and which classes are present (classes,); n of them make n − 1 nodes.
    """
    nodes: list[Tensor] = []
    waiting = [present.nonzero().flatten()]
    while waiting:
        classes = waiting.pop(0)
        if len(classes) < 2:
            continue
        first = kmeans2(means[classes])
        sides = torch.zeros(len(means), dtype=torch.long, device=means.device)
        sides[classes] = torch.where(first, 1, -1)
        nodes.append(sides)
        waiting += [classes[first], classes[~first]]
    return torch.stack(nodes) if nodes else torch.zeros(0, len(means), dtype=torch.long, device=means.device)


def kmeans2(points: Tensor) -> Tensor:
    """Return which of at least two points (points, features) are on the side of the first: two clusters by k-means.

    It begins once with each point and the one furthest from it; the best end is taken. Points that are equal, or not
    finite, are divided in the middle of their order.
    """
    points = points.double()
    away = (points.unsqueeze(1) - points).square().sum(-1)
    centres = torch.stack([points, points[away.argmax(1)]], 1)
    near = torch.zeros_like(away, dtype=torch.long)
    for _ in range(_MAX_STEPS):
        distances = (points.unsqueeze(1) - centres.unsqueeze(1)).square().sum(-1)
        before, near = near, distances.argmin(-1)
        members = torch.stack([near == 0, near == 1], 1).to(points.dtype)
        centres = members @ points / members.sum(-1, keepdim=True).clamp_min(1)
        if torch.equal(near, before):
            break
    best = near[distances.amin(-1).sum(-1).argmin()]
    first = best == best[0]
    return torch.arange(len(points), device=points.device) < len(points) // 2 if bool(first.all()) else first
