"""What both CIFARs share: the official archive, packed or unpacked, and Parquet exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from pflcore.data.samples import SPLITS, Bytes, Mask, Rows, Samples, check_labels
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._download import Source
from pflcore.datasets._files import load_pickle, open_files, reading
from pflcore.datasets._images import Form, decode_images
from pflcore.datasets._tables import read_table
from pflcore.errors import UserError
from pflcore.options import option

HOST = "https://www.cs.toronto.edu/~kriz"


class Labels(NamedTuple):
    """One of the labels of every image: its key in a batch, its column in an export, and its number of values."""

    key: str
    column: str
    classes: int


@dataclass(frozen=True, kw_only=True)
class Cifar(Dataset):
    """Base of CIFAR-10 and CIFAR-100."""

    archive: ClassVar[Source]
    unpacked: ClassVar[str]
    """The folder that the archive unpacks to."""
    batches: ClassVar[tuple[str, ...]]
    """The pickles in it: those for training in order, then the one for testing."""
    kinds: ClassVar[tuple[Labels, ...]]
    """The last ones are the classes."""
    licence = "none stated by the authors; cite the report"
    homepage = f"{HOST}/cifar.html"
    access = DOWNLOAD
    original = (3, 32, 32)

    source: str = option(
        "official",
        help="official: the authors' archive; parquet: train*.parquet and test*.parquet of a public export, "
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
        place = folder / self.unpacked
        if (folder / self.archive.name).is_file() or not place.is_dir():
            parquet = "; or have the Parquet files that are there read, with `source: parquet`"
            also = f"{self.unpacked}/" + (parquet if any(folder.glob("train*.parquet")) else "")
            place = self.archive.obtain(folder, also)
        parts = []
        with open_files(place, lambda name: name.rpartition("/")[2] in self.batches) as files:
            names = {name.rpartition("/")[2]: name for name in files}
            for batch in self.batches:
                if batch not in names:
                    raise UserError(f"{place}: {batch} is missing; get or unpack the official archive again")
                parts.append(self._batch(files[names[batch]](), f"{place}/{names[batch]}"))
        return self.assemble(*self.join(parts), str(place), place.name)

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
        columns = [kind.column for kind in self.kinds]
        form = Form(self.original, formats=("PNG", "JPEG"))
        pixels, labels, names = [], [], []
        formats: set[str] = set()
        for split in SPLITS:
            paths = sorted(folder.glob(f"{split}*.parquet"))
            if not paths:
                raise UserError(
                    f"{folder}: no {split}*.parquet; put the files of a Parquet export of {self.name} there"
                )
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
