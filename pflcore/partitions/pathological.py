"""A few classes per client."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pflcore.data.samples import Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition, Sides
from pflcore.partitions._deal import deal_classes

_SHARE = (0.4, 0.6)  # shares are drawn uniformly from here, then normalised over the holders of a class


@PARTITIONS.register
class Pathological(Partition):
    """A few classes per client, each class held by equally many clients.

    The holders of a class share it in proportion to numbers drawn from U(0.4, 0.6), and the same shares cut its
    training and its test samples. ``clients * classes_per_client`` must be a multiple of the number of classes.

    As released, FedTP's code truncates the size of each part and drops what is left over; pFedHN's code moreover
    normalises over one share more than there are holders, so that about one part in (holders + 1) goes to nobody.
    """

    citation = "Shamsian et al., Personalized Federated Learning using Hypernetworks, ICML 2021; as in FedTP"

    classes_per_client: int = option(2, help="Classes that each client holds (papers: 2 of 10, 10 of 100).", ge=1)
    variant: str = option(
        "as_written",
        choices=("as_written", "as_released", "as_released_pfedhn"),
        help="How a class is cut: without loss, or as FedTP's or pFedHN's released code does.",
    )

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        held = holders(samples, clients, self.classes_per_client, rng)
        shares = (held * rng.uniform(*_SHARE, held.shape)).T
        if self.variant == "as_released_pfedhn":
            unused = rng.uniform(*_SHARE, (len(shares), 1))
            owners = deal_classes(samples, sides, np.concatenate([shares, unused], axis=1), rng, truncate=True)
            return np.where(owners == clients, -1, owners)
        return deal_classes(samples, sides, shares, rng, truncate=self.variant == "as_released")


def holders(samples: Samples, clients: int, each: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Return who holds which class: bool [clients, classes] with `each` per row and the same number in every column.

    Clients choose in turn, at random among the classes with most places left.
    """
    classes, places = samples.classes, clients * each
    if each > classes:
        raise UserError(f"pathological.classes_per_client = {each} but {samples.name} has only {classes} classes")
    if places % classes:
        raise UserError(
            f"pathological: {clients} clients with {each} classes each make {places} places, not a multiple of the "
            f"{classes} classes of {samples.name}; change clients or classes_per_client"
        )
    left = np.full(classes, places // classes)
    held = np.zeros((clients, classes), bool)
    for client, tie_break in enumerate(rng.random((clients, classes))):
        # A choice changes only its own class, so choosing one by one is taking the first of one order. Numbers of
        # places thus stay within one of each other, and the last clients still find enough different classes.
        chosen = np.argsort(-(left + tie_break))[:each]
        held[client, chosen] = True
        left[chosen] -= 1
    return held
