"""MNIST from its four idx files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import ClassVar

import numpy as np

from pflcore.data.samples import Bytes, Rows, Samples, check_labels
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._bounds import read_data
from pflcore.datasets._idx import parse_idx
from pflcore.datasets._sources import DAMAGED, Source
from pflcore.errors import UserError

_HOST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_PLACES = ("", "raw/", "MNIST/raw/")
_ALSO = "the unpacked file"


@DATASETS.register
class Mnist(Dataset):
    """MNIST, 60,000 + 10,000 handwritten digits, grey images of 28x28.

    The four idx files are looked for in the dataset's folder, in ``raw/`` and in ``MNIST/raw/``: as ``.gz``, whose hash
    is checked, or unpacked. They are downloaded when none is there.
    """

    citation = "Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998"
    licence = "CC BY-SA 3.0"
    homepage = "http://yann.lecun.com/exdb/mnist/"
    download_size = "12 MB"
    access = DOWNLOAD
    files = tuple(f"{place}train-images-idx3-ubyte*" for place in _PLACES)
    original = (1, 28, 28)
    class_names = tuple("0123456789")
    counts = (60_000, 10_000)
    mean = (0.1307,)
    std = (0.3081,)
    # Images and labels for training, then for testing.
    sources: ClassVar[tuple[Source, ...]] = (
        Source(f"{_HOST}/train-images-idx3-ubyte.gz", "md5", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Source(f"{_HOST}/train-labels-idx1-ubyte.gz", "md5", "d53e105ee54ea40749a09fcbcd1e9432"),
        Source(f"{_HOST}/t10k-images-idx3-ubyte.gz", "md5", "9fb629c4189551a2d022fa330f9573f3"),
        Source(f"{_HOST}/t10k-labels-idx1-ubyte.gz", "md5", "ec29112dd5afa0611ce80d1b7f02629c"),
    )

    def load(self, folder: Path) -> Samples:
        """Read from `folder`, downloading the files that are missing."""
        place = _find(folder, self.sources)
        parts, names = [], []
        for images, labels in (self.sources[:2], self.sources[2:]):
            paths = tuple(_unpacked(place, source) or source.obtain(place, _ALSO) for source in (images, labels))
            parts.append(_read_pair(paths[0], paths[1], self.original))
            names += [path.name for path in paths]
        return self.complete(*self.join(parts), where=str(place), source=", ".join(names))


def _find(folder: Path, sources: tuple[Source, ...]) -> Path:
    """The first of the possible places that holds any of the files; the folder itself when none does."""
    for place in (folder / name for name in _PLACES):
        if any((place / source.name).is_file() or _unpacked(place, source) for source in sources):
            return place
    return folder


def _unpacked(place: Path, source: Source) -> Path | None:
    """The file without compression, when it is there and the compressed one is not."""
    path = place / source.name.removesuffix(".gz")
    return path if path.is_file() and not (place / source.name).is_file() else None


def _read_pair(images: Path, labels: Path, shape: tuple[int, ...]) -> tuple[Bytes, Rows]:
    pixels, digits = parse_idx(_content(images), 3, str(images)), parse_idx(_content(labels), 1, str(labels))
    if pixels.shape[1:] != shape[1:]:
        found = "x".join(map(str, pixels.shape[1:]))
        raise UserError(f"{images}: images of {found} instead of {shape[1]}x{shape[2]}; get the official file")
    if len(pixels) != len(digits):
        raise UserError(f"{labels}: {len(digits):,} labels for {len(pixels):,} images; get the official file")
    numbers = digits.astype(np.int64)
    check_labels(numbers, 10, str(labels))
    return pixels[:, None], numbers


def _content(path: Path) -> bytes:
    data = read_data(path)
    if path.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except DAMAGED as error:
        raise UserError(f"{path}: not a readable gzip file ({error}); delete it and get it again") from None
