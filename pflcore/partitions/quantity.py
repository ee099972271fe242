"""Clients of very different size."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import Shares, deal_parts, redraw


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
        counts = [np.array([len(rows)]) for rows in sides]
        draw = partial(self._draw, clients, rng)
        return deal_parts(samples, sides, redraw(self, samples, counts, clients, draw)[0], rng)

    def _draw(self, clients: int, rng: np.random.Generator) -> Shares:
        return rng.dirichlet(np.full(clients, self.alpha))[None]
