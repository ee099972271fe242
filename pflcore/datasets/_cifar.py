"""What both CIFARs share: the official archives in their two layouts, and Parquet exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pflcore.data.samples import Bytes, Mask, Rows, Samples, check_labels
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._bounds import read_data
from pflcore.datasets._image_tables import read_images
from pflcore.datasets._pickle import load_batch
from pflcore.datasets._sources import Source
from pflcore.errors import UserError
from pflcore.options import option

HOST = "https://www.cs.toronto.edu/~kriz"
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Archive:
    """One of the official forms of a dataset: an archive, or the folder that it unpacks to.

    Args:
        archive: The published file.
        folder: What it unpacks to.
        batches: The files in it: those for training in order, then the one for testing.
        binary: Whether they hold plain bytes rather than Python pickles.
    """

    archive: Source
    folder: str
    batches: tuple[str, ...]
    binary: bool


@dataclass(frozen=True)
class Labels:
    """One of the labels that every image has.

    Args:
        key: Its name in a pickled batch.
        column: Its name in a Parquet export.
        classes: Number of its values.
    """

    key: str
    column: str
    classes: int


@dataclass(frozen=True, kw_only=True)
class Cifar(Dataset):
    """Base of CIFAR-10 and CIFAR-100."""

    title: ClassVar[str]
    """Its name as the field writes it."""
    layouts: ClassVar[tuple[Archive, ...]]
    """The first one is downloaded when none is there."""
    kinds: ClassVar[tuple[Labels, ...]]
    """In the order in which a row of the binary layout holds them; the last ones are the classes."""
    licence = "none stated by the authors; cite the report"
    homepage = f"{HOST}/cifar.html"
    access = DOWNLOAD
    original = _SHAPE

    source: str = option(
        "official",
        help="official: the authors' archives; parquet: train*.parquet and test*.parquet of a public export, "
        "whose images may have been compressed with loss.",
        choices=("official", "parquet"),
    )

    def load(self, folder: Path) -> Samples:
        """Read from `folder`, downloading the official archive when there is nothing to read."""
        return self._official(folder) if self.source == "official" else self._parquet(folder)

    def assemble(self, pixels: Bytes, labels: Rows, train: Mask, where: str, source: str) -> Samples:
        """The samples; `labels` [n, kinds] has one column for each of :attr:`kinds`."""
        return self.complete(pixels, labels[:, -1], train, where=where, source=source)

    def _official(self, folder: Path) -> Samples:
        layout, where, contents = _find(folder, self.layouts)
        parse = parse_binary if layout.binary else parse_python
        parts = [parse(contents.pop(name), self.kinds, f"{where}/{name}") for name in layout.batches]
        return self.assemble(*self.join(parts), str(where), where.name)

    def _parquet(self, folder: Path) -> Samples:
        pixels: list[Bytes] = []
        labels: list[Rows] = []
        sizes, encodings, names = [], set(), []
        columns = {kind.column: kind.classes for kind in self.kinds}
        for split in ("train", "test"):
            paths = sorted(folder.glob(f"{split}*.parquet"))
            if not paths:
                raise UserError(
                    f"{folder}: no {split}*.parquet; put the files of a Parquet export of {self.title} there"
                )
            for path in paths:
                images, numbers, formats = read_images(path, _SHAPE, "img", columns)
                pixels.append(images)
                labels.append(numbers)
                encodings |= formats
                names.append(path.name)
            sizes.append(sum(map(len, labels)))
        return self.assemble(
            np.concatenate(pixels),
            np.concatenate(labels),
            np.arange(sizes[1]) < sizes[0],
            str(folder),
            f"{', '.join(names)} ({', '.join(sorted(encodings))} images)",
        )


def parse_python(data: bytes, kinds: tuple[Labels, ...], where: str) -> tuple[Bytes, Rows]:
    """One batch of the Python layout: a pickled dict with ``data`` uint8 [n, 3072] and lists of n labels.

    Returns:
        pixels uint8 [n, 3, 32, 32] and labels int64 [n, kinds].

    Raises:
        UserError: A damaged or dangerous pickle, another shape or type, or a label outside its range.
    """
    batch = load_batch(data, where)
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        found = f"an array of {pixels.shape}" if isinstance(pixels, np.ndarray) else f"a {type(pixels).__name__}"
        raise UserError(f"{where}: 'data' must be a uint8 array of (n, {_PIXELS}), found {found}")
    columns = [_check_list(batch.get(kind.key), kind, len(pixels), where) for kind in kinds]
    return pixels.reshape(-1, *_SHAPE), np.stack(columns, 1)


def _check_list(labels: object, kind: Labels, count: int, where: str) -> Rows:
    if not isinstance(labels, list) or len(labels) != count:
        found = f"{len(labels)} of them" if isinstance(labels, list) else f"a {type(labels).__name__}"
        raise UserError(f"{where}: {kind.key!r} must be a list of {count} integers, found {found}")
    for row, label in enumerate(labels):  # before NumPy sees them: a pickle may hold anything
        if type(label) is not int or not 0 <= label < kind.classes:
            raise UserError(f"{where}: row {row}: label {label!r} is outside 0..{kind.classes - 1}")
    return np.array(labels, np.int64)


def parse_binary(data: bytes, kinds: tuple[Labels, ...], where: str) -> tuple[Bytes, Rows]:
    """One batch of the binary layout: rows of one byte for each kind of label, and 3072 pixel bytes.

    Returns and raises as :func:`parse_python` does.
    """
    width = len(kinds) + _PIXELS
    if len(data) % width:
        raise UserError(f"{where}: {len(data)} bytes are not a multiple of the {width} of one image")
    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
    labels = rows[:, : len(kinds)].astype(np.int64)
    for column, kind in zip(labels.T, kinds, strict=True):
        check_labels(column, kind.classes, where)
    return rows[:, len(kinds) :].reshape(-1, *_SHAPE), labels


def _find(folder: Path, layouts: tuple[Archive, ...]) -> tuple[Archive, Path, dict[str, bytes]]:
    """The layout that is in `folder`, the archive or folder it was found as, and the content of its batches."""
    present = next((layout for layout in layouts if (folder / layout.archive.name).is_file()), None)
    if present is None:
        for layout in layouts:
            if (folder / layout.folder).is_dir():
                return layout, folder / layout.folder, _read_folder(folder / layout.folder, layout.batches)
        present = layouts[0]
        also = [*(layout.archive.name for layout in layouts[1:]), *(f"{layout.folder}/" for layout in layouts)]
        others = " or ".join(also)
        if any(folder.glob("train*.parquet")):
            others += "; or have the Parquet files that are there read, with `source: parquet`"
        present.archive.download(folder, others)
    inside = present.archive.read(folder, [f"{present.folder}/{name}" for name in present.batches])
    return present, folder / present.archive.name, {name.rpartition("/")[2]: data for name, data in inside.items()}


def _read_folder(folder: Path, batches: tuple[str, ...]) -> dict[str, bytes]:
    if missing := [name for name in batches if not (folder / name).is_file()]:
        raise UserError(f"{folder}: {missing[0]} is missing; unpack the official archive again")
    return {name: read_data(folder / name) for name in batches}
