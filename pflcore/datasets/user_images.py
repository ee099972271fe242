"""A user's own images: in folders by class, in Parquet files, or with boxes in the layout of PASCAL VOC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import SPLITS, Attribute, Bytes, Mask, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import Names, check_distinct, check_file_name, encode
from pflcore.datasets._files import Read, open_files, read_file
from pflcore.datasets._images import SUFFIXES, Decoded, DecodeOptions, decode_images, is_image, read_tables
from pflcore.datasets._user_files import UserFiles, duplicates_note, name_classes
from pflcore.datasets.voc import LARGEST, PARTS, RULE_HELP, RULES, read_splits
from pflcore.errors import UserError
from pflcore.files import walk
from pflcore.options import option

_JUNK = ("Thumbs.db", "desktop.ini")  # files that file managers create, besides hidden ones


@dataclass(frozen=True, kw_only=True)
class UserImages(UserFiles):
    """Base of the datasets of a user's own images; classes and counts are known only after loading.

    Images are decoded as a viewer shows them: rotated by EXIF's orientation, transparent ones on white, and pixels of
    16 bits, or floats from 0 to 1, scaled to 0..255.
    """

    citation = "none: the user's own images"
    original = (3, 0, 0)
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    size: int = option(64, ge=8, le=1024, help="Height and width in pixels that every image is scaled to.")
    channels: int = option(3, help="3 for colours, 1 for grey; images are converted to it.", choices=(1, 3))
    # Options here, where the base class has constants of published datasets.
    mean: tuple[float, ...] = option((0.5,), ge=0, le=1, help="Of pixels from 0 to 1: one, or one a channel.")  # type: ignore[misc]
    std: tuple[float, ...] = option((0.5,), gt=0, le=1, help="As the mean: one, or one a channel.")  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("mean", "std"):
            values: tuple[float, ...] = getattr(self, key)
            if len(values) not in (1, self.channels):
                expected = f"one number, or one for each of the {self.channels} channels"
                raise UserError(f"{self.name}.{key} = {list(values)} must be {expected}")
            object.__setattr__(self, key, values * (self.channels // len(values)))

    def decode(self, images: Sequence[tuple[str, Read]]) -> Decoded:
        """Decode images as a viewer shows them, scaled to `size`."""
        return decode_images(images, DecodeOptions(self.shape, resize=True, as_shown=True), f"decoding {self.name}")

    def assemble(
        self, root: Path, pixels: Bytes, labels: Rows, train: Mask, class_names: Names, source: str, domains: list[str]
    ) -> Samples:
        """Return the samples, with the attribute ``domain`` if `domains` has the domain of each of them."""
        fields: dict[str, Any] = {"class_names": class_names}
        if domains:
            names = tuple(sorted({*domains}))
            fields["attributes"] = {"domain": Attribute(encode(domains, names), names)}
        source += duplicates_note(pixels, train, "image")
        return self.complete(pixels, labels, train, where=str(root), source=source, **fields)


@DATASETS.register
class ImageFolder(UserImages):
    """Your own images, sorted into folders by class; no code needed.

    The names of the innermost folders are the classes, in alphabetical order. The option `layout` tells whether the
    folders around them are absent, the split, or the domain, which becomes the attribute ``domain``. Only
    ``split/class`` has a test set, which needs the same classes. Every file in the folder must be an image in its
    place, so that none is left out unnoticed; hidden files are ignored.
    """

    name = "image_folder"
    files = ("*/",)

    layout: str = option("class", choices=("class", "split/class", "domain/class"), help="Folders around the images.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout == "domain/class":
            object.__setattr__(self, "attributes", {"domain": ()})

    def load(self, folder: Path) -> Samples:
        root = self.root(folder)
        layout = "/".join(f"<{part}>" for part in (*self.layout.split("/"), "image"))
        if not self.available(folder):
            raise UserError(f"{root}: no data here; put images there as {layout}, or set the option 'path'")
        paths = _files_below(root)
        for path in paths:
            parts = path.relative_to(root).parts
            if len(parts) != layout.count("/") + 1:
                raise UserError(f"{path}: not in its place, as the layout is {layout}; move it, or set 'layout'")
            if not is_image(path.name):
                raise UserError(f"{path}: not an image by its name; move it away, or use {', '.join(SUFFIXES)}")
            if not "".join(parts[:-1]).isprintable():  # it would break files and tables
                raise UserError(f"{root}: the folder name {path.parent.name!r} cannot be printed; rename it")
        if not paths:
            raise UserError(f"{root}: has no images; put them there as {layout}")
        labels = [path.parent.name for path in paths]
        groups = [path.relative_to(root).parts[0] for path in paths]
        classes = tuple(sorted({*labels}))
        if self.layout == "class" and {*classes} == {*SPLITS}:
            raise UserError(f"{root}: train and test are no classes; sort images by class in each, and set 'layout'")
        has_splits = self.layout == "split/class"
        if has_splits:
            present = {*zip(groups, labels, strict=True)}
            if {*groups} != {*SPLITS}:
                folders = ", ".join(sorted({*groups}))
                raise UserError(f"{root}: has the folders {folders}, but the layout needs train and test alone")
            for split, label in product(SPLITS, classes):
                if (split, label) not in present:
                    problem = f"training and test set need the same classes, but {split} has no {label!a}"
                    raise UserError(f"{root}: {problem}")
        pixels = self.decode([(str(path), partial(read_file, path)) for path in paths]).pixels
        train = np.array([group != "test" or not has_splits for group in groups])
        source = f"images in {self.path or self.name}/"
        domains = groups if self.layout == "domain/class" else []
        return self.assemble(root, pixels, encode(labels, classes), train, classes, source, domains)


def _files_below(root: Path) -> list[Path]:
    """Return all files except hidden ones and those of file managers, sorted by folder and name."""

    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: not a readable folder ({error.strerror}); give it the right permissions")

    paths = []
    for folder, subfolders, names in walk(root, fail):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        visible = [name for name in names if not name.startswith(".") and name not in _JUNK]
        if not subfolders and not visible and folder != root:  # perhaps a class that has lost its images
            raise UserError(f"{folder}: an empty folder; put its images there, or remove it")
        paths += [folder / name for name in visible]
    return sorted(paths, key=lambda path: path.parts)


@DATASETS.register
class ImageTable(UserImages):
    """Your own images in Parquet files, as Hugging Face exports them; no code needed.

    The files are ``train*.parquet`` and, if there are any, ``test*.parquet``. An image is in a binary column, or in the
    field ``bytes`` of a struct. A label is an integer, named by an export's metadata or else 0, 1, 2 and so on without
    a gap; or it is a text or a boolean, and the distinct texts are the classes, in alphabetical order.
    """

    name = "image_table"
    files = ("train*.parquet",)

    image: str = option("image", help="The column of the encoded images.")
    label: str = option("label", help="The column of the labels, integers, texts or booleans.")
    domain: str | None = option(None, help="A column of texts or integers, to be the attribute domain; null: none.")
    test: tuple[str, ...] = option(("test",), later=True, help="How names of files begin whose images are for testing.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain is not None:
            object.__setattr__(self, "attributes", {"domain": ()})

    def load(self, folder: Path) -> Samples:
        root = self.root(folder)
        if not self.available(folder):
            raise UserError(f"{root}: no train*.parquet here; put Parquet files of images there, or set 'path'")
        columns = [self.label] if self.domain is None else [self.label, self.domain]
        tables, train = read_tables(root, self.image, columns, self.test)
        first = tables[0]
        values = [value for table in tables for value in table.columns[self.label]]
        for table in tables:
            same_type = type(table.columns[self.label][0]) is type(values[0])
            if not same_type or table.class_names != first.class_names:
                raise UserError(f"{table.path}: its labels are of another kind than those of {first.path.name}")
        class_names, labels = name_classes(values, train, str(root), "image", first.class_names)
        pixels, formats, _ = self.decode([reader for table in tables for reader in table.readers()])
        source = f"{', '.join(table.path.name for table in tables)} ({', '.join(sorted(formats))} images)"
        domains = []
        if self.domain is not None:
            domains = [str(domain) for table in tables for domain in table.columns[self.domain]]
        return self.assemble(root, pixels, labels, train, class_names, source, domains)


@DATASETS.register
class DetectionFolder(UserImages):
    """Your own images with boxes around objects, in the layout of PASCAL VOC; no code needed.

    The folder has ``Annotations/<image>.xml``, ``JPEGImages/<image>.jpg`` and the lists of images
    ``ImageSets/Main/<list>.txt``. A class that is missing in a given `class_list`, a box outside its image and an image
    without an object are errors. In partitions an image counts for one class, by `counts_as`.
    """

    name = "detection_folder"
    files = ("Annotations/",)
    detects = True

    class_list: tuple[str, ...] = option((), help="The names of the classes; empty: all that occur, in order.")
    train_list: str = option("trainval", help="The list of training images, without its ending.")
    test_list: str = option("test", help="The list of test images, without its ending.")
    counts_as: str = option(LARGEST, choices=RULES, help=RULE_HELP)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct(self, "class_list", allow_empty=True)
        for key in ("train_list", "test_list"):
            check_file_name(self, key, "a list in ImageSets/Main")
        object.__setattr__(self, "class_names", self.class_list)

    def load(self, folder: Path) -> Samples:
        root = self.root(folder)
        if not all((root / part).is_dir() for part in PARTS):
            raise UserError(f"{root}: no data here; put the folders {', '.join(PARTS)} there, or set the option 'path'")
        with open_files(root, PARTS) as files:
            source = f"images in {self.path or self.name}/"
            splits = [(files, source, self.train_list), (files, source, self.test_list)]
            return read_splits(self, splits, self.counts_as, as_shown=True)
