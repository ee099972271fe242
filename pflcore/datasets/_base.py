"""What a dataset is: facts that are known before it is loaded, and a loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pflcore.errors import UserError
from pflcore.registry import Entry
from pflcore.samples import Mask, Pixels, Rows, Samples


@dataclass(frozen=True, kw_only=True)
class Dataset(Entry, ABC):
    """Base of the datasets. Images of one size with one label each."""

    shape: ClassVar[tuple[int, int, int]]
    """Channels, height, width."""
    classes: ClassVar[int]
    class_names: ClassVar[tuple[str, ...]]
    counts: ClassVar[tuple[int, int]]
    """Training and test samples of the complete dataset."""
    mean: ClassVar[tuple[float, ...]]
    """Per channel, of pixel values scaled to 0..1."""
    std: ClassVar[tuple[float, ...]]
    licence: ClassVar[str]
    download_size: ClassVar[str]
    """In words, e.g. ``"170 MB"``."""

    @abstractmethod
    def load(self, folder: Path) -> Samples:
        """Read the complete dataset.

        Args:
            folder: The user's folder of raw data for this dataset. It need not exist, and is created only to download.

        Raises:
            UserError: Data that is absent and cannot be downloaded, is incomplete, or is not what it should be.
        """

    def complete(self, pixels: Pixels, labels: Rows, train: Mask, *, where: str, source: str) -> Samples:
        """The loaded arrays as :class:`Samples`. Raises :class:`UserError` unless their number is :attr:`counts`."""
        found = int(train.sum()), int((~train).sum())
        if found != self.counts:
            raise UserError(
                f"{where}: {self.name} has {self.counts[0]:,} training and {self.counts[1]:,} test images, "
                f"found {found[0]:,} and {found[1]:,}; put the complete data there"
            )
        return Samples(pixels, labels, train, self.name, self.class_names, self.mean, self.std, source)
