"""MNIST from its four idx files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import ClassVar

import numpy as np

from pflcore.data.samples import Bytes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._download import Source
from pflcore.datasets._files import read_file, reading

_HOST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_PLACES = ("", "raw/", "MNIST/raw/")


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
        names = {name for source in self.sources for name in (source.name, _unpacked(source))}
        places = (folder / place for place in _PLACES)
        place = next((one for one in places if any((one / name).is_file() for name in names)), folder)
        paths = []
        for source in self.sources:
            unpacked = not (place / source.name).is_file() and (place / _unpacked(source)).is_file()
            paths.append(place / _unpacked(source) if unpacked else source.obtain(place, "the unpacked file"))
        parts = [_read_pair(*paths[:2]), _read_pair(*paths[2:])]
        return self.complete(*self.join(parts), where=str(place), source=", ".join(path.name for path in paths))


def _unpacked(source: Source) -> str:
    return source.name.removesuffix(".gz")


def _read_pair(images: Path, labels: Path) -> tuple[Bytes, Rows]:
    """Return images uint8 [n, 1, 28, 28] and labels."""
    arrays = []
    for path, shape in ((images, (1, 28, 28)), (labels, ())):
        with reading(path):
            data = read_file(path)
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            # The third number of the header is that of the dimensions; each has its size in four bytes.
            count, header = int.from_bytes(data[4:8], "big"), 4 + 4 * data[3]
            arrays.append(np.frombuffer(data, np.uint8, offset=header).reshape(count, *shape))
    return arrays[0], arrays[1].astype(np.int64)
