"""The base of datasets of a user's own files: their folder, and the names of their classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from pflcore.data.samples import Inputs, Mask, Rows, check_labels
from pflcore.datasets._base import Dataset, Names
from pflcore.datasets._download import DataFile
from pflcore.errors import UserError
from pflcore.options import option


@dataclass(frozen=True, kw_only=True)
class UserFiles(Dataset):
    """Base of the datasets of a user's own files, in a folder below the data folder."""

    licence = "the user's own"
    download_size = "the user's own"

    path: str = option("", help="A folder below the data folder; empty: the one with this dataset's name.")
    version: str = option("", help="Any text, to change when the files have changed: they are not watched.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if PureWindowsPath(self.path).anchor or ".." in PurePosixPath(self.path).parts or set(self.path) & set("\\\0"):
            expected = "a folder below the data folder, such as 'flowers'"
            raise UserError(f"{self.name}.path = {self.path!r} must be {expected}")

    def data_files(self, folder: Path) -> list[DataFile]:
        return [DataFile(self.name, self.root(folder), self.files)]

    def root(self, folder: Path) -> Path:
        """Return the folder that `path` selects, by default `folder`, which has the dataset's name."""
        return folder.parent / self.path if self.path else folder


def name_classes(
    values: Sequence[int | str], train: Mask, where: str, noun: str, names: Names = ()
) -> tuple[Names, Rows]:
    """Return the class names, and the labels as class numbers; labels that are texts become sorted classes.

    Integers without `names` must have no gaps, and a class needs a training sample. Messages call a sample `noun`.
    """
    if isinstance(values[0], str):
        words, labels = np.unique(np.array(values, object), return_inverse=True)
        names = tuple(map(str, words))
    else:
        # Labels beyond 64 bits occur only in damaged files; clipped, they are refused like others out of range.
        labels = np.array([min(int(value), 2**62) for value in values], np.int64)
        if not names:
            names = tuple(map(str, range(min(int(labels.max()), len(values)) + 1)))
            if gaps := {*range(len(names))} - {*labels.tolist()}:
                problem = f"integer labels must be 0, 1, 2 and so on, but no {noun} has label {min(gaps)}"
                raise UserError(f"{where}: {problem}")
        check_labels(labels, len(names), where)
    check_training_classes(labels, train, names, where, noun)
    return names, labels


def check_training_classes(labels: Rows, train: Mask, names: Names, where: str, noun: str) -> None:
    """Raise :class:`UserError` if a class has test samples and no training sample, which messages call `noun`."""
    if missing := np.setdiff1d(labels[~train], labels[train]).tolist():
        classes = ", ".join(ascii(names[label]) for label in missing)
        raise UserError(f"{where}: the test files have labels without a training {noun}: {classes}")


def duplicates_note(inputs: Inputs, train: Mask, noun: str) -> str:
    """Return a note of how many test samples equal a training sample, and training samples each other.

    Without a test set, partitions draw one of the training samples. The note is empty if all differ.
    """
    digests = np.array([hashlib.sha256(sample.tobytes()).digest() for sample in inputs], object)
    tests, training = digests[~train], set(digests[train])
    leaked, repeated = sum(digest in training for digest in tests), len(inputs) - len(tests) - len(training)
    after = " after scaling" if noun == "image" else ""
    notes = []
    if leaked:
        notes.append(f"{leaked:,} of {len(tests):,} test {noun}s equal a training {noun}{after}")
    if repeated:
        notes.append(f"{repeated:,} training {noun}s equal another one{after}")
    return f" ({'; '.join(notes)})" if notes else ""
