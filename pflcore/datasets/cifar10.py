"""CIFAR-10 from its official archives or from a Parquet export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pflcore.datasets import DATASETS
from pflcore.datasets._archives import Archive
from pflcore.datasets._base import Dataset
from pflcore.datasets._image_tables import read_images
from pflcore.datasets._pickle import load_batch
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.samples import Pixels, Rows, Samples, check_labels

_HOST = "https://www.cs.toronto.edu/~kriz"
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


@DATASETS.register
@dataclass(frozen=True, kw_only=True)
class Cifar10(Dataset):
    """CIFAR-10, 50,000 + 10,000 colour images of 32x32 in 10 classes.

    The official source is looked for as ``cifar-10-python.tar.gz``, ``cifar-10-binary.tar.gz``,
    ``cifar-10-batches-py/`` and ``cifar-10-batches-bin/``, in this order, and downloaded when none is there. Mean and
    std are the field's customary ones.
    """

    citation = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    licence = "none stated by the authors; cite the report"
    download_size = "170 MB"
    shape = (3, 32, 32)
    classes = 10
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    counts = (50_000, 10_000)
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)

    source: str = option(
        "official",
        help="official: the authors' archives; parquet: train*.parquet and test*.parquet with columns img and label, "
        "whose images may have been compressed with loss.",
        choices=("official", "parquet"),
    )

    def load(self, folder: Path) -> Samples:
        """Read from `folder`, downloading the official archive when there is nothing to read."""
        return self._official(folder) if self.source == "official" else self._parquet(folder)

    def _official(self, folder: Path) -> Samples:
        layout, where, contents = _find(folder)
        parts = [layout.parse(contents[name], f"{where}/{name}") for name in layout.members]
        sizes = [len(labels) for _, labels in parts]
        return self.complete(
            np.concatenate([pixels for pixels, _ in parts]),
            np.concatenate([labels for _, labels in parts]),
            np.arange(sum(sizes)) < sum(sizes[:-1]),
            where=str(where),
            source=where.name,
        )

    def _parquet(self, folder: Path) -> Samples:
        pixels: list[Pixels] = []
        labels: list[Rows] = []
        sizes, encodings, names = [], set(), []
        for split in ("train", "test"):
            paths = sorted(folder.glob(f"{split}*.parquet"))
            if not paths:
                raise UserError(f"{folder}: no {split}*.parquet; put the files of a Parquet export of CIFAR-10 there")
            for path in paths:
                images, classes, formats = read_images(path, self.shape, self.classes)
                pixels.append(images)
                labels.append(classes)
                encodings |= formats
                names.append(path.name)
            sizes.append(sum(map(len, labels)))
        return self.complete(
            np.concatenate(pixels),
            np.concatenate(labels),
            np.arange(sizes[1]) < sizes[0],
            where=str(folder),
            source=f"{', '.join(names)} ({', '.join(sorted(encodings))} images)",
        )


def parse_python(data: bytes, where: str) -> tuple[Pixels, Rows]:
    """One batch of the Python layout: a pickled dict with ``data`` uint8 [n, 3072] and ``labels``, a list."""
    batch = load_batch(data, where)
    pixels, labels = batch.get("data"), batch.get("labels")
    width = int(np.prod(Cifar10.shape))
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != width:
        found = f"an array of {pixels.shape}" if isinstance(pixels, np.ndarray) else f"a {type(pixels).__name__}"
        raise UserError(f"{where}: 'data' must be a uint8 array of (n, {width}), found {found}")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        found = f"{len(labels)} of them" if isinstance(labels, list) else f"a {type(labels).__name__}"
        raise UserError(f"{where}: 'labels' must be a list of {len(pixels)} integers, found {found}")
    for row, label in enumerate(labels):  # before NumPy sees them: a pickle may hold anything
        if type(label) is not int or not 0 <= label < Cifar10.classes:
            raise UserError(f"{where}: row {row}: label {label!r} is outside 0..{Cifar10.classes - 1}")
    return pixels.reshape(-1, *Cifar10.shape), np.array(labels, np.int64)


def parse_binary(data: bytes, where: str) -> tuple[Pixels, Rows]:
    """One batch of the binary layout: rows of one label byte and 3072 pixel bytes."""
    width = 1 + int(np.prod(Cifar10.shape))
    if len(data) % width:
        raise UserError(f"{where}: {len(data)} bytes are not a multiple of the {width} of one image")
    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
    labels = rows[:, 0].astype(np.int64)
    check_labels(labels, Cifar10.classes, where)
    return rows[:, 1:].reshape(-1, *Cifar10.shape), labels


@dataclass(frozen=True)
class Layout:
    """One of the official forms of the dataset: an archive, or the folder that it unpacks to."""

    archive: Archive
    folder: str
    suffix: str
    parse: Callable[[bytes, str], tuple[Pixels, Rows]]

    @property
    def members(self) -> list[str]:
        """The training batches in order, then the test batch."""
        return [name + self.suffix for name in _BATCHES]


LAYOUTS = (
    Layout(
        Archive(
            f"{_HOST}/cifar-10-python.tar.gz",
            "sha256",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
        "cifar-10-batches-py",
        "",
        parse_python,
    ),
    Layout(
        Archive(f"{_HOST}/cifar-10-binary.tar.gz", "md5", "c32a1d4ab5d03f1284b67883e8d87530"),
        "cifar-10-batches-bin",
        ".bin",
        parse_binary,
    ),
)


def _find(folder: Path) -> tuple[Layout, Path, dict[str, bytes]]:
    """The layout that is in `folder`, the archive or folder it was found as, and the content of its batches."""
    present = next((layout for layout in LAYOUTS if (folder / layout.archive.name).is_file()), None)
    if present is None:
        for layout in LAYOUTS:
            if (folder / layout.folder).is_dir():
                return layout, folder / layout.folder, _read_folder(folder / layout.folder, layout.members)
        present = LAYOUTS[0]
        also = [LAYOUTS[1].archive.name, *(f"{layout.folder}/" for layout in LAYOUTS)]
        present.archive.download(folder, " or ".join(also))
    inside = present.archive.read(folder, [f"{present.folder}/{name}" for name in present.members])
    return present, folder / present.archive.name, {name.rpartition("/")[2]: data for name, data in inside.items()}


def _read_folder(folder: Path, members: list[str]) -> dict[str, bytes]:
    if missing := [name for name in members if not (folder / name).is_file()]:
        raise UserError(f"{folder}: {missing[0]} is missing; unpack the official archive again")
    return {name: (folder / name).read_bytes() for name in members}
