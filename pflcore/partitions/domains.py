"""One domain per client."""

from __future__ import annotations

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import clients_by_domain, deal_parts


@PARTITIONS.register
class Domains(Partition):
    """One domain per client; several clients of one domain share it at random.

    Domain ``d`` goes to clients ``d * k`` to ``d * k + k - 1``, where ``k`` is clients / domains. FedBN's small setting
    on digits, which pFedLA's accuracies suggest, adds ``train_limit: 743``.
    """

    citation = "Li et al., FedBN, ICLR 2021; as in Liang et al., Personalized Federated Learning with Local Attention"
    example = ("digits5", 5)

    attribute: str = option("domain", help="The attribute of the dataset that holds the domain.")

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Deal each domain to its clients."""
        owners = np.full(len(samples), -1)
        for inside, own in clients_by_domain(samples, self.attribute, clients, self.name):
            dealt = deal_parts(samples, [side[inside[side]] for side in sides], np.ones(own.stop - own.start), rng)
            owners = np.where(dealt >= 0, dealt + own.start, owners)
        return owners
