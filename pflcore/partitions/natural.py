"""Clients as they are in the data: a role of a play, a user."""

from __future__ import annotations

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import attribute_of


@PARTITIONS.register
class Natural(Partition):
    """One value of an attribute per client: a role of a play, a user of a device.

    When there are more values than clients, that many are drawn at random among those with enough samples.
    """

    citation = "Caldas et al., LEAF: A Benchmark for Federated Settings, 2018"
    example = ("shakespeare", 8)

    attribute: str = option("role", help="The attribute of the dataset whose values are the clients.")
    min_samples: int = option(1, help="Fewest samples, on each side of the split, of a value that can be chosen.", ge=1)

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Choose the values, in their order, and give each to a client."""
        values = attribute_of(samples, self.attribute, self.name)
        held = [np.bincount(values.values[rows], minlength=len(values.names)) for rows in sides]
        enough = np.flatnonzero(np.min(held, axis=0) >= self.min_samples)
        if len(enough) < clients:
            raise UserError(
                f"natural: {clients:,} clients, but {samples.name} has {len(enough):,} values of {self.attribute!r} "
                f"with at least {self.min_samples} samples on each side (of {len(values.names):,} in all); use fewer "
                "clients"
            )
        chosen = np.sort(rng.choice(enough, clients, replace=False))
        client_of = np.full(len(values.names), -1)
        client_of[chosen] = np.arange(clients)
        return client_of[values.values]
