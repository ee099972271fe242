"""The partition into equal random parts."""

from __future__ import annotations

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.partitions import PARTITIONS
from pflcore.partitions._assign import assign_parts
from pflcore.partitions._base import Partition, Sides


@PARTITIONS.register
class Iid(Partition):
    """Equal random parts: every client sees the same distribution.

    Training and test samples are shuffled and cut separately; sizes of clients differ by at most one sample.
    """

    citation = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        return assign_parts(samples, sides, np.ones(clients), rng)
