"""Any images of one's own with boxes, in the layout of PASCAL VOC."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._own_images import OwnImages
from pflcore.datasets._voc import LARGEST, PARTS, RULE_HELP, RULES, open_folder, read_splits
from pflcore.errors import UserError
from pflcore.options import option


@DATASETS.register
class DetectionFolder(OwnImages):
    """Your own images with boxes around objects, in the layout of PASCAL VOC; no code needed.

    The folder has ``Annotations/<image>.xml``, ``JPEGImages/<image>.jpg`` and the lists of images
    ``ImageSets/Main/<list>.txt``. Images are scaled to a square and boxes with them. A class that is not named, a box
    that is not within its image and an image without an object are errors. In partitions an image counts for one class,
    by `counts_as`.
    """

    files = ("Annotations/",)
    detects = True
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    class_list: tuple[str, ...] = option(
        (),
        help="The names of the classes, as the annotations have them; empty: all that occur, in alphabetical order.",
    )
    train_list: str = option("trainval", help="The list of training images, without its ending.")
    test_list: str = option("test", help="The list of test images, without its ending.")
    counts_as: str = option(LARGEST, choices=RULES, help=RULE_HELP)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.class_list)) < len(self.class_list):
            raise UserError(f"{self.name}.class_list = {list(self.class_list)} must be distinct names")
        for key in ("train_list", "test_list"):
            name: str = getattr(self, key)
            if not name.isprintable() or name in ("", ".", "..") or set(name) & set("/\\"):
                raise UserError(f"{self.name}.{key} = {name!r} must be the name of a list in ImageSets/Main")
        object.__setattr__(self, "class_names", self.class_list)

    def load(self, folder: Path) -> Samples:
        """Read the folder that `path` names."""
        root = self.root(folder)
        if not all((root / part).is_dir() for part in PARTS):
            raise UserError(f"{root}: no data here; put the folders {', '.join(PARTS)} there, or set the option 'path'")
        with open_folder(root, f"images in {self.path or self.name}/") as files:
            return read_splits(self, [(files, self.train_list)], (files, self.test_list), self.counts_as, self.form)
