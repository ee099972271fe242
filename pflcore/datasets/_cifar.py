"""What both CIFARs share: the official archive, packed or unpacked, and Parquet exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from pflcore.data.samples import Bytes, Mask, Rows, Samples, check_labels
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._download import Source
from pflcore.datasets._files import load_pickle, open_files, reading
from pflcore.datasets._images import Form, decode_images
from pflcore.datasets._tables import read_table
from pflcore.errors import UserError
from pflcore.options import option

HOST = "https://www.cs.toronto.edu/~kriz"
_SHAPE = (3, 32, 32)


class Labels(NamedTuple):
    """One of the labels of every image: its key in a batch, its column in an export, and its number of values."""

    key: str
    column: str
    classes: int


@dataclass(frozen=True, kw_only=True)
class Cifar(Dataset):
    """Base of CIFAR-10 and CIFAR-100."""

    title: ClassVar[str]
    """Its name as the field writes it."""
    archives: ClassVar[tuple[tuple[Source, str], ...]]
    """The official archives, and the folder that each unpacks to; the first one is downloaded when none is there."""
    batches: ClassVar[tuple[str, ...]]
    """The files in them: those for training in order, then the one for testing; plain bytes with the suffix .bin."""
    kinds: ClassVar[tuple[Labels, ...]]
    """In the order of a row of plain bytes; the last ones are the classes."""
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
        """Return the samples; `labels` [n, kinds] has one column for each of :attr:`kinds`."""
        return self.complete(pixels, labels[:, -1], train, where=where, source=source)

    def _official(self, folder: Path) -> Samples:
        place = self._place(folder)
        parts = []
        with open_files(place, lambda name: _stem(name) in self.batches) as files:
            found = {_stem(name): (f"{place}/{name}", read) for name, read in files.items()}
            for name in self.batches:
                if name not in found:
                    raise UserError(f"{place}: {name} is missing; get or unpack the official archive again")
                where, read = found[name]
                parts.append(self._batch(read(), where))
        return self.assemble(*self.join(parts), str(place), place.name)

    def _place(self, folder: Path) -> Path:
        """Return the archive or the folder to read, after downloading the archive when there is neither."""
        for source, _ in self.archives:
            if (folder / source.name).is_file():
                return source.check(folder)
        for _, unpacked in self.archives:
            if (folder / unpacked).is_dir():
                return folder / unpacked
        first, *others = self.archives
        also = " or ".join([*(source.name for source, _ in others), *(f"{unpacked}/" for _, unpacked in self.archives)])
        if any(folder.glob("train*.parquet")):
            also += "; or have the Parquet files that are there read, with `source: parquet`"
        return first[0].obtain(folder, also)

    def _batch(self, data: bytes, where: str) -> tuple[Bytes, Rows]:
        """Read a batch, pickled or of plain bytes. Return pixels uint8 [n, 3, 32, 32] and labels int64 [n, kinds]."""
        with reading(where):
            if where.endswith(".bin"):
                rows = np.frombuffer(data, np.uint8).reshape(-1, len(self.kinds) + 3072)
                pixels, labels = rows[:, len(self.kinds) :], rows[:, : len(self.kinds)]
            else:
                batch = load_pickle(data, where)
                pixels, labels = batch["data"], np.stack([np.array(batch[kind.key]) for kind in self.kinds], 1)
            for column, kind in zip(labels.T, self.kinds, strict=True):
                check_labels(column, kind.classes, where)
            return pixels.reshape(len(labels), *_SHAPE), labels.astype(np.int64, casting="safe")

    def _parquet(self, folder: Path) -> Samples:
        pixels, labels, sizes, names = [], [], [], []
        formats: set[str] = set()
        for split in ("train", "test"):
            paths = sorted(folder.glob(f"{split}*.parquet"))
            if not paths:
                raise UserError(
                    f"{folder}: no {split}*.parquet; put the files of a Parquet export of {self.title} there"
                )
            for path in paths:
                table = read_table(path, "img", [kind.column for kind in self.kinds])
                with reading(path):
                    columns = [np.array(table.columns[kind.column], np.int64) for kind in self.kinds]
                for column, kind in zip(columns, self.kinds, strict=True):
                    check_labels(column, kind.classes, str(path))
                decoded = decode_images(table.readers(), Form(_SHAPE, formats=("PNG", "JPEG")), f"decoding {path.name}")
                pixels.append(decoded.pixels)
                labels.append(np.stack(columns, 1))
                formats |= decoded.formats
                names.append(path.name)
            sizes.append(sum(map(len, labels)))
        return self.assemble(
            np.concatenate(pixels),
            np.concatenate(labels),
            np.arange(sizes[1]) < sizes[0],
            str(folder),
            f"{', '.join(names)} ({', '.join(sorted(formats))} images)",
        )


def _stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".bin")
