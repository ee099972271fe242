"""Binary classification by Gaussian processes, with Pólya-Gamma variables and Gibbs sampling; a tree for more classes.

A latent function f has the prior N(0, K), K an exponential kernel of features on the unit sphere. A sample is on the
first of two sides with probability sigmoid(f). Given one Pólya-Gamma variable ω per sample, f is Gaussian; given f, the
ω are independent (Polson et al., 2013). All computations are in float64 and use factors of I + √Ω K √Ω, whose
eigenvalues are at least 1.
"""

import math
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# The prior's kernel: k(x, x') = 8 · exp(−|x − x'|² / 2), plus 0.001 between a sample and itself.
SCALE, JITTER = 8.0, 1e-3
_TERMS = 32
_POINTS, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.hermite.hermgauss(20))


@dataclass(frozen=True)
class BinaryClassifier:
    """A Gaussian process fitted to samples of two sides, once for each chain of Gibbs sampling."""

    features: Tensor  # of the samples, on the unit sphere: (samples, features)
    root: Tensor  # √ω: (chains, samples)
    factor: Tensor  # the lower Cholesky factor of I + √Ω K √Ω: (chains, samples, samples)
    targets: Tensor  # targets of f at the samples, solved with the factor: (chains, samples, 1)

    @classmethod
    def fit(cls, features: Tensor, first: Tensor, steps: int, chains: int, generator: torch.Generator) -> Self:
        """Return the process for features (samples, features); `first` (samples,) marks samples of the first side.

        Gradients of predictions reach the features through the kernel; the ω are constants. A `generator` on the CPU
        draws them, so that they are the same on every device.
        """
        features = F.normalize(features.double())
        covariance = kernel(features, features)
        covariance = covariance + JITTER * torch.eye(len(covariance), device=covariance.device)
        signs = first.double() - 0.5
        root = gibbs(covariance.detach(), signs, steps, chains, generator).sqrt()
        factor = _factor(covariance, root)
        return cls(features, root, factor, _solve(factor, (signs / root).unsqueeze(-1)))

    def probability(self, features: Tensor) -> Tensor:
        """Return probabilities of the first side, (others,), for features (others, features): the mean of chains."""
        across = kernel(self.features, F.normalize(features.double()))
        reduced = _solve(self.factor, self.root.unsqueeze(-1) * across)
        mean = (reduced * self.targets).sum(1)
        deviation = (SCALE + JITTER - reduced.square().sum(1)).sqrt()
        points, weights = _POINTS.to(mean.device), _WEIGHTS.to(mean.device)
        latent = mean.unsqueeze(-1) + math.sqrt(2) * deviation.unsqueeze(-1) * points
        return (latent.sigmoid() @ weights).mean(0) / math.sqrt(math.pi)


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """Return the prior's covariances without jitter, (m, n), for features (m, features) and (n, features)."""
    squared = x.square().sum(1, keepdim=True) + y.square().sum(1) - 2 * x @ y.T
    return SCALE * torch.exp(-squared / 2)


@torch.no_grad()
def gibbs(covariance: Tensor, signs: Tensor, steps: int, chains: int, generator: torch.Generator) -> Tensor:
    """Draw Pólya-Gamma variables (chains, samples), given K with jitter; `signs` is ½ for the first side, else −½."""
    prior = _cholesky(covariance)

    def normal() -> Tensor:
        return torch.randn(chains, len(signs), generator=generator, dtype=signs.dtype).to(signs.device)

    function = normal() @ prior.T
    for _ in range(steps):
        root = polya_gamma(function, generator).sqrt()
        # A draw from the prior, corrected by its noisy distance from the samples' targets: so the covariance of the
        # posterior is neither formed nor factorised.
        function = normal() @ prior.T
        residuals = signs / root - root * function - normal()
        correction = torch.cholesky_solve(residuals.unsqueeze(-1), _factor(covariance, root)).squeeze(-1)
        function = function + (root * correction) @ covariance
    return polya_gamma(function, generator)


def polya_gamma(tilt: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from the Pólya-Gamma distribution PG(1, c) for each c of `tilt`, in float64.

    A draw sums 32 terms of the defining series and the mean of the remaining terms, so the mean is exact, and the
    variance is smaller by a hundred-thousandth at most.
    """
    tilt = tilt.double()
    terms = torch.arange(_TERMS, device=tilt.device, dtype=tilt.dtype) + 0.5
    rates = 2 * math.pi**2 * terms.square() + tilt.unsqueeze(-1).square() / 2
    drawn = torch.empty(rates.shape, dtype=rates.dtype).exponential_(generator=generator).to(tilt.device)
    half = (tilt / 2).abs().clamp_min(1e-6)
    return ((drawn - 1) / rates).sum(-1) + half.tanh() / (4 * half)


def _factor(covariance: Tensor, root: Tensor) -> Tensor:
    """Return the lower factors of I + √Ω K √Ω: (chains, samples, samples)."""
    scaled = root.unsqueeze(-1) * covariance * root.unsqueeze(-2)
    return _cholesky(scaled + torch.eye(len(covariance), dtype=scaled.dtype, device=scaled.device))


def _cholesky(matrix: Tensor) -> Tensor:
    # The matrix is positive definite unless it is not finite; then the loss is not finite either, which is reported.
    return cast(Tensor, torch.linalg.cholesky_ex(matrix).L)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    return cast(Tensor, torch.linalg.solve_triangular(factor, right, upper=False))


_MAX_STEPS = 100  # of Lloyd's algorithm: it ends when nothing moves, but ties of rounded distances could alternate


def class_tree(means: Tensor, present: Tensor) -> Tensor:
    """Return the inner nodes from the root down, (nodes, classes): 1 on a node's first side, −1 on its other, else 0.
    `means` is (classes, features); `present` (classes,) marks the client's classes, of which n make n − 1 nodes."""
    nodes: list[Tensor] = []
    queue = [present.nonzero().flatten()]
    while queue:
        classes = queue.pop(0)
        if len(classes) < 2:
            continue
        first = kmeans2(means[classes])
        sides = torch.zeros(len(means), dtype=torch.long, device=means.device)
        sides[classes] = torch.where(first, 1, -1)
        nodes.append(sides)
        queue += [classes[first], classes[~first]]
    return torch.stack(nodes) if nodes else torch.zeros(0, len(means), dtype=torch.long, device=means.device)


def kmeans2(points: Tensor) -> Tensor:
    """Return a mask of the points (points, features), two or more, in the first one's cluster: k-means with k = 2.

    k-means starts once from each point and the point furthest from it; the best result is taken. Points that are all
    equal, or not finite, are split in the middle of their order.
    """
    points = points.double()
    squares = (points.unsqueeze(1) - points).square().sum(-1)
    centres = torch.stack([points, points[squares.argmax(1)]], 1)
    nearest = torch.zeros_like(squares, dtype=torch.long)
    for _ in range(_MAX_STEPS):
        distances = (points.unsqueeze(1) - centres.unsqueeze(1)).square().sum(-1)
        before, nearest = nearest, distances.argmin(-1)
        members = torch.stack([nearest == 0, nearest == 1], 1).to(points.dtype)
        centres = members @ points / members.sum(-1, keepdim=True).clamp_min(1)
        if torch.equal(nearest, before):
            break
    best = nearest[distances.amin(-1).sum(-1).argmin()]
    first = best == best[0]
    return torch.arange(len(points), device=points.device) < len(points) // 2 if bool(first.all()) else first
