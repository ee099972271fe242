"""The digits of five domains as FedBN's authors publish them: pickled pairs of images and labels."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from pflcore.data.samples import Bytes, Rows, check_labels
from pflcore.datasets._parts import Part
from pflcore.datasets._pickle import load_pair
from pflcore.datasets._sources import DAMAGED, Source, check_name
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

# Of a domain: its folder, the shape of an image, and the images of its test set.
_DOMAINS: dict[str, tuple[str, tuple[int, ...], int]] = {
    "MNIST": ("MNIST", (28, 28), 14_000),
    "SVHN": ("SVHN", (32, 32, 3), 19_858),
    "USPS": ("USPS", (16, 16), 1_860),
    "SynthDigits": ("SynthDigits", (32, 32, 3), 97_791),
    "MNIST-M": ("MNIST_M", (28, 28, 3), 14_000),
}
_PART = 743.8  # images of a training file before rounding: a tenth of USPS, the smallest domain
_FRAME = 4096  # bytes of a pickle beside its two arrays, and more


@dataclass(frozen=True)
class _File:
    """A pickle in an archive or a folder; nothing is read before `read` is called."""

    where: str
    size: int
    read: Callable[[], bytes]


def sizes(domain: str, parts: int) -> tuple[int, int]:
    """Images of a domain in its first training files, and in its test file."""
    return int(_PART * parts), _DOMAINS[domain][2]


def parts(folder: Path, domains: Sequence[str]) -> list[Part]:
    """The archive, or, where some of what it unpacks to is here, the folder of each of `domains`."""
    root = None if (folder / ARCHIVE.name).is_file() else _unpacked(folder)
    if root is None:
        return [Part("FedBN's files", folder, (ARCHIVE.name,), ARCHIVE, "278 MB", needed=True)]
    return [Part(f"FedBN's {domain}", root, (f"{_DOMAINS[domain][0]}/",)) for domain in domains]


def published(folder: Path) -> bool:
    """Whether there is something of FedBN's in `folder`."""
    return (folder / ARCHIVE.name).is_file() or _unpacked(folder) is not None


def read_digits(folder: Path, parts: int, domains: Sequence[str]) -> Iterator[tuple[str, Bytes, Rows]]:
    """Domain, images uint8 [n, 1 or 3, H, W] and labels, first of its training files, then of its test file.

    The archive is downloaded when there is nothing in `folder`.

    Args:
        folder: Holds the archive, or what it unpacks to.
        parts: How many of the training files of each domain are read.
        domains: Which are read, in this order.

    Raises:
        UserError: A file that is missing, damaged, larger than it can be, or asks for anything but arrays.
    """
    root = None if (folder / ARCHIVE.name).is_file() else _unpacked(folder)
    with ExitStack() as stack:
        if root is None:
            path = ARCHIVE.obtain(folder, f"what it unpacks to, {', '.join(name for name, _, _ in _DOMAINS.values())}")
            files, holder = _zipped(path, stack), path
        else:
            files, holder = _lying(root), root
        for domain in domains:
            name, shape, tests = _DOMAINS[domain]
            training = [(f"partitions/train_part{part}.pkl", _count(part)) for part in range(parts)]
            for pickled, count in (*training, ("test.pkl", tests)):
                file = files.get(f"{name}/{pickled}")
                if file is None:
                    raise UserError(f"{holder}: has no {name}/{pickled}; get the file again from {ARCHIVE.url}")
                yield domain, *_read(file, (count, *shape))


def _count(part: int) -> int:
    return int(_PART * (part + 1)) - int(_PART * part)


def _read(file: _File, shape: tuple[int, ...]) -> tuple[Bytes, Rows]:
    most = int(np.prod(shape)) + 8 * shape[0] + _FRAME
    if file.size > most:
        raise UserError(f"{file.where}: has {file.size:,} bytes where {most:,} are enough; get the file again")
    try:
        data = file.read()
    except DAMAGED as error:
        raise UserError(f"{file.where}: cannot be read ({error}); get the file again") from None
    images, labels = load_pair(data, file.where)
    expected = "x".join(map(str, shape))
    problem = f"{file.where}: must be images uint8 of {expected} and as many labels; get the file again"
    if isinstance(images, list) or images.dtype != np.uint8 or images.shape != shape:
        raise UserError(problem)
    if isinstance(labels, list) or labels.shape not in ((shape[0],), (shape[0], 1)):
        raise UserError(problem)
    digits = labels.reshape(-1).astype(np.int64)
    check_labels(digits, 10, file.where)
    pixels = images.astype(np.uint8, copy=False)
    return (pixels[..., None] if len(shape) == 3 else pixels).transpose(0, 3, 1, 2), digits


def _unpacked(folder: Path) -> Path | None:
    """Where the folders of the domains lie: in `folder`, or in what the archive is called."""
    roots = (folder, folder / Path(ARCHIVE.name).stem)
    return next((root for root in roots if any((root / name).is_dir() for name, _, _ in _DOMAINS.values())), None)


def _lying(root: Path) -> dict[str, _File]:
    paths = [path for name, _, _ in _DOMAINS.values() for path in (root / name).rglob("*.pkl") if path.is_file()]
    return {path.relative_to(root).as_posix(): _File(str(path), path.stat().st_size, path.read_bytes) for path in paths}


def _zipped(path: Path, stack: ExitStack) -> dict[str, _File]:
    """The pickles of the archive by domain, whatever folder it puts them into."""
    names = {name for name, _, _ in _DOMAINS.values()}
    files = {}
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
    except DAMAGED as error:
        raise UserError(f"{path}: not a readable archive ({error}); delete it and get it again") from None
    for entry in archive.infolist():
        check_name(path, entry.filename)
        parts = PurePosixPath(entry.filename).parts
        start = next((number for number, part in enumerate(parts) if part in names), None)
        if start is not None and entry.filename.endswith(".pkl"):
            where = f"{path}/{entry.filename}"
            files["/".join(parts[start:])] = _File(where, entry.file_size, partial(archive.read, entry))
    return files
