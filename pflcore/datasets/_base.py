"""What a dataset is: facts that are known before it is loaded, and a loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pflcore.data.samples import Attribute, Boxes, Bytes, Mask, Rows, Samples, check_labels
from pflcore.datasets._download import DataFile, Source
from pflcore.errors import UserError
from pflcore.registry import Entry

INCLUDED, DOWNLOAD, FOLDER = "included", "download", "folder"


@dataclass(frozen=True, kw_only=True)
class Dataset(Entry, ABC):
    """Base of the datasets: images of one size, or texts of one length, with one label each.

    What an option of a dataset can change is a property here, so that a subclass may compute it.
    """

    original: ClassVar[tuple[int, ...]]
    """Channels, height, width as distributed; ``(3, 0, 0)`` for images of various sizes."""
    class_names: ClassVar[tuple[str, ...]] = ()
    """Empty when only the data tell."""
    counts: ClassVar[tuple[int, int] | None] = None
    """Training and test samples of the complete dataset; None when only the data tell."""
    about: ClassVar[tuple[int, int] | None] = None
    """Roughly as many, for planning, where only the data tell."""
    mean: ClassVar[tuple[float, ...]] = ()
    """Per channel, of pixel values scaled to 0..1."""
    std: ClassVar[tuple[float, ...]] = ()
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Names of the values of each further fact; an empty tuple when only the data tell."""
    detects: ClassVar[bool] = False
    """Whether its samples have boxes, which a detector is trained on."""
    licence: ClassVar[str]
    homepage: ClassVar[str] = ""
    """Where a person gets it."""
    access: ClassVar[str]
    """How it gets here: ``included`` with an installed library, by ``download``, or in a ``folder`` the user fills."""
    download_size: ClassVar[str]
    """In words, e.g. ``"170 MB"``."""
    files: ClassVar[tuple[str, ...]] = ()
    """Patterns of what may lie in its folder, of which one is enough; a folder's ends with a slash."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return that of a model's input: channels, height, width of images; length of texts.

        The options ``size`` and ``channels``, where a dataset has them, say what images are scaled and converted to.
        """
        if len(self.original) == 1:
            return self.original
        channels, height, width = self.original
        size = getattr(self, "size", None)
        return getattr(self, "channels", channels), size or height, size or width

    @property
    def expected(self) -> tuple[int, int] | None:
        """Return the number of training and test samples with the present options; None when only the data tell."""
        return self.counts

    @property
    def classes(self) -> int:
        """Return the number of classes; 0 when only the data tell."""
        return len(self.class_names)

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std with the present options."""
        return self.mean, self.std

    def found(self, folder: Path) -> bool:
        """Return whether what is read with the present options is here, without looking into it."""
        return all(part.here for part in self.data_files(folder))

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return what is read with the present options; nothing for what is included."""
        if self.access == INCLUDED:
            return []
        by_hand = self.access == FOLDER and self.homepage and self.files
        source = Source(self.homepage, file=self.files[0]) if by_hand else None
        return [DataFile(self.name, folder, self.files, source, self.download_size, needed=self.access == DOWNLOAD)]

    @abstractmethod
    def load(self, folder: Path) -> Samples:
        """Read the complete dataset.

        Args:
            folder: The user's folder of raw data for this dataset. It need not exist, and is created only to download.
                The folders of other datasets lie beside it.

        Raises:
            UserError: Data that is absent and cannot be downloaded, is incomplete, or is not what it should be.
        """

    def imitate(self, labels: Rows, rng: np.random.Generator) -> dict[str, Attribute]:
        """Return attributes for generated samples with the given labels: by default independent of them."""
        imitated = {}
        for name, words in self.attributes.items():
            words = words or tuple(f"{name} {number}" for number in range(8))
            # Every value occurs about equally often, however few the samples are.
            imitated[name] = Attribute(rng.permutation(np.arange(len(labels)) % len(words)), words)
        return imitated

    def complete(
        self,
        inputs: Bytes,
        labels: Rows,
        train: Mask,
        *,
        where: str,
        source: str,
        class_names: tuple[str, ...] = (),
        size: int | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        boxes: Boxes | None = None,
    ) -> Samples:
        """Return the loaded arrays as :class:`Samples`; `class_names` are the data's own when the entry has none.

        Raises:
            UserError: Their number is not the :attr:`expected` one.
        """
        found = int(train.sum()), int((~train).sum())
        if self.expected is not None and found != self.expected:
            train_count, test_count = self.expected
            raise UserError(
                f"{where}: {self.name} has {train_count:,} training and {test_count:,} test samples, "
                f"found {found[0]:,} and {found[1]:,}; put the complete data there"
            )
        check_labels(labels, len(self.class_names or class_names), where)
        names = self.class_names or class_names
        return Samples(
            inputs, labels, train, self.name, names, *self.normalisation, source, size, attributes or {}, boxes
        )

    @staticmethod
    def join(parts: Sequence[tuple[Bytes, Rows]]) -> tuple[Bytes, Rows, Mask]:
        """Return inputs and labels part after part, of which the last is the test set, and which are for training."""
        inputs, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return inputs, labels, np.arange(len(labels)) < len(labels) - len(parts[-1][1])

    def absent(self, folder: Path, expected: str) -> UserError:
        """Return the error for data that the user has to get: where from, and what was `expected` in the folder."""
        return UserError(f"{folder}: no data here; get it from {self.homepage} and put {expected} there")


def encode(words: Sequence[str], names: Sequence[str]) -> Rows:
    """Return the position of every word among the names: int64 [n]."""
    numbers = {name: number for number, name in enumerate(names)}
    return np.fromiter((numbers[word] for word in words), np.int64, len(words))
