"""CIFAR-10 and CIFAR-100: their official archives, packed or unpacked, and Parquet exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import SPLITS, Attribute, Bytes, Rows, Samples, check_labels
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, HALF, Dataset
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import load_pickle, reading
from pflcore.datasets._images import DecodeOptions, decode_images, read_tables
from pflcore.errors import UserError
from pflcore.options import option

_HOST = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True, kw_only=True)
class Cifar(Dataset):
    """Base of CIFAR-10 and CIFAR-100; the archive is read rather than the unpacked folder if both are present."""

    archive: ClassVar[Source]
    batches: ClassVar[tuple[str, ...]]  # names of the pickles: the training batches in order, then the test batch
    # The kinds of labels, the classes last: for each, its key in a batch and its column in an export.
    kinds: ClassVar[tuple[tuple[str, str], ...]]
    citation = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    licence = "none stated by the authors; cite the report"
    homepage = f"{_HOST}/cifar.html"
    access = DOWNLOAD
    original = (3, 32, 32)
    counts = (50_000, 10_000)

    source: str = option("official", choices=("official", "parquet"), help="The authors' archive, or a public export.")

    def data_files(self, folder: Path) -> list[DataFile]:
        if self.source == "parquet":
            return [DataFile("Parquet export", folder, self.files[2:])]
        return [DataFile(self.name, folder, self.files[:2], self.archive, self.download_size, automatic=True)]

    def load(self, folder: Path) -> Samples:
        parts: list[tuple[Bytes, Rows]] = []
        if self.source == "official":
            unpacked = self.files[1].rstrip("/")
            exists = (folder / unpacked).is_dir() or (folder / self.archive.name).is_file()
            if not exists and any(folder.glob("train*.parquet")):
                raise UserError(f"{folder}: has Parquet files alone; set `source: parquet`, or add {self.archive.name}")
            with self.open(folder, [self.archive], unpacked, self.batches) as (files, source):
                for batch in self.batches:
                    where = f"{files.where}/{batch}"
                    with reading(where):
                        content = load_pickle(files.read(batch), where)
                        labels = self._labels([content[key] for key, _ in self.kinds], where)
                        parts.append((content["data"].reshape(len(labels), *self.original), labels))
            pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            train, where = np.arange(len(labels)) < len(labels) - len(parts[-1][1]), files.where
        else:
            tables, train = read_tables(folder, "img", [column for _, column in self.kinds])
            for split, mask in zip(SPLITS, (train, ~train), strict=True):
                if not mask.any():
                    advice = f"put the files of a Parquet export of {self.name} there"
                    raise UserError(f"{folder}: no {split}*.parquet; {advice}")
            labels = np.concatenate([self._labels(list(table.columns.values()), str(table.path)) for table in tables])
            readers = [reader for table in tables for reader in table.readers()]
            options = DecodeOptions(self.original, formats=("PNG", "JPEG"))
            pixels, formats, _ = decode_images(readers, options, f"decoding {self.name}")
            source = f"{', '.join(table.path.name for table in tables)} ({', '.join(sorted(formats))} images)"
            where = str(folder)
        fields = self.extra_fields(labels, where)
        return self.complete(pixels, labels[:, -1], train, where=where, source=source, **fields)

    def _labels(self, values: list[Any], where: str) -> Rows:
        """Return the labels of all kinds, int64 [n, kinds]."""
        with reading(where):
            return np.stack([np.array(labels) for labels in values], 1).astype(np.int64, casting="safe")

    def extra_fields(self, labels: Rows, where: str) -> dict[str, Any]:
        """Return further fields of the samples from labels of all kinds; raise :class:`UserError` if these disagree."""
        return {}


@DATASETS.register
class Cifar10(Cifar):
    """CIFAR-10, 50,000 + 10,000 colour images of 32x32 in 10 classes.

    A Parquet export has columns ``img`` and ``label``. Mean and std are those that papers commonly use.
    """

    name = "cifar10"
    download_size = "170 MB"
    files = ("cifar-10-python.tar.gz", "cifar-10-batches-py/", "train*.parquet")
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)
    kinds = (("labels", "label"),)
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
_COARSE_OF = {fine: code for code, names in enumerate(_COARSE.values()) for fine in names.split()}
_COARSE_CODES = np.array([_COARSE_OF[name] for name in sorted(_COARSE_OF)])  # the coarse class of each fine class


@DATASETS.register
class Cifar100(Cifar):
    """CIFAR-100, 50,000 + 10,000 colour images of 32x32 in 100 fine classes.

    A Parquet export has columns ``img``, ``fine_label`` and ``coarse_label``. The 20 coarse classes are the attribute
    ``coarse``.
    """

    name = "cifar100"
    download_size = "169 MB"
    files = ("cifar-100-python.tar.gz", "cifar-100-python/", "train*.parquet")
    # The official order of the fine classes is alphabetical.
    class_names = tuple(sorted(_COARSE_OF))
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"coarse": tuple(_COARSE)}
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    smoke: ClassVar[dict[str, Any]] = {"size": 32}
    kinds = (("coarse_labels", "coarse_label"), ("fine_labels", "fine_label"))
    archive = Source(
        f"{_HOST}/{files[0]}", "sha256", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"
    )
    batches = SPLITS

    size: int | None = option(None, ge=32, le=1024, help="Pixels that sides are scaled up to in use; null leaves 32.")
    normalise: str = option("cifar", choices=("cifar", "half"), help="CIFAR-100's mean and std, or 0.5 as FedPerfix.")

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (HALF, HALF) if self.normalise == "half" else (self.mean, self.std)

    def generate_attributes(self, labels: Rows, rng: np.random.Generator) -> dict[str, Attribute]:
        return {"coarse": Attribute(_COARSE_CODES[labels], self.attributes["coarse"])}

    def extra_fields(self, labels: Rows, where: str) -> dict[str, Any]:
        names = self.attributes["coarse"]
        coarse, fine = labels.T.copy()
        check_labels(coarse, len(names), f"{where}: coarse")
        check_labels(fine, self.classes, where)
        expected = _COARSE_CODES[fine]
        if (coarse != expected).any():
            row = int((coarse != expected).argmax())
            problem = f"{self.class_names[fine[row]]} is in {names[expected[row]]}, not in {names[coarse[row]]}"
            raise UserError(f"{where}: row {row}: {problem}; use the official data")
        return {"size": self.size, "attributes": {"coarse": Attribute(coarse, names)}}
