"""Images in folders by domain and class, unpacked or in archives: Office-31 and Office-Home."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from pflcore.data.samples import Attribute, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import HALF, Dataset, encode
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import Read, open_files
from pflcore.datasets._images import DecodeOptions, decode_images, is_image
from pflcore.errors import UserError
from pflcore.options import option


class Archive(NamedTuple):
    """A published archive, the domains in it, and its size in words."""

    source: Source
    domains: tuple[str, ...]
    size: str


@dataclass(frozen=True, kw_only=True)
class DomainImages(Dataset):
    """Base of the datasets whose official files are ``<domain>/<class>/<image>``, in archives or unpacked.

    An archive is preferred to unpacked folders of its domains, and its hash is checked. Files that are no images, and
    other classes than the official ones, are ignored. All samples are for training, as there is no official test set.
    """

    domains: ClassVar[tuple[str, ...]]
    archives: ClassVar[tuple[Archive, ...]]
    unpacked: ClassVar[str] = "."  # the folder in an archive; its content may also be directly in the dataset's folder
    original = (3, 0, 0)
    mean = std = HALF
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    size: int = option(224, help="Height and width in pixels that every image is scaled to.", ge=8, le=1024)

    def data_files(self, folder: Path) -> list[DataFile]:
        files = []
        for source, domains, size in self.archives:
            folders = [DataFile(domain, folder, (f"{domain}/", f"{self.unpacked}/{domain}/")) for domain in domains]
            patterns = (source.name, *(f"{domain}/" for domain in domains))
            packed = (folder / source.name).is_file() or not any(file.path for file in folders)
            files += [DataFile(", ".join(domains), folder, patterns, source, size)] if packed else folders
        return files

    def load(self, folder: Path) -> Samples:
        if not any(file.path for file in self.data_files(folder)):
            names = " and ".join(archive.source.name for archive in self.archives)
            advice = f"get it from {self.homepage} and put {names}, or the folders {', '.join(self.domains)}, there"
            raise UserError(f"{folder}: no data here; {advice}")
        with ExitStack() as stack:
            images, sources = self._collect(folder, stack)
            train, lists = self.select(folder, sorted(images, key=lambda path: path.split("/")))
            domains = [path.split("/")[0] for path in train]
            labels = [path.split("/")[1] for path in train]
            present = {*zip(domains, labels, strict=True)}
            for domain, label in product(self.domains, self.class_names):
                if (domain, label) not in present:
                    raise UserError(f"{folder}: {domain} has no images of {label}; put the complete data there")
            options = DecodeOptions(self.shape, resize=True)
            pixels = decode_images([images[path] for path in train], options, f"decoding {self.name}").pixels
        source, mask = ", ".join([*sources, *lists]), np.array([*train.values()])
        attributes = {"domain": Attribute(encode(domains, self.domains), self.domains)}
        codes = encode(labels, self.class_names)
        return self.complete(pixels, codes, mask, where=str(folder), source=source, attributes=attributes)

    def select(self, folder: Path, paths: list[str]) -> tuple[dict[str, bool], list[str]]:
        """Return the images ``<domain>/<class>/<file>`` in use, true if for training, and the sources of the choice."""
        return dict.fromkeys(paths, True), []

    def _collect(self, folder: Path, stack: ExitStack) -> tuple[dict[str, tuple[str, Read]], list[str]]:
        """Return readers of all images by ``<domain>/<class>/<file>``, and their sources; `stack` closes archives."""
        images: dict[str, tuple[str, Read]] = {}
        sources = []
        for part in DomainImages.data_files(self, folder):
            root = part.path
            if root is None:
                raise UserError(f"{folder}: has no {' or '.join(part.patterns)}; put the complete data there")
            archive = part.source if root.is_file() else None
            if archive:
                archive.obtain(folder)  # checks its hash
            files = stack.enter_context(open_files(root))
            for name in files.readers:
                path = self._path(name if archive else f"{root.name}/{name}", part.description.split(", "))
                if path:
                    images[path] = files.reader(name)
            sources.append(root.name if archive else f"folder {root.name}")
        return images, sources

    def _path(self, name: str, domains: Sequence[str]) -> str:
        """Return ``<domain>/<class>/<file>`` for the name of an official image, else an empty text."""
        *folders, label, file = ["", *name.split("/")]
        domain = next((folder for folder in folders if folder in domains), "")
        return f"{domain}/{label}/{file}" if domain and label in self.class_names and is_image(file) else ""


_OFFICE = "https://faculty.cc.gatech.edu/~judy/domainadapt/"
_OFFICE_CLASSES = """
back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer file_cabinet headphones
keyboard laptop_computer letter_tray mobile_phone monitor mouse mug paper_notebook pen phone printer projector punchers
ring_binder ruler scissors speaker stapler tape_dispenser trash_can
"""


@DATASETS.register
class Office31(DomainImages):
    """Office-31, 4,110 colour images of office objects in 31 classes and 3 domains.

    The domains are amazon (2,817 images), dslr (498) and webcam (795), in the attribute ``domain``. There is no test
    set. The authors publish no hash; the archive is checked against the hash that several public projects found.
    """

    name = "office31"
    citation = "K. Saenko et al., Adapting Visual Category Models to New Domains, ECCV 2010"
    licence = "none stated by the authors; cite the paper"
    homepage = _OFFICE
    download_size = "76 MB"
    unpacked = "domain_adaptation_images"
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
    ``domain``. There is no test set. The archive is checked against the hash that several public projects found.
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
