"""Coarse classes: one per client, or mixes of them and of their fine classes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import attribute_of, deal_classes, deal_mixes


@PARTITIONS.register
class CoarseClasses(Partition):
    """One coarse class per client, for the study of client embeddings.

    Coarse class ``c`` goes to clients ``c * k`` to ``c * k + k - 1``, with ``k`` = clients / coarse classes. The paper
    says that fine classes are split uniformly among them: the released code gives each client an equal part of every
    fine class, the words could also mean that each gets one fine class.
    """

    name = "coarse_classes"
    citation = "Li et al., FedTP, TNNLS 2023, section IV-E and figure 9; released code"
    example = ("cifar100", 20)
    smoke_clients: ClassVar[int] = 20
    smoke: ClassVar[dict[str, Any]] = {"fine": "shared"}  # a class for each client takes more of them

    fine: str = option(
        "shared", choices=("shared", "single"), help="Whether clients have equal parts of fine classes, or one alone."
    )
    attribute: str = option("coarse", help="The attribute of the dataset that holds the coarse class.")

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        coarse = coarse_of_classes(samples, self.attribute, self.name)
        count = int(coarse.max()) + 1
        each = clients // count
        if clients % count:
            raise UserError(
                f"coarse_classes: {clients} clients are not a multiple of the {count} coarse classes of {samples.name}"
            )
        shares = np.zeros((samples.classes, clients))
        for group in range(count):
            fine = np.flatnonzero(coarse == group)
            if self.fine == "shared":
                shares[fine, group * each : (group + 1) * each] = 1
            elif len(fine) == each:
                shares[fine, group * each + np.arange(each)] = 1
            else:
                raise UserError(
                    f"coarse_classes.fine = 'single' needs as many clients per coarse class as it has fine classes: "
                    f"{len(fine)}, not {each}"
                )
        return deal_classes(samples, sides, shares, rng)


@PARTITIONS.register
class Pachinko(Partition):
    """Mixes drawn in two stages: Dir(alpha) over coarse classes, Dir(beta) within each.

    Clients draw equally many samples by their mixes, without replacement; classes that have run out are left out. As
    FedTP does on CIFAR-100, training and test samples are dealt as one and stay what the dataset says they are, so the
    share of test samples differs a little from client to client.
    """

    name = "pachinko"
    citation = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, appendix; as in FedTP"
    example = ("cifar100", 20)

    alpha: float = option(0.3, help="Concentration over coarse classes.", gt=0)
    beta: float = option(10.0, help="Concentration over the fine classes of a coarse class.", gt=0)
    attribute: str = option("coarse", help="The attribute of the dataset that holds the coarse class.")

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        coarse = coarse_of_classes(samples, self.attribute, self.name)
        count = int(coarse.max()) + 1
        outer = rng.dirichlet(np.full(count, self.alpha), clients)
        mixes = np.empty((clients, samples.classes))
        for group in range(count):
            fine = np.flatnonzero(coarse == group)
            mixes[:, fine] = outer[:, [group]] * rng.dirichlet(np.full(len(fine), self.beta), clients)
        return deal_mixes(samples, [np.concatenate(sides)], mixes, coarse, rng)


def coarse_of_classes(samples: Samples, attribute: str, scheme: str) -> Rows:
    """Return the coarse class of each class, int64 [classes], as the samples' attribute says."""
    values = attribute_of(samples, attribute, scheme).values
    coarse = np.full(samples.classes, -1)
    coarse[samples.labels] = values
    wrong = coarse[samples.labels] != values
    if wrong.any():
        name = samples.class_names[samples.labels[int(wrong.argmax())]]
        raise UserError(
            f"partition {scheme!r}: class {name!r} of {samples.name} is in two values of {attribute!r}; it needs an "
            "attribute that groups classes"
        )
    if (coarse < 0).any():
        name = samples.class_names[int((coarse < 0).argmax())]
        raise UserError(f"partition {scheme!r}: {samples.name} has no sample of class {name!r}")
    return coarse
