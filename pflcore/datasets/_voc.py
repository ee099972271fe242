"""Object detection sets of PASCAL VOC's layout: images, an XML file of boxes for each, and lists of the splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from pflcore.data.preparation import track
from pflcore.data.samples import Boxes, Rows, Samples
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._download import Source
from pflcore.datasets._files import Read, open_files, reading
from pflcore.datasets._images import Form, decode_images
from pflcore.errors import UserError
from pflcore.options import option

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
HOST = "http://host.robots.ox.ac.uk/pascal/VOC"
PARTS = ("Annotations", "ImageSets", "JPEGImages")
LARGEST, FREQUENT, RAREST = RULES = ("largest", "frequent", "rarest")
RULE_HELP = (
    "The class that an image counts for in partitions, of its objects that are not difficult if it has any: largest: "
    "that of the largest; frequent: that of most of them; rarest: the one that fewest objects of the dataset have."
)


class Files(NamedTuple):
    """The files of a year by their names below its folder, what messages call them, and what a report does."""

    where: str
    source: str
    readers: dict[str, Read]

    def read(self, name: str) -> bytes:
        """Return a file's content. Raise :class:`UserError` when it is missing."""
        if name not in self.readers:
            raise UserError(f"{self.where}: {name} is missing; put the complete data there")
        return self.readers[name]()

    def split(self, name: str) -> list[str]:
        """Return the images of a list in its order."""
        where = f"{self.where}/ImageSets/Main/{name}.txt"
        with reading(where, "put the official list there"):
            names = self.read(f"ImageSets/Main/{name}.txt").decode().split()
        if not names or len(set(names)) < len(names):
            raise UserError(f"{where}: {'names an image twice' if names else 'is empty'}; put the official list there")
        return names


@contextmanager
def open_folder(folder: Path, source: str) -> Iterator[Files]:
    """Open a folder of VOC's layout; `source` is what a report calls it."""
    with open_files(folder, lambda name: name.startswith(PARTS)) as readers:
        yield Files(str(folder), source, readers)


@dataclass(frozen=True, kw_only=True)
class Voc(Dataset):
    """Base of the VOC datasets of one year each."""

    archives: ClassVar[tuple[Source, ...]]
    year_folder: ClassVar[str]
    splits: ClassVar[tuple[str, str]]
    """The lists that make the training and the test set."""
    citation = "M. Everingham et al., The PASCAL Visual Object Classes (VOC) Challenge, IJCV 2010"
    licence = "research use; the images are subject to Flickr's terms of use"
    access = DOWNLOAD
    original = (3, 0, 0)
    class_names = CLASSES
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    detects = True
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    size: int = option(300, help="Height and width in pixels that every image is scaled to.", ge=8, le=1024)
    class_list: tuple[str, ...] = option(
        CLASSES,
        help="The names of the classes; others than the default are for data of one's own in the same layout, whose "
        "number of images is then not checked.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.class_list or len(set(self.class_list)) < len(self.class_list):
            raise UserError(f"{self.name}.class_list = {list(self.class_list)} must be distinct names, one at least")
        object.__setattr__(self, "class_names", self.class_list)

    @property
    def expected(self) -> tuple[int, int] | None:
        """Return the number of training and test images; None for other classes than VOC's."""
        return self.counts if self.class_list == CLASSES else None

    def load(self, folder: Path) -> Samples:
        """Read from `folder`, downloading the official archives when there is nothing to read."""
        with self.open(folder) as files:
            train, test = self.splits
            return read_splits(self, [(files, train)], (files, test), LARGEST, Form(self.shape, resize=True))

    @contextmanager
    def open(self, folder: Path, archives: tuple[Source, ...] | None = None) -> Iterator[Files]:
        """Open the files in `folder`; of the official archives, which are downloaded, those named are enough."""
        with ExitStack() as stack:
            if not any((folder / source.name).is_file() for source in self.archives):
                for inside in (f"VOCdevkit/{self.year_folder}", self.year_folder, "."):
                    if all((folder / inside / part).is_dir() for part in PARTS):
                        called = inside if inside != "." else "a folder of VOC's layout"
                        yield stack.enter_context(open_folder(folder / inside, called))
                        return
            also = f"the folder VOCdevkit/{self.year_folder}, or the folders {', '.join(PARTS)}"
            prefix = f"VOCdevkit/{self.year_folder}/"
            readers: dict[str, Read] = {}
            for source in archives or self.archives:
                members = open_files(source.obtain(folder, also), lambda name: name.startswith(prefix))
                for name, read in stack.enter_context(members).items():
                    readers[name.removeprefix(prefix)] = read
            yield Files(str(folder), ", ".join(source.name for source in archives or self.archives), readers)


Split = tuple[Files, str]
"""A list of images, by its name, in some files."""


def read_splits(dataset: Dataset, train: Sequence[Split], test: Split, rule: str, form: Form) -> Samples:
    """Read the images of some lists and their boxes.

    Args:
        rule: By which of its objects an image is labelled, one of :data:`RULES`.
        form: What the images are decoded to.

    Raises:
        UserError: A file is missing or not what it should be, an image is in two lists, has no object or a box that is
            not within it.
    """
    splits = [*train, test]
    names = [(files, name) for files, split in splits for name in files.split(split)]
    where, source = (
        ", ".join(dict.fromkeys(getattr(files, key) for files, _ in splits)) for key in ("where", "source")
    )
    if twice := [name for name, count in Counter(name for _, name in names).items() if count > 1]:
        raise UserError(
            f"{where}: {min(twice)} is in both {' and '.join(split for _, split in splits)}; correct the lists"
        )
    advance, objects = track(f"reading annotations of {dataset.name}", len(names)), []
    for files, name in names:
        objects.append(_read_objects(files, f"Annotations/{name}.xml", dataset.class_names))
        advance(1)
    images = [(files, f"JPEGImages/{name}.jpg") for files, name in names]
    readers = [(f"{files.where}/{inside}", partial(files.read, inside)) for files, inside in images]
    decoded = decode_images(readers, form._replace(formats=("JPEG", "PNG")), f"decoding {dataset.name}")
    classes = dataset.class_names or tuple(sorted({one.label for own in objects for one in own}))
    annotations = [f"{files.where}/Annotations/{name}.xml" for files, name in names]
    corners = [_shares(*one) for one in zip(objects, decoded.sizes, annotations, strict=True)]
    boxes = Boxes(
        counts=np.array([len(own) for own in objects], np.int64),
        labels=np.array([classes.index(one.label) for own in objects for one in own], np.int64),
        corners=np.concatenate(corners).astype(np.float32),
        difficult=np.array([one.difficult for own in objects for one in own], bool),
    )
    return dataset.complete(
        decoded.pixels,
        main_classes(boxes, rule),
        np.arange(len(names)) < len(names) - len(test[0].split(test[1])),
        where=where,
        source=source,
        class_names=classes,
        boxes=boxes,
    )


class _Object(NamedTuple):
    """An object: its class, its corners in pixels as in the file, and whether it is difficult."""

    label: str
    corners: tuple[float, ...]
    difficult: bool


def _read_objects(files: Files, name: str, classes: tuple[str, ...]) -> list[_Object]:
    """Read an image's objects, of the given classes or, where there are none, of any."""
    from defusedxml.ElementTree import fromstring

    where = f"{files.where}/{name}"
    objects = []
    with reading(where, "put the official annotation there"):
        root = fromstring(files.read(name), forbid_dtd=True)
        for number, element in enumerate(root.findall("object")):  # parts of an object have boxes too, further inside
            label = (element.findtext("name") or "").strip()
            if not label or (classes and label not in classes):
                raise UserError(f"{where}: object {number}: its class {label!r} is unknown; put it into class_list")
            # The official annotations have fractions here and there.
            texts = [element.findtext(f"bndbox/{key}") or "" for key in ("xmin", "ymin", "xmax", "ymax")]
            difficult = float(element.findtext("difficult") or 0) != 0
            objects.append(_Object(label, tuple(map(float, texts)), difficult))
    if not objects:
        raise UserError(f"{where}: has no object; take the image off the lists in ImageSets/Main")
    return objects


def _shares(objects: list[_Object], size: Rows, where: str) -> npt.NDArray[np.float64]:
    """Return corners as shares of the image's size: in the files, pixels count from 1, and both ends belong to the box.

    A box may stand out of its image by one pixel, as happens where a program counted from 0; it is cut off.
    """
    corners = np.array([one.corners for one in objects]) - (1, 1, 0, 0)
    limit = np.tile(size, 2).astype(np.float64)
    cut = np.clip(corners, 0, limit)
    right = (np.abs(corners - cut) <= 1).all(1) & (cut[:, 2:] > cut[:, :2]).all(1)  # also false for NaN
    if not right.all():
        number = int(right.argmin())
        box = ", ".join(f"{value:g}" for value in objects[number].corners)
        raise UserError(
            f"{where}: object {number}: its box {box} has no area in the image of {size[0]}x{size[1]} pixels, or "
            "stands out of it; put the official annotation there"
        )
    shares: npt.NDArray[np.float64] = cut / limit
    return shares


def main_classes(boxes: Boxes, rule: str) -> Rows:
    """Return a class for each image, int64 [n]. Every image needs an object; of equals the first, or lowest, counts.

    Args:
        rule: One of :data:`RULES`.
    """
    left, top, right, bottom = boxes.corners.astype(np.float64).T
    sizes = (right - left) * (bottom - top)
    overall = np.bincount(boxes.labels)
    classes = []
    for own in np.split(np.arange(len(boxes.labels)), np.cumsum(boxes.counts)[:-1]):
        easy = own[~boxes.difficult[own]]
        own = easy if len(easy) else own
        labels = boxes.labels[own]
        if rule == LARGEST:
            classes.append(labels[sizes[own].argmax()])
        elif rule == FREQUENT:
            classes.append(np.bincount(labels).argmax())
        else:
            met = np.unique(labels)
            classes.append(met[overall[met].argmin()])
    return np.array(classes, np.int64)
