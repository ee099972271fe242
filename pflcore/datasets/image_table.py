"""Any images of one's own in Parquet files, such as exports of the Hugging Face library ``datasets``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from pflcore.data.samples import Attribute, Mask, Rows, Samples, check_labels
from pflcore.datasets import DATASETS
from pflcore.datasets._base import encode
from pflcore.datasets._images import decode_images
from pflcore.datasets._own_images import OwnImages
from pflcore.datasets._tables import ImageTable, read_table
from pflcore.errors import UserError
from pflcore.options import option


@DATASETS.register
class OwnImageTable(OwnImages):
    """Your own images in Parquet files, as Hugging Face exports them; no code needed.

    Read are ``train*.parquet``, and ``test*.parquet`` when there are any; without them all samples are training
    samples. An image is a PNG, JPEG or the like in a binary column, or in the field ``bytes`` of a struct. It is read
    as a viewer shows it: turned as EXIF says, on white where it is transparent, 16 bits and floats scaled to bytes.

    A label is an integer, named by the metadata of an export when it has names; or a text, and then the distinct texts
    are the classes, in alphabetical order. Integers without names have to be 0, 1, 2 and so on without a gap. A label
    that only the test files have is an error.
    """

    files = ("train*.parquet",)
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {}

    image: str = option("image", help="The column of the encoded images.")
    label: str = option("label", help="The column of the labels, integers or texts.")
    domain: str | None = option(
        None, help="A column of texts or integers that becomes the attribute domain; null is none."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain is not None:
            object.__setattr__(self, "attributes", {"domain": ()})

    def load(self, folder: Path) -> Samples:
        """Read the files in the folder that `path` names."""
        root = self.root(folder)
        if not self.found(folder):
            raise UserError(f"{root}: no train*.parquet here; put Parquet files of images there, or set 'path'")
        columns = [self.label] + ([] if self.domain is None else [self.domain])
        tables = {
            split: [read_table(path, self.image, columns) for path in sorted(root.glob(f"{split}*.parquet"))]
            for split in ("train", "test")
        }
        both = [*tables["train"], *tables["test"]]
        train = np.repeat([table in tables["train"] for table in both], [len(table.images) for table in both])
        class_names, labels = _classes(root, both, self.label, train)
        decoded = decode_images([one for table in both for one in table.readers()], self.form, f"decoding {self.name}")
        attributes = {}
        if self.domain is not None:
            domains = [str(domain) for table in both for domain in table.columns[self.domain]]
            names = tuple(sorted(set(domains)))
            attributes["domain"] = Attribute(encode(domains, names), names)
        return self.complete(
            decoded.pixels,
            labels,
            train,
            where=str(root),
            source=f"{', '.join(table.path.name for table in both)} ({', '.join(sorted(decoded.formats))} images)",
            class_names=class_names,
            attributes=attributes,
        )


def _classes(root: Path, tables: list[ImageTable], label: str, train: Mask) -> tuple[tuple[str, ...], Rows]:
    """Return names and numbers of the classes of all tables."""
    first = tables[0]
    for table in tables:
        if type(table.columns[label][0]) is not type(first.columns[label][0]) or table.class_names != first.class_names:
            raise UserError(f"{table.path}: its labels are of another kind than those of {first.path.name}")
    values: list[int | str] = [value for table in tables for value in table.columns[label]]
    if isinstance(values[0], str):
        names = tuple(sorted({str(value) for value in values}))
        labels = encode([str(value) for value in values], names)
    else:
        # Labels beyond 64 bits exist only in damaged files: they are as wrong as any other number out of range.
        labels = np.array([min(int(value), 2**62) for value in values], np.int64)
        highest = min(int(labels.max()), len(values))
        if not first.class_names and (gaps := set(range(highest + 1)) - set(labels.tolist())):
            raise UserError(f"{root}: integer labels must be 0, 1, 2 and so on, but no image has label {min(gaps)}")
        names = first.class_names or tuple(str(number) for number in range(highest + 1))
        check_labels(labels, len(names), str(root))
    if unknown := sorted(set(labels[~train].tolist()) - set(labels[train].tolist())):
        listed = ", ".join(names[number] for number in unknown)
        raise UserError(f"{root}: the test files have labels without a training image: {listed}")
    return names, labels
