"""Clients of very different size."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides, deal, draws_for, part_sizes, redraw


@PARTITIONS.register
class Quantity(Partition):
    """Random parts of very unequal size.

    Sizes are drawn from a Dirichlet distribution, labels are not skewed. All sizes are drawn again until every client
    has ``min_samples``.
    """

    citation = "Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022, quantity skew"
    smoke: ClassVar[dict[str, Any]] = {"min_samples": 1}

    alpha: float = option(0.5, help="Concentration: small is a few large clients, large is equal sizes.", gt=0)
    min_samples: int = option(10, help="Every client gets at least this many samples for training and for test.", ge=1)

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Draw sizes until every client has enough, then cut."""
        shares = redraw(
            lambda: rng.dirichlet(np.full(clients, self.alpha))[None],
            [np.array([len(rows)]) for rows in sides],
            self.min_samples,
            draws_for(clients),
            f"quantity: cannot give each of {clients:,} clients min_samples = {self.min_samples} of {samples.name} at "
            f"alpha = {self.alpha:g}",
        )
        owners = np.full(len(samples), -1)
        for rows in sides:
            deal(rows, part_sizes(len(rows), shares[0]), owners, rng)
        return owners
