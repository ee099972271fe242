"""Images in folders by domain and class, unpacked or in their archives: Office-31 and Office-Home."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from pflcore.data.samples import Attribute, Mask, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import FOLDER, HALF, Dataset, encode
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


@dataclass(frozen=True, kw_only=True)
class DomainImages(Dataset):
    """Base of the datasets whose official files are ``<domain>/<class>/<image>``, in archives or unpacked.

    An archive is taken before an unpacked folder of the same domains, and its hash is checked. Other files and classes
    than the official ones are ignored. All samples are training samples, as the sets have no test set.
    """

    domains: ClassVar[tuple[str, ...]]
    archives: ClassVar[tuple[Archive, ...]]
    unpacked: ClassVar[str] = "."  # a folder that an archive unpacks to; its content may also lie in the dataset's own
    between: ClassVar[tuple[str, ...]] = ()  # folders between that of the domain and those of the classes
    access = FOLDER
    original = (3, 0, 0)
    mean = std = HALF
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    size: int = option(224, help="Height and width in pixels that every image is scaled to.", ge=8, le=1024)

    def data_files(self, folder: Path) -> list[DataFile]:
        files = []
        for source, domains, size in self.archives:
            folders = [DataFile(domain, folder, (f"{domain}/", f"{self.unpacked}/{domain}/")) for domain in domains]
            patterns = (source.name, *(f"{domain}/" for domain in domains))
            packed = (folder / source.name).is_file() or not any(file.here for file in folders)
            files += [DataFile(", ".join(domains), folder, patterns, source, size)] if packed else folders
        return files

    def load(self, folder: Path) -> Samples:
        if not any(part.here for part in self.data_files(folder)):
            names = " and ".join(archive.source.name for archive in self.archives)
            raise self.absent(folder, f"{names}, or the folders {', '.join(self.domains)},")
        with ExitStack() as stack:
            pictures, sources = self._collect(folder, stack)
            pictures, train, lists = self.select(folder, pictures)
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
            source=", ".join(dict.fromkeys([*sources, *lists])),
            attributes={"domain": Attribute(encode([p.domain for p in pictures], self.domains), self.domains)},
        )

    def select(self, folder: Path, pictures: list[Picture]) -> tuple[list[Picture], Mask, list[str]]:
        return pictures, np.ones(len(pictures), bool), []

    def _collect(self, folder: Path, stack: ExitStack) -> tuple[list[Picture], list[str]]:
        """Return all pictures, by domain, class and file, and their sources; archives stay open as `stack` does."""
        places: list[tuple[Path, str, tuple[str, ...], str]] = []
        for source, domains, _ in self.archives:
            if (folder / source.name).is_file():
                places.append((source.check(folder), "", domains, source.name))
                continue
            for domain in domains:
                found = [root / domain for root in (folder, folder / self.unpacked) if (root / domain).is_dir()]
                if not found:
                    wanted = f"neither {source.name} nor a folder {domain!r}"
                    raise UserError(f"{folder}: has {wanted}; put the complete data there")
                places.append((found[0], f"{domain}/", domains, f"folder {domain}"))
        pictures: list[Picture] = []
        for place, prefix, domains, _ in places:
            split = partial(self._split, prefix, domains)
            for name, read in stack.enter_context(open_files(place, split)).items():
                domain, label, file = split(name)
                pictures.append(Picture(domain, label, file, f"{place}/{name}", read))
        order = {domain: number for number, domain in enumerate(self.domains)}
        return sorted(pictures, key=lambda p: (order[p.domain], p.label, p.file)), [source for *_, source in places]

    def _split(self, prefix: str, domains: tuple[str, ...], name: str) -> tuple[str, ...]:
        """Return the domain, the class and the file of an official image's name; nothing for any other."""
        *folders, file = f"{prefix}{name}".split("/")
        domain, *between, label = folders[-2 - len(self.between) :] if len(folders) > 1 else ("", "")
        fits = domain in domains and label in self.class_names and tuple(between) == self.between and is_image(file)
        return (domain, label, file) if fits else ()


_OFFICE = "https://faculty.cc.gatech.edu/~judy/domainadapt/"
_OFFICE_CLASSES = """
    back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer file_cabinet
    headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug paper_notebook pen phone
    printer projector punchers ring_binder ruler scissors speaker stapler tape_dispenser trash_can
"""


@DATASETS.register
class Office31(DomainImages):
    """Office-31, 4,110 colour images of office objects in 31 classes and 3 domains.

    The domains are amazon (2,817 images), dslr (498) and webcam (795), in the attribute ``domain``. There is no test
    set. The authors publish no hash; the one that is checked is what several public projects found.
    """

    name = "office31"
    citation = "K. Saenko et al., Adapting Visual Category Models to New Domains, ECCV 2010"
    licence = "none stated by the authors; cite the paper"
    homepage = _OFFICE
    download_size = "76 MB"
    unpacked = "domain_adaptation_images"
    between = ("images",)
    domains = ("amazon", "dslr", "webcam")
    archives = (
        Archive(Source(_OFFICE, "md5", "1b536d114869a5a8aa4580b89e9758fb", f"{unpacked}.tar.gz"), domains, "76 MB"),
    )
    class_names = tuple(_OFFICE_CLASSES.split())
    counts = (4110, 0)
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"domain": domains}


_HOME = "https://www.hemanthdv.org/officeHomeDataset.html"
_HOME_CLASSES = """
    Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer
    Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses
    Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan
    Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink
    Sneakers Soda Speaker Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam
"""


@DATASETS.register
class OfficeHome(DomainImages):
    """Office-Home, 15,588 colour images of everyday objects in 65 classes and 4 domains.

    The domains are Art (2,427 images), Clipart (4,365), Product (4,439) and Real World (4,357), in the attribute
    ``domain``. There is no test set. The hash that is checked is what several public projects found.
    """

    name = "officehome"
    citation = "H. Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017"
    licence = "non-commercial research and education only (fair use notice of the authors)"
    homepage = _HOME
    download_size = "1.1 GB"
    unpacked = "OfficeHomeDataset_10072016"
    domains = ("Art", "Clipart", "Product", "Real World")
    archives = (
        Archive(Source(_HOME, "md5", "b1c14819770c4448fd5b6d931031c91c", f"{unpacked}.zip"), domains, "1.1 GB"),
    )
    class_names = tuple(_HOME_CLASSES.split())
    counts = (15_588, 0)
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"domain": domains}
