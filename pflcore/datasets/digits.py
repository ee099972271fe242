"""Digits: small handwritten digits that are installed with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DIGITS, INCLUDED, Dataset
from pflcore.seeds import generator


@DATASETS.register
class Digits(Dataset):
    """Handwritten digits, 1,797 grey images of 8x8, installed with scikit-learn.

    The source knows no test set: a fifth of every class is drawn for it, always the same one. Meant for a first run
    without a download, not for conclusions.
    """

    citation = "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998"
    licence = "CC BY 4.0"
    download_size = "none: comes with scikit-learn"
    access = INCLUDED
    original = (1, 8, 8)
    class_names = DIGITS
    counts = (1438, 359)
    mean = (0.3057,)
    std = (0.3759,)

    def load(self, folder: Path) -> Samples:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
        labels = bunch.target.astype(np.int64)
        train, rng = np.ones(len(labels), bool), generator(0, "digits test set")
        for label in range(self.classes):
            rows = rng.permutation(np.flatnonzero(labels == label))
            train[rows[: round(0.2 * len(rows))]] = False
        return self.complete(pixels, labels, train, where="scikit-learn's digits", source="scikit-learn load_digits")
