"""Two-stage draws: coarse classes, then the fine classes of each."""

from __future__ import annotations

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import coarse_of_classes, deal_mixes


@PARTITIONS.register
class Pachinko(Partition):
    """Mixes drawn in two stages: Dir(alpha) over coarse classes, Dir(beta) within each.

    Clients draw equally many samples by their mixes, without replacement; classes that have run out are left out. As
    FedTP does on CIFAR-100, training and test samples are dealt as one and stay what the dataset says they are, so the
    share of test samples differs a little from client to client.
    """

    citation = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, appendix; as in FedTP"
    example = ("cifar100", 20)

    alpha: float = option(0.3, help="Concentration over coarse classes.", gt=0)
    beta: float = option(10.0, help="Concentration over the fine classes of a coarse class.", gt=0)
    attribute: str = option("coarse", help="The attribute of the dataset that holds the coarse class.")

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Draw all mixes, then deal."""
        coarse = coarse_of_classes(samples, self.attribute, self.name)
        count = int(coarse.max()) + 1
        outer = rng.dirichlet(np.full(count, self.alpha), clients)
        mixes = np.empty((clients, samples.classes))
        for group in range(count):
            fine = np.flatnonzero(coarse == group)
            mixes[:, fine] = outer[:, [group]] * rng.dirichlet(np.full(len(fine), self.beta), clients)
        return deal_mixes(samples, [np.concatenate(sides)], mixes, coarse, rng)
