"""Any images of one's own in Parquet files, such as exports of the Hugging Face library ``datasets``."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from pflcore.data.samples import Attribute, Rows, Samples, check_labels
from pflcore.datasets import DATASETS
from pflcore.datasets._decode import decode_images
from pflcore.datasets._image_tables import ImageTable, read_own_table
from pflcore.datasets._image_trees import encode
from pflcore.datasets._own_images import OwnImages
from pflcore.errors import UserError
from pflcore.options import option


@DATASETS.register
class OwnImageTable(OwnImages):
    """Your own images in Parquet files, as Hugging Face exports them; no code needed.

    Read are ``train*.parquet``, and ``test*.parquet`` when there are any; without them all samples are training
    samples. An image is a PNG, JPEG or the like in a binary column, or in the field ``bytes`` of a struct.

    A label is an integer, named by the metadata of an export when it has names; or a text, and then the distinct texts
    are the classes, in alphabetical order. Integers without names have to be 0, 1, 2 and so on without a gap. A text
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

    def found(self, folder: Path) -> bool:
        """Whether there is a file of training images in the chosen folder."""
        return any(self.root(folder).glob("train*.parquet"))

    def load(self, folder: Path) -> Samples:
        """Read the files in the folder that `path` names."""
        root = self.root(folder)
        if not self.found(folder):
            raise UserError(f"{root}: no train*.parquet here; put Parquet files of images there, or set 'path'")
        paths = [sorted(root.glob(f"{split}*.parquet")) for split in ("train", "test")]
        tables = [read_own_table(path, self.image, self.label, self.domain) for path in (*paths[0], *paths[1])]
        ends = list(accumulate(len(table.labels) for table in tables))
        train = np.arange(ends[-1]) < ends[len(paths[0]) - 1]
        class_names, labels = _classes(root, tables, int(train.sum()))
        images = pa.chunked_array([chunk for table in tables for chunk in table.images.chunks], pa.large_binary())

        def name(row: int) -> str:
            number = bisect_right(ends, row)
            return f"{tables[number].path}: row {row - (ends[number - 1] if number else 0)}"

        pixels, encodings = decode_images(
            ends[-1],
            (self.channels, self.size, self.size),
            lambda row: images[row].as_py(),
            name,
            f"decoding {self.name}",
            resize=True,
        )
        return self.complete(
            pixels,
            labels,
            train,
            where=str(root),
            source=f"{', '.join(table.path.name for table in tables)} ({', '.join(sorted(encodings))} images)",
            class_names=class_names,
            attributes=_domains(tables) if self.domain is not None else {},
        )


def _classes(root: Path, tables: list[ImageTable], train: int) -> tuple[tuple[str, ...], Rows]:
    """Names and numbers of the classes of all tables, whose first `train` rows are for training."""
    first = tables[0]
    for table in tables:
        if type(table.labels[0]) is not type(first.labels[0]) or table.class_names != first.class_names:
            raise UserError(f"{table.path}: its labels are of another kind than those of {first.path.name}")
    values: list[int | str] = [label for table in tables for label in table.labels]
    if isinstance(values[0], str):
        texts = [str(value) for value in values]
        names = tuple(sorted(set(texts)))
        if unknown := sorted(set(texts) - set(texts[:train])):
            raise UserError(f"{root}: the test files have labels without a training image: {', '.join(unknown)}")
        return names, encode(texts, names)
    highest = max(int(value) for value in values)
    names = first.class_names
    if not names:
        if gaps := set(range(max(0, min(highest, len(values))) + 1)) - set(values):
            raise UserError(f"{root}: integer labels must be 0, 1, 2 and so on, but no image has label {min(gaps)}")
        names = tuple(str(number) for number in range(highest + 1))
    labels = []
    for table in tables:
        # Labels beyond 64 bits exist only in damaged files: they are as wrong as any other number out of range.
        labels.append(np.array([min(int(value), 2**62) for value in table.labels], np.int64))
        check_labels(labels[-1], len(names), str(table.path))
    return names, np.concatenate(labels)


def _domains(tables: list[ImageTable]) -> dict[str, Attribute]:
    domains = [domain for table in tables for domain in table.domains]
    names = tuple(sorted(set(domains)))
    return {"domain": Attribute(encode(domains, names), names)}
