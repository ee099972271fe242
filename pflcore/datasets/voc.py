"""PASCAL VOC 2007 and 2012, and the reader of their layout: an XML file of boxes per image, and a list per split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from pflcore.data.samples import Boxes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, HALF, Dataset, check_distinct, encode
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import Files, Read, reading
from pflcore.datasets._images import DecodeOptions, decode_images
from pflcore.datasets._user_files import check_training_classes
from pflcore.errors import UserError
from pflcore.options import option

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
PARTS = ("Annotations", "ImageSets", "JPEGImages")
LARGEST = "largest"
FREQUENT = "frequent"
RAREST = "rarest"
RULES = (LARGEST, FREQUENT, RAREST)
RULE_HELP = "The class that an image counts for in partitions: of its largest object, of most of them, or its rarest."
_HOST = "http://host.robots.ox.ac.uk/pascal/VOC"


Split = tuple[Files, str, str]
"""The files with a list of images, their source for reports, and the name of the list."""


def read_splits(dataset: Dataset, splits: Sequence[Split], rule: str, as_shown: bool = False) -> Samples:
    """Return the images of some lists, the last of which is the test set, with their boxes.

    The label of an image is the class of one of its objects, chosen by `rule`, one of :data:`RULES`.
    """
    where = ", ".join(dict.fromkeys(files.where for files, *_ in splits))
    source = ", ".join(dict.fromkeys(source for _, source, _ in splits))
    lists = [_read_list(files, split) for files, _, split in splits]
    listed = [(files, name) for (files, *_), names in zip(splits, lists, strict=True) for name in names]
    counts = Counter(name for _, name in listed)
    if repeated := {name for name, count in counts.items() if count > 1}:
        list_names = " and ".join(split for *_, split in splits)
        raise UserError(f"{where}: {min(repeated)} is listed twice in {list_names}; correct the lists")
    annotations = [files.reader(f"Annotations/{name}.xml") for files, name in listed]
    objects_by_image = [_read_objects(path, read, dataset.class_names) for path, read in annotations]
    options = DecodeOptions(dataset.shape, resize=True, as_shown=as_shown, formats=("JPEG", "PNG"))
    images = [files.reader(f"JPEGImages/{name}.jpg") for files, name in listed]
    decoded = decode_images(images, options, f"decoding {dataset.name}")
    objects = [item for image_objects in objects_by_image for item in image_objects]
    classes = dataset.class_names or tuple(sorted({item.label for item in objects}))
    corners = map(_relative_corners, objects_by_image, decoded.sizes, [path for path, _ in annotations])
    boxes = Boxes(
        counts=np.array([*map(len, objects_by_image)], np.int64),
        labels=encode([item.label for item in objects], classes),
        corners=np.concatenate([*corners]).astype(np.float32),
        difficult=np.array([item.difficult for item in objects], bool),
    )
    train = np.arange(len(listed)) < len(listed) - len(lists[-1])
    if as_shown:  # a user's own
        check_training_classes(boxes.labels, np.repeat(train, boxes.counts), classes, where, "object")
    labels = main_classes(boxes, rule)
    return dataset.complete(decoded.pixels, labels, train, where=where, source=source, class_names=classes, boxes=boxes)


def _read_list(files: Files, name: str) -> list[str]:
    where, read = files.reader(f"ImageSets/Main/{name}.txt")
    with reading(where, "put the official list there"):
        names = [line.strip() for line in read().decode("utf-8-sig").splitlines() if line.strip()]
    if not names:
        raise UserError(f"{where}: is empty; put the official list there")
    return names


class _Object(NamedTuple):
    label: str
    corners: tuple[float, ...]  # in pixels as in the file
    difficult: bool


def _read_objects(where: str, read: Read, classes: tuple[str, ...]) -> list[_Object]:
    """Return an image's objects; their classes must be in `classes` unless that is empty."""
    from defusedxml.ElementTree import fromstring

    objects = []
    with reading(where, "put the official annotation there"):
        root = fromstring(read(), forbid_dtd=True)
        for number, element in enumerate(root.findall("object")):  # deeper levels have the boxes of an object's parts
            label = (element.findtext("name") or "").strip()
            if not label or (classes and label not in classes):
                raise UserError(f"{where}: object {number}: its class {label!r} is unknown; put it into class_list")
            # Some official annotations have fractions.
            corners = [float(element.findtext(f"bndbox/{key}") or "") for key in ("xmin", "ymin", "xmax", "ymax")]
            objects.append(_Object(label, tuple(corners), float(element.findtext("difficult") or 0) != 0))
    if not objects:
        raise UserError(f"{where}: has no object; take the image off the lists in ImageSets/Main")
    return objects


def _relative_corners(objects: list[_Object], size: Rows, where: str) -> npt.NDArray[np.float64]:
    """Return corners as fractions of the image's size. In the files, pixels count from 1, and boxes include both ends.

    A box that exceeds its image by at most one pixel, as from a program that counts from 0, is clipped.
    """
    corners = np.array([item.corners for item in objects]) - (1, 1, 0, 0)
    limit = np.tile(size, 2).astype(np.float64)
    clipped: npt.NDArray[np.float64] = np.clip(corners, 0, limit)
    valid = (np.abs(corners - clipped) <= 1).all(1) & (clipped[:, 2:] > clipped[:, :2]).all(1)  # also false for NaN
    if not valid.all():
        number = int(valid.argmin())
        box = ", ".join(f"{value:g}" for value in objects[number].corners)
        problem = f"has no area in the image of {size[0]}x{size[1]} pixels, or stands out of it"
        raise UserError(f"{where}: object {number}: its box {box} {problem}; put the official annotation there")
    return clipped / limit


def main_classes(boxes: Boxes, rule: str) -> Rows:
    """Return the class of each image by one of :data:`RULES`, int64 [n]; the first object or lowest class wins ties."""
    left, top, right, bottom = boxes.corners.astype(np.float64).T
    areas = (right - left) * (bottom - top)
    overall = np.bincount(boxes.labels)
    classes = []
    for objects in np.split(np.arange(len(boxes.labels)), np.cumsum(boxes.counts)[:-1]):
        easy = objects[~boxes.difficult[objects]]
        objects = easy if len(easy) else objects
        labels = boxes.labels[objects]
        if rule == LARGEST:
            main = labels[areas[objects].argmax()]
        elif rule == FREQUENT:
            main = np.bincount(labels).argmax()
        else:
            present = np.unique(labels)
            main = present[overall[present].argmin()]
        classes.append(main)
    return np.array(classes, np.int64)


@dataclass(frozen=True, kw_only=True)
class Voc(Dataset):
    """Base of the VOC datasets."""

    archives: ClassVar[tuple[Source, ...]]
    year_folder: ClassVar[str]
    splits: ClassVar[tuple[str, str]]  # the lists that make the training and the test set
    citation = "M. Everingham et al., The PASCAL Visual Object Classes (VOC) Challenge, IJCV 2010"
    licence = "research use; the images are subject to Flickr's terms of use"
    access = DOWNLOAD
    original = (3, 0, 0)
    class_names = CLASSES
    detects = True
    mean = std = HALF
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    size: int = option(300, help="Height and width in pixels that every image is scaled to.", ge=8, le=1024)
    class_list: tuple[str, ...] = option(CLASSES, help="Classes; with others than VOC's any number of images is taken.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct(self, "class_list")
        object.__setattr__(self, "class_names", self.class_list)

    @property
    def expected(self) -> tuple[int, int] | None:
        return self.counts if self.class_list == CLASSES else None

    def data_files(self, folder: Path) -> list[DataFile]:
        return [DataFile(a.name, folder, (a.name, *self.files), a, automatic=True) for a in self.archives]

    def load(self, folder: Path) -> Samples:
        with self.opened(folder, self.archives) as (files, source):
            return read_splits(self, [(files, source, split) for split in self.splits], LARGEST)

    @contextmanager
    def opened(self, folder: Path, archives: Sequence[Source]) -> Iterator[tuple[Files, str]]:
        """Open the files of the year in `folder`; yield them and their source for reports."""
        with self.open(folder, archives, f"VOCdevkit/{self.year_folder}", PARTS) as (files, source):
            yield files, "a folder of VOC's layout" if source == "." else source


@DATASETS.register
class Voc2007(Voc):
    """PASCAL VOC 2007, 5,011 + 4,952 photographs with 24,640 boxes of 20 classes.

    The list trainval is the training set, and test is the test set. The label of an image is the class of its largest
    object that is not marked difficult, or of its largest object if all are. Boxes in pixels count from 1 and include
    both ends; fractions of width and height are stored. With `class_list`, your own data in this layout can be read.
    """

    name = "voc2007"
    homepage = f"{_HOST}/voc2007/"
    download_size = "890 MB"
    counts = (5011, 4952)
    splits = ("trainval", "test")
    year_folder = "VOC2007"
    archives = (
        Source(f"{_HOST}/voc2007/VOCtrainval_06-Nov-2007.tar", "md5", "c52e279531787c972589f7e41ab4ae64"),
        Source(f"{_HOST}/voc2007/VOCtest_06-Nov-2007.tar", "md5", "b6e924de25625d8de591ea690078ad9f"),
    )
    files = ("VOCdevkit/VOC2007/", "VOC2007/", "Annotations/")


@DATASETS.register
class Voc2012(Voc):
    """PASCAL VOC 2012, 5,717 + 5,823 photographs with 27,450 boxes of 20 classes.

    The list train is the training set and val the test set, as the official test set's annotations are not public.
    """

    name = "voc2012"
    homepage = f"{_HOST}/voc2012/"
    download_size = "2.0 GB"
    counts = (5717, 5823)
    splits = ("train", "val")
    year_folder = "VOC2012"
    archives = (Source(f"{_HOST}/voc2012/VOCtrainval_11-May-2012.tar", "md5", "6cd6e144f989b92b3379bac3b3de84fd"),)
    files = ("VOCdevkit/VOC2012/", "VOC2012/", "Annotations/")


@DATASETS.register
class VocDetection(Voc):
    """PASCAL VOC 2007 and 2012 together, 10,728 + 5,823 photographs with boxes.

    Training images are trainval of 2007 and train of 2012, test images are val of 2012, read from the folders of
    ``voc2007`` and ``voc2012``. pFedLA's "2007 and 2012, tested on 2012" has its test images in training; here no image
    is in both sets. In partitions an image counts for one class, by `counts_as`.
    """

    name = "voc_detection"
    homepage = f"{_HOST}/"
    download_size = "2.4 GB"
    counts = (10_728, 5_823)

    counts_as: str = option(LARGEST, choices=RULES, help=RULE_HELP)

    def data_files(self, folder: Path) -> list[DataFile]:
        files_2007, files_2012 = (voc.data_files(folder.parent / voc.name) for voc in (Voc2007(), Voc2012()))
        return [*files_2007[:1], *files_2012]  # without the test images of 2007

    def load(self, folder: Path) -> Samples:
        root = folder.parent
        voc2007, voc2012 = Voc2007(), Voc2012()
        with (
            voc2007.opened(root / voc2007.name, voc2007.archives[:1]) as (files, source),
            voc2012.opened(root / voc2012.name, voc2012.archives) as (later_files, later_source),
        ):
            splits = [(files, source, voc2007.splits[0])]
            splits += [(later_files, later_source, split) for split in voc2012.splits]
            return read_splits(self, splits, self.counts_as)
