"""Dirichlet label skew among the clients of each domain."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import Shares, class_counts, clients_by_domain, deal_classes, redraw


@PARTITIONS.register
class DomainDirichlet(Partition):
    """Several clients per domain, which share its classes in proportions drawn from Dir(alpha).

    Within each domain all shares are drawn again until its clients have ``min_samples``. FedPerfix's setting on
    Office-Home is 16 clients with ``alpha: 1.0, min_samples: 134, test_share: 0.15, test_draw: stratified``.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, section 4.1; released code"
    example = ("digits5", 15)
    smoke: ClassVar[dict[str, Any]] = {"min_samples": 1}

    alpha: float = option(1.0, help="Concentration: small is a few classes per client, large is nearly i.i.d.", gt=0)
    min_samples: int = option(10, help="Every client gets at least this many samples on each side of the split.", ge=1)
    attribute: str = option("domain", help="The attribute of the dataset that holds the domain.")

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Draw shares domain by domain, then cut the classes of each."""
        owners = np.full(len(samples), -1)
        for inside, own in clients_by_domain(samples, self.attribute, clients, self.name):
            parts = [side[inside[side]] for side in sides]
            each = own.stop - own.start
            counts = [class_counts(samples, rows) for rows in parts]
            shares = redraw(self, samples, counts, each, partial(self._draw, samples.classes, each, rng))
            dealt = deal_classes(samples, parts, shares, rng)
            owners = np.where(dealt >= 0, dealt + own.start, owners)
        return owners

    def _draw(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        return rng.dirichlet(np.full(clients, self.alpha), classes)
