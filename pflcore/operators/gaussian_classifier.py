"""Linear discriminant analysis: classes as Gaussians with one covariance, mixed with those of a reference.

All functions work under ``torch.func.vmap``. :meth:`Interpolation.losses` consists of products only, so it can be part
of a recorded step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gaussians:
    """Classes as Gaussians with one covariance."""

    means: Tensor  # (classes, features)
    covariance: Tensor  # (features, features)

    def mix(self, other: Gaussians, share: Tensor) -> Gaussians:
        """Return the mixture `share` · self + (1 − `share`) · `other`."""
        means = share * self.means + (1 - share) * other.means
        return Gaussians(means, share * self.covariance + (1 - share) * other.covariance)

    def classifier(self, log_priors: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight (classes, features) and bias (classes,) for logits log p(class) + log p(features | class)."""
        weight = torch.linalg.solve(self.covariance, self.means.T).T
        return weight, log_priors - 0.5 * (weight * self.means).sum(1)


@dataclass(frozen=True)
class Moments:
    """Sums over samples of the differences between features and the reference's mean of their class."""

    counts: Tensor  # (classes,)
    sums: Tensor  # (classes, features)
    products: Tensor  # (features, features)

    @classmethod
    def zeros(cls, reference: Gaussians) -> Moments:
        return cls(*map(torch.zeros_like, (reference.means[:, 0], reference.means, reference.covariance)))

    def plus(self, features: Tensor, labels: Tensor, reference: Gaussians) -> Moments:
        """Return the sums with more samples added: features (samples, features), labels (samples,)."""
        errors = features - reference.means[labels]
        members = membership(labels, len(self.counts)).to(features.dtype)
        return Moments(self.counts + members.sum(0), self.sums + members.T @ errors, self.products + errors.T @ errors)

    def estimates(self) -> Estimates:
        shifts = self.sums / self.counts.clamp_min(1).unsqueeze(1)
        return Estimates(self.counts, shifts, (self.products - shifts.T @ self.sums) / self.counts.sum())


@dataclass(frozen=True)
class Estimates:
    """Estimates of class means and their covariance from samples."""

    counts: Tensor  # samples of each class: (classes,)
    shifts: Tensor  # class means minus the reference's, 0 for a class without samples: (classes, features)
    spread: Tensor  # mean outer product of samples' differences from their class mean: (features, features)

    def gaussians(self, reference: Gaussians, missing: int = 0) -> Gaussians:
        """Return the Gaussians; the covariance counts `missing` samples fewer and has the identity added."""
        count = self.counts.sum()
        identity = torch.eye(len(self.spread), dtype=self.spread.dtype, device=self.spread.device)
        covariance = self.spread * (count / (count - 1 - missing).clamp_min(1)) + identity
        return Gaussians(reference.means + self.shifts, covariance)


@dataclass(frozen=True)
class Interpolation:
    """Mixtures of estimated Gaussians and a reference, by several shares, compared by the loss on the samples of the
    estimates, each left out of them."""

    estimates: Estimates
    reference: Gaussians
    shares: Tensor  # β, the weights of the estimated Gaussians: (shares,)
    log_priors: Tensor  # (classes,)
    inverses: Tensor  # of mixed covariances that count one sample less but include its product: (shares, f, f)

    @classmethod
    def create(cls, estimates: Estimates, reference: Gaussians, shares: Tensor, log_priors: Tensor) -> Interpolation:
        """Return the mixtures with all that does not depend on which sample is left out."""
        covariance = estimates.gaussians(reference, missing=1).covariance
        mixed = torch.lerp(reference.covariance, covariance, shares.view(-1, 1, 1))
        return cls(estimates, reference, shares, log_priors, torch.linalg.inv(mixed))

    def losses(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the samples' cross-entropies, each left out of the estimated Gaussians: (shares,).

        Let x be one of n samples of class y and d = x − mean. Without x, the mean of y is d · n / (n − 1) away from x,
        and the scatter is smaller by d dᵀ · n / (n − 1), which changes the inverse of a covariance by one product.
        """
        counts, shifts, share = self.estimates.counts, self.estimates.shifts, self.shares.view(-1, 1)
        n = counts[labels]
        ratio = torch.where(n > 1, n / (n - 1).clamp_min(1), 0.0)
        differences = features - self.reference.means[labels] - shifts[labels]
        u = differences @ self.inverses  # (shares, samples, features)
        kappa = share * ratio / (counts.sum() - 2).clamp_min(1)  # (shares, samples)
        factor = (kappa / (1 - kappa * (u * differences).sum(-1))).unsqueeze(-1)

        def product(a: Tensor, solved: Tensor, along: Tensor, b: Tensor) -> Tensor:
            return (a * solved).sum(-1) + factor.squeeze(-1) * along * (b * u).sum(-1)

        means = self.reference.means + share.unsqueeze(-1) * shifts  # (shares, classes, features)
        solved = means @ self.inverses
        along, across = (u * features).sum(-1, keepdim=True), u @ means.mT
        linear = features @ solved.mT + factor * along * across
        square = (solved * means).sum(-1).unsqueeze(1) + factor * across.square()
        logits = linear - 0.5 * square + self.log_priors  # (shares, samples, classes); wrong for a sample's own class
        # A class without other samples has the reference's mean.
        shift = torch.where((n > 1).unsqueeze(-1), shifts[labels] - differences * (ratio - 1).unsqueeze(-1), 0.0)
        mean = self.reference.means[labels] + share.unsqueeze(-1) * shift
        solved = mean @ self.inverses
        half = 0.5 * product(mean, solved, (mean * u).sum(-1), mean)
        left_out = product(features, solved, along.squeeze(-1), mean) - half + self.log_priors[labels]
        logits = torch.where(membership(labels, len(counts)), left_out.unsqueeze(-1), logits)
        label_logits = torch.where(membership(labels, len(counts)), logits, 0.0).sum(-1)
        return (logits.logsumexp(-1) - label_logits).sum(-1)

    def best(self, losses: Tensor) -> Gaussians:
        """Return the mixture with the least loss, from all samples; of equal ones that with the smallest share."""
        share = self.shares[losses.argmin()]
        return self.estimates.gaussians(self.reference).mix(self.reference, share)


def membership(labels: Tensor, classes: int) -> Tensor:
    """Return a boolean mask (samples, classes): whether a sample has the class."""
    return labels.unsqueeze(1) == torch.arange(classes, device=labels.device)
