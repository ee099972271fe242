"""Any images of one's own, sorted into folders by class."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from pflcore.data.samples import Attribute, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._bounds import read_image
from pflcore.datasets._image_trees import SUFFIXES, Picture, decode_pictures, encode, is_image, list_folder
from pflcore.datasets._own_images import OwnImages
from pflcore.errors import UserError
from pflcore.options import option

_SPLITS = ("train", "test")
_JUNK = ("Thumbs.db", "desktop.ini")  # what file managers leave behind, beside hidden files


@DATASETS.register
class ImageFolder(OwnImages):
    """Your own images, sorted into folders by class; no code needed.

    The names of the innermost folders are the classes, in alphabetical order. What the folders around them stand for is
    the option `layout`: nothing, the split, or the domain, which becomes the attribute ``domain``. Only the layout
    ``split/class`` has a test set; otherwise all samples are training samples. Everything in the folder has to be an
    image in its place, so that no image is left out unnoticed; hidden files are passed over. Every class needs an
    image, and training and test set need the same classes; a domain need not have all of them.
    """

    files = ("*/",)
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {}

    layout: str = option(
        "class",
        help="How the images are sorted: class is <path>/<class>/<image>; split/class is <path>/train/<class>/<image> "
        "and <path>/test/<class>/<image>; domain/class is <path>/<domain>/<class>/<image>.",
        choices=("class", "split/class", "domain/class"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout == "domain/class":
            object.__setattr__(self, "attributes", {"domain": ()})

    def load(self, folder: Path) -> Samples:
        """Read the images below the folder that `path` names."""
        root = self.root(folder)
        if not self.found(folder):
            raise UserError(f"{root}: no data here; put images there as {self._form}, or set the option 'path'")
        groups = [""] if self.layout == "class" else self._folders(root)
        if self.layout == "split/class" and sorted(groups) != sorted(_SPLITS):
            raise UserError(f"{root}: has the folders {', '.join(groups)}, but the layout needs train and test alone")
        pictures = [picture for group in groups for picture in self._pictures(root / group, group)]
        classes = tuple(sorted({picture.label for picture in pictures}))
        train = np.array([picture.domain != "test" or self.layout != "split/class" for picture in pictures])
        if self.layout == "split/class":
            _check_equal(root, *({p.label for p in pictures if p.domain == split} for split in _SPLITS))
        domains = Attribute(encode([picture.domain for picture in pictures], groups), tuple(groups))
        return self.complete(
            decode_pictures(pictures, self.shape, f"decoding {root.name}"),
            encode([picture.label for picture in pictures], classes),
            train,
            where=str(root),
            source=f"images in {self.path or self.name}/",
            class_names=classes,
            attributes={"domain": domains} if self.layout == "domain/class" else {},
        )

    @property
    def _form(self) -> str:
        return "/".join(f"<{part}>" for part in (*self.layout.split("/"), "image"))

    def _pictures(self, folder: Path, group: str) -> list[Picture]:
        return [
            Picture(group, label, path.name, str(path), partial(read_image, path))
            for label in self._folders(folder)
            for path in self._images(folder / label)
        ]

    def _folders(self, folder: Path) -> list[str]:
        """The names of the folders in a folder that holds nothing else."""
        content = _visible(folder)
        if stray := [path for path in content if not path.is_dir()]:
            raise UserError(f"{stray[0]}: a folder is expected here, as the layout is {self._form}; move it away")
        if not content:
            raise UserError(f"{folder}: is empty, but the layout is {self._form}; fill it or remove it")
        if odd := [path.name for path in content if not path.name.isprintable()]:  # would break files and tables
            raise UserError(f"{folder}: the folder name {odd[0]!r} has characters that cannot be printed; rename it")
        return [path.name for path in content]

    def _images(self, folder: Path) -> list[Path]:
        content = _visible(folder)
        for path in content:
            if path.is_dir():
                raise UserError(f"{path}: an image is expected here, as the layout is {self._form}; set 'layout'")
            if not is_image(path.name):
                raise UserError(f"{path}: not an image by its name; move it away, or use {', '.join(SUFFIXES)}")
        if not content:
            raise UserError(f"{folder}: has no images; fill it or remove it")
        return content


def _visible(folder: Path) -> list[Path]:
    return [path for path in list_folder(folder) if not path.name.startswith(".") and path.name not in _JUNK]


def _check_equal(root: Path, train: set[str], test: set[str]) -> None:
    if train != test:
        lacking = [
            f"{split} has no {', '.join(sorted(missing))}"
            for split, missing in (("train", test - train), ("test", train - test))
            if missing
        ]
        raise UserError(f"{root}: training and test set need the same classes, but {' and '.join(lacking)}")
