"""CIFAR-10 and CIFAR-100: their official archives, packed or unpacked, and Parquet exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pflcore.data.samples import SPLITS, Attribute, Bytes, Mask, Rows, Samples, check_labels
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, HALF, Dataset
from pflcore.datasets._download import Source
from pflcore.datasets._files import load_pickle, open_files, read_table, reading
from pflcore.datasets._images import Form, decode_images
from pflcore.errors import UserError
from pflcore.options import option

_HOST = "https://www.cs.toronto.edu/~kriz"


class Labels(NamedTuple):
    """One of the labels of every image: its key in a batch, its column in an export, and its number of values."""

    key: str
    column: str
    classes: int


@dataclass(frozen=True, kw_only=True)
class Cifar(Dataset):
    """Base of CIFAR-10 and CIFAR-100; the packed archive is taken before what it unpacks to."""

    archive: ClassVar[Source]
    batches: ClassVar[tuple[str, ...]]  # the pickles: those for training in order, then the one for testing
    kinds: ClassVar[tuple[Labels, ...]]  # of which the last are the classes
    citation = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    licence = "none stated by the authors; cite the report"
    homepage = f"{_HOST}/cifar.html"
    access = DOWNLOAD
    original = (3, 32, 32)
    counts = (50_000, 10_000)

    source: str = option(
        "official", choices=("official", "parquet"), help="official: the authors' archive; parquet: a public export."
    )

    def load(self, folder: Path) -> Samples:
        if self.source == "parquet":
            return self._parquet(folder)
        unpacked, place = self.files[1], folder / self.files[1]
        if (folder / self.archive.name).is_file() or not place.is_dir():
            parquet = "; or have the Parquet files that are there read, with `source: parquet`"
            also = unpacked + (parquet if any(folder.glob("train*.parquet")) else "")
            place = self.archive.obtain(folder, also)
        parts = []
        with open_files(place, lambda name: name.rpartition("/")[2] in self.batches) as files:
            names = {name.rpartition("/")[2]: name for name in files}
            for batch in self.batches:
                if batch not in names:
                    raise UserError(f"{place}: {batch} is missing; get or unpack the official archive again")
                parts.append(self._batch(files[names[batch]](), f"{place}/{names[batch]}"))
        return self.assemble(*self.join(parts), str(place), place.name)

    def assemble(self, pixels: Bytes, labels: Rows, train: Mask, where: str, source: str) -> Samples:
        return self.complete(pixels, labels[:, -1], train, where=where, source=source)

    def _batch(self, data: bytes, where: str) -> tuple[Bytes, Rows]:
        """Return pixels uint8 [n, 3, 32, 32] and labels int64 [n, kinds] of a pickled batch."""
        with reading(where):
            batch = load_pickle(data, where)
            labels = np.stack([np.array(batch[kind.key]) for kind in self.kinds], 1).astype(np.int64, casting="safe")
            self._check(labels, where)
            return batch["data"].reshape(len(labels), *self.original), labels

    def _check(self, labels: Rows, where: str) -> None:
        for column, kind in zip(labels.T, self.kinds, strict=True):
            check_labels(column, kind.classes, where)

    def _parquet(self, folder: Path) -> Samples:
        columns, form = [kind.column for kind in self.kinds], Form(self.original, formats=("PNG", "JPEG"))
        pixels, labels, names, formats = [], [], [], set[str]()
        for split in SPLITS:
            if not (paths := sorted(folder.glob(f"{split}*.parquet"))):
                wanted = f"put the files of a Parquet export of {self.name} there"
                raise UserError(f"{folder}: no {split}*.parquet; {wanted}")
            for path in paths:
                table = read_table(path, "img", columns)
                with reading(path):
                    labels.append(np.array([table.columns[column] for column in columns], np.int64).T)
                self._check(labels[-1], str(path))
                decoded = decode_images(table.readers(), form, f"decoding {path.name}")
                pixels.append(decoded.pixels)
                formats |= decoded.formats
                names.append(path.name)
        train = np.repeat([name.startswith("train") for name in names], [len(part) for part in labels])
        source = f"{', '.join(names)} ({', '.join(sorted(formats))} images)"
        return self.assemble(np.concatenate(pixels), np.concatenate(labels), train, str(folder), source)


@DATASETS.register
class Cifar10(Cifar):
    """CIFAR-10, 50,000 + 10,000 colour images of 32x32 in 10 classes.

    A Parquet export has columns ``img`` and ``label``. Mean and std are the field's customary ones.
    """

    name = "cifar10"
    download_size = "170 MB"
    files = ("cifar-10-python.tar.gz", "cifar-10-batches-py/", "train*.parquet")
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)
    kinds = (Labels("labels", "label", 10),)
    archive = Source(
        f"{_HOST}/{files[0]}", "sha256", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
    )
    batches = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


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


@DATASETS.register
class Cifar100(Cifar):
    """CIFAR-100, 50,000 + 10,000 colour images of 32x32 in 100 fine classes.

    A Parquet export has columns ``img``, ``fine_label`` and ``coarse_label``. The 20 coarse classes are the attribute
    ``coarse``.
    """

    name = "cifar100"
    download_size = "169 MB"
    files = ("cifar-100-python.tar.gz", "cifar-100-python/", "train*.parquet")
    # The official order of the fine classes is the alphabetic one.
    class_names = tuple(sorted(_COARSE_OF))
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"coarse": tuple(_COARSE)}
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    smoke: ClassVar[dict[str, Any]] = {"size": 32}
    kinds = (Labels("coarse_labels", "coarse_label", 20), Labels("fine_labels", "fine_label", 100))
    archive = Source(
        f"{_HOST}/{files[0]}", "sha256", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"
    )
    batches = SPLITS

    size: int | None = option(
        None, ge=32, le=1024, help="Height and width that images are scaled up to in use; null leaves them at 32."
    )
    normalise: str = option(
        "cifar", choices=("cifar", "half"), help="With CIFAR-100's own mean and std, or half of each, as FedPerfix."
    )

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (HALF, HALF) if self.normalise == "half" else (self.mean, self.std)

    def imitate(self, labels: Rows, rng: np.random.Generator) -> dict[str, Attribute]:
        return {"coarse": Attribute(self._coarse()[labels], self.attributes["coarse"])}

    def assemble(self, pixels: Bytes, labels: Rows, train: Mask, where: str, source: str) -> Samples:
        coarse, fine = labels.T.copy()
        names, right = self.attributes["coarse"], self._coarse()[fine]
        if (coarse != right).any():
            row = int((coarse != right).argmax())
            raise UserError(
                f"{where}: sample {row}: {self.class_names[fine[row]]} is in coarse class {names[right[row]]}, not in "
                f"{names[coarse[row]]}; use the official data"
            )
        attributes = {"coarse": Attribute(coarse, names)}
        return self.complete(pixels, fine, train, where=where, source=source, size=self.size, attributes=attributes)

    def _coarse(self) -> Rows:
        """Return the coarse class of each class."""
        return np.array([_COARSE_OF[name] for name in self.class_names])
