"""Partitions by class: a few classes per client, one coarse class, or mixes of coarse and fine classes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.data.samples import Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._assign import assign_by_class, assign_mixtures, get_attribute
from pflcore.partitions._base import Partition, Sides

_SHARE = (0.4, 0.6)  # range of uniform shares, which are then normalised over the holders of a class


@PARTITIONS.register
class Pathological(Partition):
    """A few classes per client, each class held by equally many clients.

    The holders of a class share it in proportion to numbers drawn from U(0.4, 0.6), and the same shares cut its
    training and its test samples. ``clients * classes_per_client`` must be a multiple of the number of classes.

    As released, FedTP's code truncates the size of each part and drops the remaining samples. pFedHN's released code
    also normalises over one share more than there are holders, so about one part in (holders + 1) goes to no client.
    """

    name = "pathological"
    citation = "Shamsian et al., Personalized Federated Learning using Hypernetworks, ICML 2021; as in FedTP"

    classes_per_client: int = option(2, help="Classes that each client holds (papers: 2 of 10, 10 of 100).", ge=1)
    variant: str = option(
        "as_written", choices=("as_written", "as_released", "as_released_pfedhn"), help="How a class is cut; see above."
    )

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        holds = holders(samples, clients, self.classes_per_client, rng)
        shares = (holds * rng.uniform(*_SHARE, holds.shape)).T
        if self.variant == "as_released_pfedhn":
            unused = rng.uniform(*_SHARE, (len(shares), 1))
            owners = assign_by_class(samples, sides, np.concatenate([shares, unused], axis=1), rng, truncate=True)
            return np.where(owners == clients, -1, owners)
        return assign_by_class(samples, sides, shares, rng, truncate=self.variant == "as_released")


def holders(samples: Samples, clients: int, per_client: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Return which client holds which class: bool [clients, classes], `per_client` per row and equally many per column.

    Clients choose in turn, at random among the classes with the most free places.
    """
    classes, places = samples.classes, clients * per_client
    if per_client > classes:
        raise UserError(f"pathological.classes_per_client = {per_client} but {samples.name} has only {classes} classes")
    if places % classes:
        problem = f"{clients} clients with {per_client} classes each make {places} places"
        expected = f"a multiple of the {classes} classes of {samples.name}"
        raise UserError(f"pathological: {problem}, not {expected}; change clients or classes_per_client")
    free_places = np.full(classes, places // classes)
    holds = np.zeros((clients, classes), bool)
    for client, tie_break in enumerate(rng.random((clients, classes))):
        # A choice changes only the chosen class, so choosing one by one is taking the first `per_client` of one order.
        # The free places differ by one at most, so the last clients still find enough different classes.
        chosen = np.argsort(-(free_places + tie_break))[:per_client]
        holds[client, chosen] = True
        free_places[chosen] -= 1
    return holds


@PARTITIONS.register
class CoarseClasses(Partition):
    """One coarse class per client, for the study of client embeddings.

    Coarse class ``c`` goes to clients ``c * k`` to ``c * k + k - 1``, with ``k`` = clients / coarse classes. The paper
    says that fine classes are split uniformly among them. The released code gives each client an equal part of every
    fine class; the words could also mean that each client gets one fine class.
    """

    name = "coarse_classes"
    citation = "Li et al., FedTP, TNNLS 2023, section IV-E and figure 9; released code"
    example = ("cifar100", 20)
    smoke_clients: ClassVar[int] = 20
    smoke: ClassVar[dict[str, Any]] = {"fine": "shared"}  # `single` would need more clients

    fine: str = option("shared", choices=("shared", "single"), help="Equal parts of fine classes, or one alone.")
    attribute: str = option("coarse", help="The attribute of the dataset that holds the coarse class.")

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        coarse = coarse_of_classes(samples, self.attribute, self.name)
        count = int(coarse.max()) + 1
        group_size = clients // count
        if clients % count:
            expected = f"a multiple of the {count} coarse classes of {samples.name}"
            raise UserError(f"coarse_classes: {clients} clients are not {expected}")
        shares = np.zeros((samples.classes, clients))
        for group in range(count):
            fine = np.flatnonzero(coarse == group)
            if self.fine == "shared":
                shares[fine, group * group_size : (group + 1) * group_size] = 1
            elif len(fine) == group_size:
                shares[fine, group * group_size + np.arange(group_size)] = 1
            else:
                needs = f"as many clients per coarse class as it has fine classes: {len(fine)}, not {group_size}"
                raise UserError(f"coarse_classes.fine = 'single' needs {needs}")
        return assign_by_class(samples, sides, shares, rng)


@PARTITIONS.register
class Pachinko(Partition):
    """Mixes drawn in two stages: Dir(alpha) over coarse classes, Dir(beta) within each.

    Clients draw equally many samples by their mixes, without replacement; classes that have run out are skipped. As in
    FedTP on CIFAR-100, training and test samples are assigned together and keep their side of the dataset's split, so
    the share of test samples differs slightly between clients.
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
        mixtures = np.empty((clients, samples.classes))
        for group in range(count):
            fine = np.flatnonzero(coarse == group)
            mixtures[:, fine] = outer[:, [group]] * rng.dirichlet(np.full(len(fine), self.beta), clients)
        return assign_mixtures(samples, np.concatenate(sides), mixtures, coarse, rng)


def coarse_of_classes(samples: Samples, attribute: str, scheme: str) -> Rows:
    """Return the coarse class of each class, int64 [classes], from an attribute that must group the classes."""
    values = get_attribute(samples, attribute, scheme).values
    coarse = np.full(samples.classes, -1)
    coarse[samples.labels] = values
    wrong = coarse[samples.labels] != values
    if wrong.any():
        name = samples.class_names[samples.labels[int(wrong.argmax())]]
        problem = f"class {name!r} of {samples.name} is in two values of {attribute!r}"
        raise UserError(f"partition {scheme!r}: {problem}; it needs an attribute that groups classes")
    if (coarse < 0).any():
        name = samples.class_names[int((coarse < 0).argmax())]
        raise UserError(f"partition {scheme!r}: {samples.name} has no sample of class {name!r}")
    return coarse
