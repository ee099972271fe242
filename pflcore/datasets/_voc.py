"""Object detection sets of PASCAL VOC's layout: images, an XML file of boxes for each, and lists of the splits."""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.data.preparation import track
from pflcore.data.samples import Boxes, Rows, Samples
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._bounds import read_image, read_list
from pflcore.datasets._decode import decode_images
from pflcore.datasets._main_classes import LARGEST, main_classes
from pflcore.datasets._sources import DAMAGED, Source, check_name
from pflcore.errors import UserError
from pflcore.options import option

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
HOST = "http://host.robots.ox.ac.uk/pascal/VOC"
_FORMATS = ("JPEG", "PNG")
PARTS = ("Annotations", "ImageSets", "JPEGImages")


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
        """Training and test images; None for other classes than VOC's."""
        return self.counts if self.class_list == CLASSES else None

    def load(self, folder: Path) -> Samples:
        """Read from `folder`, downloading the official archives when there is nothing to read."""
        return read_splits(self, *splits_of(self.open(folder), self.splits))

    def open(self, folder: Path, archives: tuple[Source, ...] | None = None) -> Files:
        """The files in `folder`; of the official archives, which are downloaded, those named are enough."""
        archives = self.archives if archives is None else archives
        if not any((folder / source.name).is_file() for source in self.archives):
            for inside in (f"VOCdevkit/{self.year_folder}", self.year_folder, "."):
                if all((folder / inside / part).is_dir() for part in PARTS):
                    called = inside if inside != "." else "a folder of VOC's layout"
                    return folder_files(folder / inside, called)
        also = f"the folder VOCdevkit/{self.year_folder}, or the folders {', '.join(PARTS)}"
        members: dict[str, tuple[Path, int, int]] = {}
        for source in archives:
            members |= _members(source.obtain(folder, also), f"VOCdevkit/{self.year_folder}/")
        names = ", ".join(source.name for source in archives)
        return Files(str(folder), names, _archive_reader(folder, names, members))


@dataclass(frozen=True)
class Files:
    """The files of a dataset, by their names below the folder of the year."""

    where: str
    source: str
    read: Callable[[str], bytes]


Split = tuple[Files, str]
"""A list of images, by its name, in some files."""


def splits_of(files: Files, names: Sequence[str]) -> tuple[list[Split], Split]:
    """The lists of some files, all but the last for training."""
    return [(files, name) for name in names[:-1]], (files, names[-1])


def read_splits(dataset: Dataset, train: Sequence[Split], test: Split, rule: str = LARGEST) -> Samples:
    """The images of some lists and their boxes, scaled to the dataset's shape.

    Args:
        rule: By which of its objects an image is labelled, one of :data:`RULES`.

    Raises:
        UserError: A file is missing or not what it should be, an image is in two lists, has no object or a box that is
            not within it.
    """
    splits = [*train, test]
    images = [(files, name) for files, split in splits for name in _read_list(files, split)]
    where, source = (
        ", ".join(dict.fromkeys(getattr(files, one) for files, _ in splits)) for one in ("where", "source")
    )
    lists = " and ".join(split for _, split in splits)
    if twice := {name for name, count in Counter(name for _, name in images).items() if count > 1}:
        raise UserError(f"{where}: {min(twice)} is in both {lists}; correct the lists")
    advance, found = track(f"reading annotations of {dataset.name}", len(images)), []
    for files, name in images:
        found.append(_read_annotation(files, f"Annotations/{name}.xml", dataset.class_names))
        advance(1)

    sizes = np.empty((len(images), 2), np.int64)

    def read(number: int) -> bytes:
        files, name = images[number]
        data = files.read(f"JPEGImages/{name}.jpg")
        sizes[number] = _size(data)
        return data

    channels, height, width = dataset.shape
    inputs, _ = decode_images(
        len(images),
        (channels, height, width),
        read,
        lambda number: f"{images[number][0].where}/JPEGImages/{images[number][1]}.jpg",
        f"decoding {dataset.name}",
        resize=True,
        formats=_FORMATS,
    )
    classes = dataset.class_names or tuple(sorted({label for one in found for label in one.labels}))
    boxes = _boxes(found, sizes, classes)
    return dataset.complete(
        inputs,
        main_classes(boxes, rule),
        np.arange(len(images)) < len(images) - len(_read_list(*test)),
        where=where,
        source=source,
        class_names=classes,
        boxes=boxes,
    )


def folder_files(folder: Path, source: str) -> Files:
    """The files in a folder; `source` is what a report calls it."""

    def read(name: str) -> bytes:
        if not os.path.lexists(folder / name):
            raise UserError(f"{folder}: {name} is missing; put the complete data there")
        return (read_image if name.startswith("JPEGImages/") else read_list)(folder / name)

    return Files(str(folder), source, read)


def _archive_reader(folder: Path, names: str, members: dict[str, tuple[Path, int, int]]) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        if name not in members:
            raise UserError(f"{folder}: {name} is not in {names}; delete them and get them again")
        path, start, length = members[name]
        with path.open("rb") as file:  # anew each time, as several threads read
            file.seek(start)
            data = file.read(length)
        if len(data) < length:
            raise UserError(f"{path}: ends within {name}; delete it and get it again")
        return data

    return read


def _members(path: Path, prefix: str) -> dict[str, tuple[Path, int, int]]:
    """Archive, position and length of the plain files below `prefix` in an uncompressed tar."""
    found = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                check_name(path, member.name)
                if member.isreg() and member.name.startswith(prefix):
                    found[member.name.removeprefix(prefix)] = path, member.offset_data, member.size
    except DAMAGED as error:
        raise UserError(f"{path}: not a readable archive ({error}); delete it and get it again") from None
    return found


def _read_list(files: Files, split: str) -> list[str]:
    """The images of a split, in the order of its list."""
    where = f"{files.where}/ImageSets/Main/{split}.txt"
    try:
        names = files.read(f"ImageSets/Main/{split}.txt").decode().split()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not a text ({error}); put the official list there") from None
    for name in names:
        if "/" in name or "\\" in name or "\0" in name:
            raise UserError(f"{where}: {name!r} is not the name of an image; put the official list there")
    if not names or len(set(names)) < len(names):
        raise UserError(f"{where}: {'names an image twice' if names else 'is empty'}; put the official list there")
    return names


@dataclass(frozen=True)
class _Annotation:
    """The objects of one image: class names, corners in pixels as in the file, and whether they are difficult."""

    where: str
    labels: list[str] = field(default_factory=list)
    corners: list[tuple[float, float, float, float]] = field(default_factory=list)
    difficult: list[bool] = field(default_factory=list)


def _read_annotation(files: Files, name: str, classes: tuple[str, ...]) -> _Annotation:
    """An image's objects, of the given classes or, where there are none, of any."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    where = f"{files.where}/{name}"
    try:
        root = fromstring(files.read(name), forbid_dtd=True)
    except UserError:
        raise
    except DefusedXmlException as error:
        raise UserError(f"{where}: refused: {type(error).__name__}; use an annotation without a DTD") from None
    except Exception as error:  # besides its own errors the parser raises those of decoders
        raise UserError(f"{where}: not a readable annotation ({error}); put the official one there") from None
    annotation = _Annotation(where)
    for number, element in enumerate(root.findall("object")):  # parts of an object have boxes too, further inside
        at = f"{where}: object {number}"
        label = _text(element, "name", at)
        if classes and label not in classes:
            raise UserError(f"{at}: its class {label!r} is unknown; put it into the option class_list")
        annotation.labels.append(label)
        left, top, right, bottom = (_number(element, f"bndbox/{key}", at) for key in ("xmin", "ymin", "xmax", "ymax"))
        if right < left or bottom < top:
            raise UserError(f"{at}: its box {left:g}, {top:g}, {right:g}, {bottom:g} has no area; correct it")
        annotation.corners.append((left, top, right, bottom))
        annotation.difficult.append(_number(element, "difficult", at, missing=0) != 0)
    if not annotation.labels:
        raise UserError(f"{where}: has no object; take the image off the lists in ImageSets/Main")
    return annotation


def _text(element: Any, key: str, at: str, missing: str | None = None) -> str:
    text = element.findtext(key, missing)
    if text is None or not text.strip():
        raise UserError(f"{at}: {key} is missing; put the official annotation there")
    return str(text).strip()


def _number(element: Any, key: str, at: str, missing: float | None = None) -> float:
    text = _text(element, key, at, None if missing is None else str(missing))
    try:
        number = float(text)  # the official annotations have fractions here and there
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{at}: {key} is {text[:40]!r}, not a number; put the official annotation there")
    return number


def _size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels from an image's header. Raises whatever the decoder does."""
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        return image.size


def _boxes(annotations: list[_Annotation], sizes: Rows, classes: tuple[str, ...]) -> Boxes:
    """Corners as shares of the real image's size: in the files, pixels count from 1, and both ends belong to the box.

    A box may stand out of its image by one pixel, as happens where a program counted from 0; it is cut off.
    """
    counts = np.array([len(annotation.labels) for annotation in annotations], np.int64)
    corners: npt.NDArray[np.float64] = np.array([corners for a in annotations for corners in a.corners]).reshape(-1, 4)
    corners[:, :2] -= 1
    owner = np.repeat(np.arange(len(annotations)), counts)
    limit = sizes[owner][:, [0, 1, 0, 1]].astype(np.float64)
    cut = np.clip(corners, 0, limit)
    wrong = (np.abs(corners - cut) > 1).any(1) | (cut[:, 2:] <= cut[:, :2]).any(1)
    if wrong.any():
        first = int(wrong.argmax())
        number = first - int(counts[: owner[first]].sum())
        left, top, right, bottom = corners[first] + (1, 1, 0, 0)
        width, height = sizes[owner[first]]
        raise UserError(
            f"{annotations[owner[first]].where}: object {number}: its box {left:g}, {top:g}, {right:g}, {bottom:g} is "
            f"not within the image of {width}x{height} pixels; put the official annotation there"
        )
    return Boxes(
        counts=counts,
        labels=np.array([classes.index(label) for a in annotations for label in a.labels], np.int64),
        corners=(cut / limit).astype(np.float32),
        difficult=np.array([flag for a in annotations for flag in a.difficult], bool),
    )
