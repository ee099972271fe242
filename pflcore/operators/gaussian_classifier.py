"""Linear discriminant analysis: classes as Gaussians with one covariance, own ones mixed with given ones.

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

    def mixed(self, other: Gaussians, share: Tensor) -> Gaussians:
        """Return the mixture `share` · self + (1 − `share`) · `other`."""
        pairs = (self.means, other.means), (self.covariance, other.covariance)
        return Gaussians(*(share * mine + (1 - share) * theirs for mine, theirs in pairs))

    def classifier(self, log_priors: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight (classes, features) and bias (classes,) for logits log p(class) + log p(features | class)."""
        weight = torch.linalg.solve(self.covariance, self.means.T).T
        return weight, log_priors - 0.5 * (weight * self.means).sum(1)


@dataclass(frozen=True)
class Moments:
    """Sums over samples of the differences between features and the given mean of their class."""

    counts: Tensor  # (classes,)
    sums: Tensor  # (classes, features)
    products: Tensor  # (features, features)

    @classmethod
    def none(cls, given: Gaussians) -> Moments:
        parts = given.means[:, 0], given.means, given.covariance
        return cls(*map(torch.zeros_like, parts))

    def plus(self, features: Tensor, labels: Tensor, given: Gaussians) -> Moments:
        """Return the sums with more samples added: features (samples, features), labels (samples,)."""
        away, members = features - given.means[labels], membership(labels, len(self.counts)).to(features.dtype)
        return Moments(self.counts + members.sum(0), self.sums + members.T @ away, self.products + away.T @ away)

    def estimates(self) -> Estimates:
        shifts = self.sums / self.counts.clamp_min(1).unsqueeze(1)
        spread = (self.products - shifts.T @ self.sums) / self.counts.sum()
        return Estimates(self.counts, shifts, spread)


@dataclass(frozen=True)
class Estimates:
    """Estimates of class means and their covariance from samples."""

    counts: Tensor  # samples of each class: (classes,)
    shifts: Tensor  # class means minus the given ones, 0 for a class without samples: (classes, features)
    spread: Tensor  # mean outer product of samples' differences from their class mean: (features, features)

    def gaussians(self, given: Gaussians, missing: int = 0) -> Gaussians:
        """Return the Gaussians; the covariance counts `missing` samples fewer and has the identity added."""
        count = self.counts.sum()
        one = torch.eye(len(self.spread), dtype=self.spread.dtype, device=self.spread.device)
        return Gaussians(given.means + self.shifts, self.spread * (count / (count - 1 - missing).clamp_min(1)) + one)


@dataclass(frozen=True)
class Interpolation:
    """Mixtures of own and given Gaussians, with several shares, compared by the loss of own samples, each left out of
    the own ones."""

    own: Estimates
    given: Gaussians
    shares: Tensor  # β, the weights of the own Gaussians: (shares,)
    log_priors: Tensor  # (classes,)
    inverses: Tensor  # of mixed covariances that count one sample less but include its product: (shares, f, f)

    @classmethod
    def of(cls, own: Estimates, given: Gaussians, shares: Tensor, log_priors: Tensor) -> Interpolation:
        """Return the mixtures with all that does not depend on which sample is left out."""
        mixed = torch.lerp(given.covariance, own.gaussians(given, missing=1).covariance, shares.view(-1, 1, 1))
        return cls(own, given, shares, log_priors, torch.linalg.inv(mixed))

    def losses(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of own samples' cross-entropies, each left out of the own Gaussians: (shares,).

        Let x be one of n samples of class y and d = x − mean. Without x, the own mean of y is d · n / (n − 1) away from
        x, and the scatter is smaller by d dᵀ · n / (n − 1), which changes the inverse of a covariance by one product.
        """
        counts, shifts, share = self.own.counts, self.own.shifts, self.shares.view(-1, 1)
        n = counts[labels]
        ratio = torch.where(n > 1, n / (n - 1).clamp_min(1), 0.0)
        away = features - self.given.means[labels] - shifts[labels]
        u = away @ self.inverses  # (shares, samples, features)
        kappa = share * ratio / (counts.sum() - 2).clamp_min(1)  # (shares, samples)
        factor = (kappa / (1 - kappa * (u * away).sum(-1))).unsqueeze(-1)

        def product(one: Tensor, solved: Tensor, along: Tensor, others: Tensor) -> Tensor:
            return (one * solved).sum(-1) + factor.squeeze(-1) * along * (others * u).sum(-1)

        means = self.given.means + share.unsqueeze(-1) * shifts  # (shares, classes, features)
        solved = means @ self.inverses
        along, across = (u * features).sum(-1, keepdim=True), u @ means.mT
        linear = features @ solved.mT + factor * along * across
        square = (solved * means).sum(-1).unsqueeze(1) + factor * across.square()
        logits = linear - 0.5 * square + self.log_priors  # (shares, samples, classes); wrong for a sample's own class
        # A class without other samples has the given mean.
        left = torch.where((n > 1).unsqueeze(-1), shifts[labels] - away * (ratio - 1).unsqueeze(-1), 0.0)
        own = self.given.means[labels] + share.unsqueeze(-1) * left
        mine = own @ self.inverses
        right = product(features, mine, along.squeeze(-1), own) - 0.5 * product(own, mine, (own * u).sum(-1), own)
        logits = torch.where(membership(labels, len(counts)), (right + self.log_priors[labels]).unsqueeze(-1), logits)
        chosen = torch.where(membership(labels, len(counts)), logits, 0.0).sum(-1)
        return (logits.logsumexp(-1) - chosen).sum(-1)

    def best(self, losses: Tensor) -> Gaussians:
        """Return the mixture with the least loss, from all own samples; of equal ones that with the smallest share."""
        share = self.shares[losses.argmin()]
        return self.own.gaussians(self.given).mixed(self.given, share)


def membership(labels: Tensor, classes: int) -> Tensor:
    """Return a boolean mask (samples, classes): whether a sample has the class."""
    return labels.unsqueeze(1) == torch.arange(classes, device=labels.device)
