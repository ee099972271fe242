"""Images in folders by domain and class, unpacked or in their archives, as the sets of domain adaptation come."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from pflcore.data.samples import Attribute, Mask, Samples
from pflcore.datasets._base import FOLDER, Dataset, encode
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import Read, open_files
from pflcore.datasets._images import Form, decode_images, is_image
from pflcore.errors import UserError
from pflcore.options import option


class Archive(NamedTuple):
    """A published file, the domains in it, and its size in words."""

    source: Source
    domains: tuple[str, ...]
    size: str


class Picture(NamedTuple):
    """An encoded image: its domain, its class, its file's name, what messages call it, and what gives its bytes."""

    domain: str
    label: str
    file: str
    where: str
    read: Read

    @property
    def name(self) -> str:
        """Return ``<domain>/<class>/<image>``."""
        return f"{self.domain}/{self.label}/{self.file}"


@dataclass(frozen=True, kw_only=True)
class DomainImages(Dataset):
    """Base of the datasets whose official files are ``<domain>/<class>/<image>``, in archives or unpacked.

    An archive is taken before an unpacked folder of the same domains, and its hash is checked. Other files and classes
    than the official ones are ignored. All samples are training samples, as the sets have no test set.
    """

    domains: ClassVar[tuple[str, ...]]
    archives: ClassVar[tuple[Archive, ...]]
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

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return one for each archive, or, where some of what it unpacks to is here, for each of its domains."""
        files = []
        for source, domains, size in self.archives:
            folders = [DataFile(domain, folder, (f"{domain}/", f"{self.unpacked}/{domain}/")) for domain in domains]
            if not (folder / source.name).is_file() and any(file.here for file in folders):
                files += folders
            else:
                patterns = (source.name, *(f"{domain}/" for domain in domains))
                files.append(DataFile(", ".join(domains), folder, patterns, source, size))
        return files

    def load(self, folder: Path) -> Samples:
        """Read from `folder`: the archives, or what they unpack to."""
        if not any(part.here for part in self.data_files(folder)):
            names = " and ".join(archive.source.name for archive in self.archives)
            raise self.absent(folder, f"{names}, or the folders {', '.join(self.domains)},")
        with ExitStack() as stack:
            pictures, sources = self._collect(folder, stack)
            pictures, train, split = self.select(folder, pictures)
            met = {(picture.domain, picture.label) for picture in pictures}
            for domain in self.domains:
                if lacking := [label for label in self.class_names if (domain, label) not in met]:
                    raise UserError(f"{folder}: {domain} has no images of {lacking[0]}; put the complete data there")
            images = [(picture.where, picture.read) for picture in pictures]
            decoded = decode_images(images, Form(self.shape, resize=True), f"decoding {self.name}")
        return self.complete(
            decoded.pixels,
            encode([picture.label for picture in pictures], self.class_names),
            train,
            where=str(folder),
            source=", ".join(dict.fromkeys([*sources, *split])),
            attributes={"domain": Attribute(encode([p.domain for p in pictures], self.domains), self.domains)},
        )

    def select(self, folder: Path, pictures: list[Picture]) -> tuple[list[Picture], Mask, list[str]]:
        """Return the pictures to use, which of them are for training, and what else in `folder` says so."""
        return pictures, np.ones(len(pictures), bool), []

    def _collect(self, folder: Path, stack: ExitStack) -> tuple[list[Picture], list[str]]:
        """Return all pictures, by domain, class and file, and their sources; archives stay open as `stack` does."""
        pictures: list[Picture] = []
        sources = []
        for source, domains, _ in self.archives:
            if (folder / source.name).is_file():
                pictures += self._pictures(source.check(folder), "", domains, stack)
                sources.append(source.name)
                continue
            for domain in domains:
                found = [root / domain for root in (folder, folder / self.unpacked) if (root / domain).is_dir()]
                if not found:
                    raise UserError(
                        f"{folder}: has neither {source.name} nor a folder {domain!r}; put the complete data there"
                    )
                pictures += self._pictures(found[0], f"{domain}/", domains, stack)
                sources.append(f"folder {domain}")
        return sorted(pictures, key=lambda p: (self.domains.index(p.domain), p.label, p.file)), sources

    def _pictures(self, place: Path, prefix: str, domains: tuple[str, ...], stack: ExitStack) -> list[Picture]:
        """Return the pictures of some domains in an archive, or in the folder that is called `prefix`."""
        classes = set(self.class_names)

        def split(name: str) -> tuple[str, str, str] | None:
            *folders, file = f"{prefix}{name}".split("/")
            domain, *between, label = folders[-2 - len(self.between) :] if len(folders) > 1 else ("", "")
            fits = domain in domains and label in classes and tuple(between) == self.between and is_image(file)
            return (domain, label, file) if fits else None

        files = stack.enter_context(open_files(place, lambda name: split(name) is not None))
        places = ((split(name), name, read) for name, read in files.items())
        return [Picture(*parts, f"{place}/{name}", read) for parts, name, read in places if parts]
