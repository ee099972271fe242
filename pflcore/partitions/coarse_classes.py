"""One coarse class per client."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import coarse_of_classes, deal_classes


@PARTITIONS.register
class CoarseClasses(Partition):
    """One coarse class per client, for the study of client embeddings.

    Coarse class ``c`` goes to clients ``c * k`` to ``c * k + k - 1``, with ``k`` = clients / coarse classes. The paper
    says that fine classes are split uniformly among them: the released code gives each client an equal part of every
    fine class (on CIFAR-100 with 100 clients: 500 training and 100 test samples), the words could also mean that each
    gets one fine class.
    """

    citation = "Li et al., FedTP, TNNLS 2023, section IV-E and figure 9; released code"
    example = ("cifar100", 20)
    smoke_clients: ClassVar[int] = 20
    smoke: ClassVar[dict[str, Any]] = {"fine": "shared"}  # a class for each client takes more of them

    fine: str = option(
        "shared",
        help="shared: each client has an equal part of all fine classes; single: each has one fine class for itself.",
        choices=("shared", "single"),
    )
    attribute: str = option("coarse", help="The attribute of the dataset that holds the coarse class.")

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Deal each fine class to the clients of its coarse class."""
        coarse = coarse_of_classes(samples, self.attribute, self.name)
        count = int(coarse.max()) + 1
        if clients % count:
            raise UserError(
                f"coarse_classes: {clients} clients are not a multiple of the {count} coarse classes of {samples.name}"
            )
        each = clients // count
        return deal_classes(samples, sides, self._places(coarse, each), rng)

    def _places(self, coarse: Rows, each: int) -> np.ndarray:
        """Return weights float64 [classes, clients] of the clients in each fine class."""
        weights = np.zeros((len(coarse), (int(coarse.max()) + 1) * each))
        for group in range(int(coarse.max()) + 1):
            fine = np.flatnonzero(coarse == group)
            if self.fine == "single" and len(fine) != each:
                raise UserError(
                    f"coarse_classes.fine = 'single' needs as many clients per coarse class as it has fine classes: "
                    f"{len(fine)}, not {each}"
                )
            for place, label in enumerate(fine):
                own = [group * each + place] if self.fine == "single" else range(group * each, (group + 1) * each)
                weights[label, list(own)] = 1.0
        return weights
