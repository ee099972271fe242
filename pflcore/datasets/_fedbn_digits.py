"""The digits of five domains as FedBN's authors publish them: pickled pairs of images and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pflcore.data.samples import Bytes, Rows
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import load_pickle, open_files, reading
from pflcore.errors import UserError

# The authors' repository links to this file; the hash is the one that its host shows for this revision, as a public
# project that checked it says.
ARCHIVE = Source(
    "https://huggingface.co/datasets/Jemary/FedBN_Dataset/resolve/0b6cd64d780662b683a373ddb23aa25d1d968cf8"
    "/digit_dataset.zip",
    "sha256",
    "6c006e41ce16404aab520895a5c510166453c8b58ed2e7eb7e23e133e1fa4221",
)
PARTS = 10
"""Training files of each domain."""
PART_SIZE = 743.8
"""Images of a training file before rounding: a tenth of USPS, the smallest domain."""


class _Domain(NamedTuple):
    """A domain's folder, the shape of an image, and the images of its test set."""

    folder: str
    shape: tuple[int, ...]
    tests: int


_DOMAINS = {
    "MNIST": _Domain("MNIST", (28, 28, 1), 14_000),
    "SVHN": _Domain("SVHN", (32, 32, 3), 19_858),
    "USPS": _Domain("USPS", (16, 16, 1), 1_860),
    "SynthDigits": _Domain("SynthDigits", (32, 32, 3), 97_791),
    "MNIST-M": _Domain("MNIST_M", (28, 28, 3), 14_000),
}


def sizes(domain: str, parts: int) -> tuple[int, int]:
    """Return the number of images of a domain in its first training files, and in its test file."""
    return int(PART_SIZE * parts), _DOMAINS[domain].tests


def unpacked(folder: Path) -> Path | None:
    """Return where the folders of the domains lie: in `folder`, or in what the archive is called."""
    roots = (folder, folder / Path(ARCHIVE.name).stem)
    return next((root for root in roots if any((root / domain.folder).is_dir() for domain in _DOMAINS.values())), None)


def data_files(folder: Path, domains: Sequence[str]) -> list[DataFile]:
    """Return the archive, or, where some of what it unpacks to is here, the folder of each of `domains`."""
    root = None if (folder / ARCHIVE.name).is_file() else unpacked(folder)
    if root is None:
        return [DataFile("FedBN's files", folder, (ARCHIVE.name,), ARCHIVE, "278 MB", needed=True)]
    return [DataFile(f"FedBN's {domain}", root, (f"{_DOMAINS[domain].folder}/",)) for domain in domains]


def read_digits(folder: Path, parts: int, domains: Sequence[str]) -> Iterator[tuple[str, Bytes, Rows]]:
    """Yield domain, images uint8 [n, 1 or 3, H, W] and labels, first of its training files, then of its test file.

    The archive is downloaded when there is nothing in `folder`.

    Args:
        folder: Holds the archive, or what it unpacks to.
        parts: How many of the training files of each domain are read.
        domains: Which are read, in this order.

    Raises:
        UserError: A file that is missing, damaged, or asks for anything but arrays.
    """
    place = None if (folder / ARCHIVE.name).is_file() else unpacked(folder)
    if place is None:
        names = ", ".join(domain.folder for domain in _DOMAINS.values())
        place = ARCHIVE.obtain(folder, f"what it unpacks to, {names}")
    with open_files(place, lambda name: name.endswith(".pkl")) as files:
        for domain in domains:
            own = _DOMAINS[domain]
            for pickled in (*(f"partitions/train_part{part}.pkl" for part in range(parts)), "test.pkl"):
                inside = f"{own.folder}/{pickled}"
                # Whatever folder the archive puts them into.
                found = [read for name, read in files.items() if f"/{name}".endswith(f"/{inside}")]
                if not found:
                    raise UserError(f"{place}: has no {inside}; get the file again from {ARCHIVE.url}")
                yield domain, *_read_pair(found[0](), own.shape, f"{place}/{inside}")


def _read_pair(data: bytes, shape: tuple[int, ...], where: str) -> tuple[Bytes, Rows]:
    pair = load_pickle(data, where)
    with reading(where):
        images, labels = pair
        if images.dtype != np.uint8:
            raise ValueError(f"images of {images.dtype}")
        return images.reshape(len(labels), *shape).transpose(0, 3, 1, 2), labels.reshape(len(images)).astype(np.int64)
