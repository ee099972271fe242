"""CIFAR-100 from its official archive or from a Parquet export."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import Attribute, Bytes, Mask, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._cifar import HOST, Cifar, Labels
from pflcore.datasets._download import Source
from pflcore.errors import UserError
from pflcore.options import option

_COARSE = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
_COARSE_OF = {fine: number for number, fines in enumerate(_COARSE.values()) for fine in fines.split()}
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@DATASETS.register
class Cifar100(Cifar):
    """CIFAR-100, 50,000 + 10,000 colour images of 32x32 in 100 fine classes.

    The official source is looked for as ``cifar-100-python.tar.gz`` and ``cifar-100-python/``, in this order, and
    downloaded when neither is there. A Parquet export has columns ``img``, ``fine_label`` and ``coarse_label``. The 20
    coarse classes are the attribute ``coarse``.
    """

    citation = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    download_size = "169 MB"
    files = ("cifar-100-python.tar.gz", "cifar-100-python/", "train*.parquet")
    # The official order of the fine classes is the alphabetic one.
    class_names = tuple(sorted(_COARSE_OF))
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"coarse": tuple(_COARSE)}
    coarse_of: ClassVar[tuple[int, ...]] = tuple(_COARSE_OF[name] for name in sorted(_COARSE_OF))
    """The coarse class of each class."""
    counts = (50_000, 10_000)
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    smoke: ClassVar[dict[str, Any]] = {"size": 32}
    kinds = (Labels("coarse_labels", "coarse_label", 20), Labels("fine_labels", "fine_label", 100))
    archive = Source(
        f"{HOST}/cifar-100-python.tar.gz", "sha256", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"
    )
    unpacked = "cifar-100-python"
    batches = ("train", "test")

    size: int | None = option(
        None,
        help="Height and width in pixels that images are scaled up to when they are used; null leaves them at 32.",
        ge=32,
        le=1024,
    )
    normalise: str = option(
        "cifar",
        help="cifar: with CIFAR-100's own mean and std; half: with 0.5 for both, as FedPerfix does.",
        choices=("cifar", "half"),
    )

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std with the present options."""
        return _HALF if self.normalise == "half" else (self.mean, self.std)

    def imitate(self, labels: Rows, rng: np.random.Generator) -> dict[str, Attribute]:
        """Return the coarse classes that generated samples of the given classes have to have."""
        return {"coarse": Attribute(np.array(self.coarse_of)[labels], self.attributes["coarse"])}

    def assemble(self, pixels: Bytes, labels: Rows, train: Mask, where: str, source: str) -> Samples:
        """Return the samples with their coarse classes. Raise :class:`UserError` where these are wrong."""
        coarse, fine = labels.T.copy()
        names = self.attributes["coarse"]
        wrong = coarse != np.array(self.coarse_of)[fine]
        if wrong.any():
            row = int(wrong.argmax())
            raise UserError(
                f"{where}: sample {row}: {self.class_names[fine[row]]} is in coarse class "
                f"{names[self.coarse_of[fine[row]]]}, not in {names[coarse[row]]}; use the official data"
            )
        attributes = {"coarse": Attribute(coarse, names)}
        return self.complete(pixels, fine, train, where=where, source=source, size=self.size, attributes=attributes)
