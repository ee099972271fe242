"""Images in folders by domain and class, unpacked or in their archives, as the sets of domain adaptation come."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import ClassVar

import numpy as np

from pflcore.data.preparation import track
from pflcore.data.samples import Attribute, Bytes, Mask, Rows, Samples
from pflcore.datasets._base import FOLDER, Dataset
from pflcore.datasets._bounds import LARGEST_IMAGE, read_image
from pflcore.datasets._decode import decode_images
from pflcore.datasets._parts import Part
from pflcore.datasets._sources import DAMAGED, Source, check_name, check_size, read_members
from pflcore.errors import UserError
from pflcore.options import option

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, slots=True)
class Picture:
    """An encoded image.

    Args:
        domain: The domain or split it belongs to; empty when there are none.
        label: Its class.
        file: The name of the file alone.
        where: What messages call it.
        read: Gives the encoded bytes; called from several threads.
    """

    domain: str
    label: str
    file: str
    where: str
    read: Callable[[], bytes]


@dataclass(frozen=True, kw_only=True)
class DomainImages(Dataset):
    """Base of the datasets whose official files are ``<domain>/<class>/<image>``, in archives or unpacked.

    An archive is taken before an unpacked folder of the same domains, and its hash is checked. Other files and classes
    than the official ones are passed over. All samples are training samples, as the sets have no test set.
    """

    domains: ClassVar[tuple[str, ...]]
    archives: ClassVar[tuple[tuple[Source, tuple[str, ...]], ...]]
    """The published files, each with the domains in it."""
    sizes: ClassVar[dict[str, str]] = {}
    """Of archives, in words, where several make the dataset."""
    unpacked: ClassVar[str] = "."
    """A folder that an archive unpacks to; its content may also lie in the dataset's folder itself."""
    between: ClassVar[tuple[str, ...]] = ()
    """Folders between that of the domain and those of the classes."""
    access = FOLDER
    original = (3, 0, 0)
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    size: int = option(224, help="Height and width in pixels that every image is scaled to.", ge=8, le=1024)

    def parts(self, folder: Path) -> list[Part]:
        """A part for each archive, or, where some of what it unpacks to is here, for each of its domains."""
        parts = []
        for source, domains in self.archives:
            folders = [Part(domain, folder, (f"{domain}/", f"{self.unpacked}/{domain}/")) for domain in domains]
            if not (folder / source.name).is_file() and any(part.here for part in folders):
                parts += folders
            else:
                patterns = (source.name, *(part.patterns[0] for part in folders))
                size = self.sizes.get(source.name, self.download_size)
                parts.append(Part(", ".join(domains), folder, patterns, source, size))
        return parts

    def load(self, folder: Path) -> Samples:
        """Read from `folder`: the archives, or what they unpack to."""
        if not self.found(folder):
            names = " and ".join(source.name for source, _ in self.archives)
            raise self.absent(folder, f"{names}, or the folders {', '.join(self.domains)},")
        with ExitStack() as stack:
            pictures, sources = self._collect(folder, stack)
            pictures, train, split = self.select(folder, pictures)
            _check_classes(folder, pictures, self.domains, self.class_names)
            inputs = decode_pictures(pictures, self.shape, f"decoding {self.name}")
        return self.complete(
            inputs,
            encode([picture.label for picture in pictures], self.class_names),
            train,
            where=str(folder),
            source=", ".join(dict.fromkeys([*sources, *split])),
            attributes={"domain": Attribute(encode([p.domain for p in pictures], self.domains), self.domains)},
        )

    def select(self, folder: Path, pictures: list[Picture]) -> tuple[list[Picture], Mask, list[str]]:
        """The pictures to use, which of them are for training, and what else in `folder` says so."""
        return pictures, np.ones(len(pictures), bool), []

    def _collect(self, folder: Path, stack: ExitStack) -> tuple[list[Picture], list[str]]:
        """All pictures, by domain, class and file; archives stay open until the end of `stack`."""
        pictures: list[Picture] = []
        sources = []
        for source, domains in self.archives:
            if (folder / source.name).is_file():
                advance = track(f"checking {source.name}", 1)
                path = source.check(folder)
                advance(1)
                pictures += self._from_archive(path, domains, stack)
                sources.append(source.name)
                continue
            for domain in domains:
                found = [root / domain for root in (folder, folder / self.unpacked) if (root / domain).is_dir()]
                if not found:
                    raise UserError(
                        f"{folder}: has neither {source.name} nor a folder {domain!r}; put the complete data there"
                    )
                pictures += _from_folder(found[0].joinpath(*self.between), domain, self.class_names)
                sources.append(f"folder {domain}")
        order = {domain: number for number, domain in enumerate(self.domains)}
        return sorted(pictures, key=lambda p: (order[p.domain], p.label, p.file)), sources

    def _from_archive(self, path: Path, domains: Sequence[str], stack: ExitStack) -> list[Picture]:
        classes = set(self.class_names)

        def place(name: str) -> tuple[str, str, str] | None:
            *folders, file = PurePosixPath(name).parts
            if not is_image(file) or len(folders) < 2 + len(self.between):
                return None
            domain, *between, label = folders[-2 - len(self.between) :]
            fits = domain in domains and label in classes and tuple(between) == self.between
            return (domain, label, file) if fits else None

        files = _zip_files(path, stack) if path.suffix == ".zip" else _tar_files(path, lambda n: place(n) is not None)
        placed = ((name, place(name), read) for name, read in files)
        return [Picture(*where, f"{path}/{name}", read) for name, where, read in placed if where]


def is_image(file: str) -> bool:
    """Whether a file's name says that it is an image; hidden files, such as a system's notes on an image, are not."""
    return not file.startswith(".") and PurePosixPath(file).suffix.lower() in SUFFIXES


def list_folder(folder: Path) -> list[Path]:
    """What lies in a folder, by name. Raises :class:`UserError` when it cannot be read."""
    try:
        return sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise UserError(f"{folder}: not a readable folder ({error.strerror}); give it the right permissions") from None


def decode_pictures(pictures: Sequence[Picture], shape: tuple[int, ...], what: str) -> Bytes:
    """uint8 [n, C, H, W] of the pictures, scaled to `shape`. Raises :class:`UserError` for an unreadable one."""
    channels, height, width = shape
    pixels, _ = decode_images(
        len(pictures),
        (channels, height, width),
        lambda number: pictures[number].read(),
        lambda number: pictures[number].where,
        what,
        resize=True,
    )
    return pixels


def encode(words: Sequence[str], names: Sequence[str]) -> Rows:
    """int64 [n]: the position of every word among the names."""
    numbers = {name: number for number, name in enumerate(names)}
    return np.fromiter((numbers[word] for word in words), np.int64, len(words))


def _check_classes(folder: Path, pictures: list[Picture], domains: Sequence[str], classes: Sequence[str]) -> None:
    found = {(picture.domain, picture.label) for picture in pictures}
    for domain in domains:
        for label in classes:
            if (domain, label) not in found:
                raise UserError(f"{folder}: {domain} has no images of {label}; put the complete data there")


def _from_folder(folder: Path, domain: str, classes: Sequence[str]) -> list[Picture]:
    return [
        Picture(domain, label, path.name, str(path), partial(read_image, path))
        for label in classes
        if (folder / label).is_dir()
        for path in list_folder(folder / label)
        if is_image(path.name)
    ]


def _zip_files(path: Path, stack: ExitStack) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name and content of every file of an archive that may be large: nothing is read before it is asked for."""
    lock = Lock()

    def read(entry: zipfile.ZipInfo) -> bytes:
        check_size(path, entry.filename, entry.file_size, LARGEST_IMAGE)
        with lock:
            return archive.read(entry)

    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
    except DAMAGED as error:
        raise UserError(f"{path}: not a readable archive ({error}); delete it and get it again") from None
    for entry in archive.infolist():
        check_name(path, entry.filename)
        if not entry.is_dir():
            yield entry.filename, partial(read, entry)


def _tar_files(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name and content of the wanted files. A compressed tar is a stream, so that all of them are kept in memory."""
    for name, data in read_members(path, wanted):
        yield name, partial(bytes, data)
