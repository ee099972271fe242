"""Partitions whose label distributions, or client sizes, are drawn from a Dirichlet distribution."""

from __future__ import annotations

from functools import partial

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._assign import (
    ResampledPartition,
    assign_by_class,
    assign_counts,
    assign_parts,
    class_counts,
    draw_counts,
    part_sizes,
    spread_counts,
)
from pflcore.partitions._base import Sides


@PARTITIONS.register
class Dirichlet(ResampledPartition):
    """Class shares of the clients drawn from Dir(alpha), the same in training and test.

    For each class, the shares of all clients are drawn from a symmetric Dirichlet distribution. In the balanced form,
    clients that already hold an equal part of the training samples get none. All shares are drawn again until every
    client has ``min_samples``. FedPerfix's setting is ``test_share: 0.25, min_samples: 256``.

    With ``sizes: equal``, as in Hsu et al., every client draws its own mix of classes, and then as many training
    samples as the others by that mix, while classes run out. It gets its share of the test samples of each class, so
    test sets are of equal size, too, if training and test have the same classes in proportion. Nothing is drawn again,
    which suits large numbers of clients.
    """

    name = "dirichlet"
    citation = "Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019; balanced as in FedTP"

    alpha: float = ResampledPartition.concentration(0.3)
    min_samples: int = ResampledPartition.minimum()
    sizes: str = option(
        "balanced",
        choices=("balanced", "free", "equal"),
        help="Of clients: as classes are drawn, with a cap at an equal part or free; or equal, of mixes of classes.",
    )

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        counts = [class_counts(samples, rows) for rows in sides]
        if self.sizes == "equal":
            prior = sum(counts) / len(samples)
            mixtures = rng.dirichlet(np.maximum(self.alpha * samples.classes * prior, 1e-9), clients)
            drawn = draw_counts(counts[0], mixtures, np.zeros(samples.classes, np.int64), rng)
            shares = np.where(counts[0] > 0, drawn, 1)  # all have a part of a class without a training sample
            tests = [spread_counts(supply, shares) for supply in counts[1:]]
            return assign_counts(samples, sides, [drawn, *tests], rng)
        shares = self.resample(samples, counts, clients, partial(self._draw, counts[0], clients, rng))
        return assign_by_class(samples, sides, shares, rng)

    def _draw(self, counts: Rows, clients: int, rng: np.random.Generator) -> np.ndarray | None:
        """Return shares [classes, clients] of one draw, or None if all weight of a class is on full clients."""
        shares = np.empty((len(counts), clients))
        sizes = np.zeros(clients, np.int64)
        for label, count in enumerate(counts):
            share = rng.dirichlet(np.full(clients, self.alpha))
            if self.sizes == "balanced":
                share[sizes >= counts.sum() / clients] = 0
            total = share.sum()
            if not total > 0:  # occurs only for a tiny alpha, where one client has all the weight
                return None
            shares[label] = share / total
            sizes += part_sizes(count, shares[label])
        return shares


@PARTITIONS.register
class Quantity(ResampledPartition):
    """Random parts of very unequal size.

    Sizes are drawn from a Dirichlet distribution, labels are not skewed. All sizes are drawn again until every client
    has ``min_samples``.
    """

    name = "quantity"
    citation = "Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022, quantity skew"

    alpha: float = ResampledPartition.concentration(0.5)
    min_samples: int = ResampledPartition.minimum()

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        counts = [np.array([len(rows)]) for rows in sides]
        weights = np.full(clients, self.alpha)
        shares = self.resample(samples, counts, clients, lambda: rng.dirichlet(weights)[None])
        return assign_parts(samples, sides, shares[0], rng)
