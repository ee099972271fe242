"""Any images of one's own, sorted into folders by class."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from pflcore.data.samples import Attribute, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import encode
from pflcore.datasets._files import read_file
from pflcore.datasets._images import SUFFIXES, decode_images, is_image
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
    image in its place, so that no image is left out unnoticed; hidden files are ignored. Every class needs an image,
    and training and test set need the same classes; a domain need not have all of them. Images are read as a viewer
    shows them: turned as EXIF says, on white where they are transparent, 16 bits and floats scaled to bytes.
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
        labels = {group: self._folders(root / group) for group in groups}
        images = [
            (group, label, path)
            for group in groups
            for label in labels[group]
            for path in self._images(root / group / label)
        ]
        if self.layout == "split/class" and labels["train"] != labels["test"]:
            lacking = [
                f"{split} has no {', '.join(sorted(missing))}"
                for split, other in (("train", "test"), ("test", "train"))
                if (missing := set(labels[other]) - set(labels[split]))
            ]
            raise UserError(f"{root}: training and test set need the same classes, but {' and '.join(lacking)}")
        classes = tuple(sorted({label for _, label, _ in images}))
        domains = Attribute(encode([group for group, _, _ in images], groups), tuple(groups))
        readers = [(str(path), partial(read_file, path)) for _, _, path in images]
        return self.complete(
            decode_images(readers, self.form, f"decoding {root.name}").pixels,
            encode([label for _, label, _ in images], classes),
            np.array([group != "test" or self.layout != "split/class" for group, _, _ in images]),
            where=str(root),
            source=f"images in {self.path or self.name}/",
            class_names=classes,
            attributes={"domain": domains} if self.layout == "domain/class" else {},
        )

    @property
    def _form(self) -> str:
        return "/".join(f"<{part}>" for part in (*self.layout.split("/"), "image"))

    def _folders(self, folder: Path) -> list[str]:
        """Return the names of the folders in a folder that holds nothing else."""
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
    try:
        content = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise UserError(f"{folder}: not a readable folder ({error.strerror}); give it the right permissions") from None
    return [path for path in content if not path.name.startswith(".") and path.name not in _JUNK]
