"""PASCAL VOC 2007 and 2012, and how images with boxes in their layout are read: an XML file and lists of the splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from pflcore.data.preparation import track
from pflcore.data.samples import Boxes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, HALF, Dataset, check_distinct
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import Read, open_files, reading
from pflcore.datasets._images import Form, decode_images
from pflcore.errors import UserError
from pflcore.options import option

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
PARTS = ("Annotations", "ImageSets", "JPEGImages")
LARGEST, FREQUENT, RAREST = RULES = ("largest", "frequent", "rarest")
RULE_HELP = (
    "The class that an image counts for in partitions, of its objects that are not difficult if it has any: largest: "
    "that of the largest; frequent: that of most of them; rarest: the one that fewest objects of the dataset have."
)
_HOST = "http://host.robots.ox.ac.uk/pascal/VOC"


class Files(NamedTuple):
    """The files of a year by their names below its folder, what messages call them, and what a report does."""

    where: str
    source: str
    readers: dict[str, Read]

    def read(self, name: str) -> bytes:
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


def read_splits(
    dataset: Dataset, train: Sequence[tuple[Files, str]], test: tuple[Files, str], rule: str, as_shown: bool = False
) -> Samples:
    """Read the images of some lists, each a name in some files, and their boxes.

    An image is labelled by the one of its objects that the rule says, one of :data:`RULES`.
    """
    splits = [*train, test]
    names = [(files, name) for files, split in splits for name in files.split(split)]
    where = ", ".join(dict.fromkeys(files.where for files, _ in splits))
    source = ", ".join(dict.fromkeys(files.source for files, _ in splits))
    if twice := [name for name, count in Counter(name for _, name in names).items() if count > 1]:
        raise UserError(
            f"{where}: {min(twice)} is in both {' and '.join(split for _, split in splits)}; correct the lists"
        )
    advance, objects = track(f"reading annotations of {dataset.name}", len(names)), []
    for files, name in names:
        objects.append(_read_objects(files, f"Annotations/{name}.xml", dataset.class_names))
        advance(1)
    readers = [(f"{files.where}/JPEGImages/{n}.jpg", partial(files.read, f"JPEGImages/{n}.jpg")) for files, n in names]
    form = Form(dataset.shape, resize=True, as_shown=as_shown, formats=("JPEG", "PNG"))
    decoded = decode_images(readers, form, f"decoding {dataset.name}")
    classes = dataset.class_names or tuple(sorted({one.label for own in objects for one in own}))
    corners = [
        _shares(own, size, f"{files.where}/Annotations/{name}.xml")
        for own, size, (files, name) in zip(objects, decoded.sizes, names, strict=True)
    ]
    boxes = Boxes(
        counts=np.array([len(own) for own in objects], np.int64),
        labels=np.array([classes.index(one.label) for own in objects for one in own], np.int64),
        corners=np.concatenate(corners).astype(np.float32),
        difficult=np.array([one.difficult for own in objects for one in own], bool),
    )
    is_train = np.arange(len(names)) < len(names) - len(test[0].split(test[1]))
    return dataset.complete(
        decoded.pixels,
        main_classes(boxes, rule),
        is_train,
        where=where,
        source=source,
        class_names=classes,
        boxes=boxes,
    )


class _Object(NamedTuple):
    label: str
    corners: tuple[float, ...]  # in pixels as in the file
    difficult: bool


def _read_objects(files: Files, name: str, classes: tuple[str, ...]) -> list[_Object]:
    """Read an image's objects, of the given classes or, where there are none, of any."""
    from defusedxml.ElementTree import fromstring

    where, objects = f"{files.where}/{name}", []
    with reading(where, "put the official annotation there"):
        root = fromstring(files.read(name), forbid_dtd=True)
        for number, element in enumerate(root.findall("object")):  # parts of an object have boxes too, further inside
            label = (element.findtext("name") or "").strip()
            if not label or (classes and label not in classes):
                raise UserError(f"{where}: object {number}: its class {label!r} is unknown; put it into class_list")
            # The official annotations have fractions here and there.
            corners = [float(element.findtext(f"bndbox/{key}") or "") for key in ("xmin", "ymin", "xmax", "ymax")]
            objects.append(_Object(label, tuple(corners), float(element.findtext("difficult") or 0) != 0))
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
    """Return a class for each image by one of :data:`RULES`, int64 [n]; of equals the first, or lowest, counts."""
    left, top, right, bottom = boxes.corners.astype(np.float64).T
    sizes, overall, classes = (right - left) * (bottom - top), np.bincount(boxes.labels), []
    for own in np.split(np.arange(len(boxes.labels)), np.cumsum(boxes.counts)[:-1]):
        easy = own[~boxes.difficult[own]]
        own = easy if len(easy) else own
        labels = boxes.labels[own]
        met = np.unique(labels)
        by_rule = {LARGEST: labels[sizes[own].argmax()], RAREST: met[overall[met].argmin()]}
        classes.append(by_rule.get(rule, np.bincount(labels).argmax()))
    return np.array(classes, np.int64)


@dataclass(frozen=True, kw_only=True)
class Voc(Dataset):
    """Base of the VOC datasets of one year each."""

    archives: ClassVar[tuple[Source, ...]]
    year_folder: ClassVar[str]
    splits: ClassVar[tuple[str, str]]  # the lists that make the training and the test set
    citation = "M. Everingham et al., The PASCAL Visual Object Classes (VOC) Challenge, IJCV 2010"
    licence = "research use; the images are subject to Flickr's terms of use"
    access = DOWNLOAD
    original = (3, 0, 0)
    class_names = CLASSES
    mean = std = HALF
    detects = True
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    size: int = option(300, help="Height and width in pixels that every image is scaled to.", ge=8, le=1024)
    class_list: tuple[str, ...] = option(
        CLASSES, help="The names of the classes; with others than VOC's, any number of images is taken."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct(self, "class_list")
        object.__setattr__(self, "class_names", self.class_list)

    @property
    def expected(self) -> tuple[int, int] | None:
        return self.counts if self.class_list == CLASSES else None

    def load(self, folder: Path) -> Samples:
        with self.open(folder) as files:
            train, test = self.splits
            return read_splits(self, [(files, train)], (files, test), LARGEST)

    @contextmanager
    def open(self, folder: Path, archives: int = 2) -> Iterator[Files]:
        """Open the files in `folder`; of the official archives, which are downloaded, the first are enough."""
        with ExitStack() as stack:
            if not any((folder / source.name).is_file() for source in self.archives):
                for inside in (f"VOCdevkit/{self.year_folder}", self.year_folder, "."):
                    if all((folder / inside / part).is_dir() for part in PARTS):
                        called = inside if inside != "." else "a folder of VOC's layout"
                        yield stack.enter_context(open_folder(folder / inside, called))
                        return
            also = f"the folder VOCdevkit/{self.year_folder}, or the folders {', '.join(PARTS)}"
            prefix, readers = f"VOCdevkit/{self.year_folder}/", dict[str, Read]()
            for source in self.archives[:archives]:
                members = open_files(source.obtain(folder, also), lambda name: name.startswith(prefix))
                for name, read in stack.enter_context(members).items():
                    readers[name.removeprefix(prefix)] = read
            yield Files(str(folder), ", ".join(source.name for source in self.archives[:archives]), readers)


@DATASETS.register
class Voc2007(Voc):
    """PASCAL VOC 2007, 5,011 + 4,952 photographs with 24,640 boxes of 20 classes.

    The list trainval is the training set and test the test set. The label of an image is the class of its largest
    object that is not marked difficult, or of its largest object when all are. Boxes in pixels count from 1 and include
    both ends; shares of the width and height are stored. With `class_list` data of one's own in this layout is read.
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
    files = (archives[0].name, archives[1].name, "VOCdevkit/VOC2007/", "VOC2007/", "Annotations/")


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
    files = (archives[0].name, "VOCdevkit/VOC2012/", "VOC2012/", "Annotations/")


@DATASETS.register
class VocDetection(Voc):
    """PASCAL VOC 2007 and 2012 together, 10,728 + 5,823 photographs with boxes.

    Training images are trainval of 2007 and train of 2012, test images are val of 2012, read from the folders of
    ``voc2007`` and ``voc2012``. pFedLA's "2007 and 2012, tested on 2012" has its test images in training; here no image
    is in both. In partitions an image counts for one class, by `counts_as`.
    """

    name = "voc_detection"
    homepage = f"{_HOST}/"
    download_size = "2.4 GB"
    counts = (10_728, 5_823)

    counts_as: str = option(LARGEST, choices=RULES, help=RULE_HELP)

    @property
    def years(self) -> tuple[Voc, Voc]:
        """Return both years, with the present options."""
        return Voc2007(size=self.size, class_list=self.class_list), Voc2012(size=self.size, class_list=self.class_list)

    def data_files(self, folder: Path) -> list[DataFile]:
        pairs = [(year.name, year.data_files(folder.parent / year.name)) for year in self.years]
        return [replace(file, what=name) for name, files in pairs for file in files]

    def load(self, folder: Path) -> Samples:
        earlier, later = self.years
        with (
            earlier.open(folder.parent / earlier.name, archives=1) as old,
            later.open(folder.parent / later.name) as new,
        ):
            train = [(old, earlier.splits[0]), (new, later.splits[0])]
            return read_splits(self, train, (new, later.splits[1]), self.counts_as)
