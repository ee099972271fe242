"""Label distributions drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Shares, deal_classes, part_sizes
from pflcore.samples import Rows, Samples

# Most settings need a few draws; the hardest published one (CIFAR-10, 100 clients, alpha 0.1) needs 200 to 8,000.
_DRAWS = 20_000


@PARTITIONS.register
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Class shares of the clients drawn from Dir(alpha), the same in training and test.

    Class by class, shares of all clients are drawn from a symmetric Dirichlet distribution; clients that already hold
    an equal part of the training samples get none. All is drawn again until every client has ``min_samples``.
    """

    citation = "Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019; balanced as in FedTP"
    smoke: ClassVar[dict[str, Any]] = {"min_samples": 1}

    alpha: float = option(0.3, help="Concentration: small is a few classes per client, large is nearly i.i.d.", gt=0)
    min_samples: int = option(10, help="Every client gets at least this many training and test samples.", ge=1)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Rows:
        """Draw shares until every client has enough, then cut the classes."""
        counts = [
            np.bincount(samples.labels[samples.train == train], minlength=samples.classes) for train in (True, False)
        ]
        best = 0
        if min(count.sum() for count in counts) >= clients * self.min_samples:  # else no draw can do
            for _ in range(_DRAWS):
                shares = self._draw(counts[0], clients, rng)
                if shares is None:
                    continue
                reached = min(_smallest(count, shares) for count in counts)
                best = max(best, reached)
                if reached >= self.min_samples:
                    return deal_classes(samples, shares, rng)
            tried = f"the best of {_DRAWS:,} draws gave the poorest client {best}"
        else:
            tried = f"there are {counts[0].sum():,} and {counts[1].sum():,} in all"
        raise UserError(
            f"dirichlet: cannot give each of {clients} clients min_samples = {self.min_samples} training and test "
            f"samples of {samples.name} ({samples.classes} classes) at alpha = {self.alpha:g} ({tried}); "
            "raise alpha, or lower min_samples or clients"
        )

    def _draw(self, counts: Rows, clients: int, rng: np.random.Generator) -> Shares | None:
        """Shares [classes, clients] of one draw, or None when a class went to full clients only."""
        shares = np.empty((len(counts), clients))
        held = np.zeros(clients, np.int64)
        for label, count in enumerate(counts):
            share = rng.dirichlet(np.full(clients, self.alpha))
            share[held >= counts.sum() / clients] = 0
            total = share.sum()
            if not total > 0:  # only at a tiny alpha, whose draws put all their weight on one client
                return None
            shares[label] = share / total
            held += part_sizes(count, shares[label])
        return shares


def _smallest(counts: Rows, shares: Shares) -> int:
    """Samples of the client that gets fewest."""
    sizes = np.array([part_sizes(count, share) for count, share in zip(counts, shares, strict=True)])
    return int(sizes.sum(axis=0).min())
