"""Files of CIFAR-10 and CIFAR-100 in miniature, in the official layouts."""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pflcore.datasets import Dataset
from pflcore.datasets.cifar10 import Cifar10
from pflcore.datasets.cifar100 import Cifar100
from support.official import Files, Trust, no_downloads, trusting

PER_BATCH = 4
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]

# Labels of CIFAR-100, written down by hand from the table on the dataset's page.
FINE = ([0, 1, 3, 11, 15, 23, 44, 47], [50, 58, 81, 99])
COARSE = ([4, 1, 8, 14, 11, 10, 15, 17], [16, 18, 19, 13])
PIXELS100 = [np.random.default_rng(100 + part).integers(0, 256, (len(FINE[part]), 3072), np.uint8) for part in (0, 1)]
SPLITS = ("train", "test")


def shrink(monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Counts of the miniatures, and no downloads; returns what makes a file's hash the expected one."""
    monkeypatch.setattr(Cifar10, "counts", (5 * PER_BATCH, PER_BATCH))
    monkeypatch.setattr(Cifar100, "counts", (len(FINE[0]), len(FINE[1])))
    no_downloads(monkeypatch)
    return trusting(monkeypatch, Cifar10, Cifar100)


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes bytes and str as Python 2 wrote its strings."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def pickled(value: object) -> bytes:
    """As the official batches: protocol 2, Python 2 strings, the module names of NumPy 1."""
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def images(number: int) -> tuple[np.ndarray, list[int]]:
    """Pixels uint8 [n, 3072] and labels of one miniature batch."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (PER_BATCH, 3072), np.uint8), rng.integers(0, 10, PER_BATCH).tolist()


def python_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    return pickled({b"batch_label": b"a batch", b"labels": labels, b"data": pixels, b"filenames": [b"x.png"]})


def members() -> Files:
    """Archive members by name."""
    return {f"cifar-10-batches-py/{name}": python_batch(*images(number)) for number, name in enumerate(NAMES)}


def assert_complete(dataset: Dataset, folder: Path, source: str) -> None:
    samples = dataset.load(folder)
    pixels = np.concatenate([images(number)[0] for number in range(6)]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(samples.inputs, pixels)
    assert samples.labels.tolist() == [label for number in range(6) for label in images(number)[1]]
    assert samples.train.tolist() == [True] * 5 * PER_BATCH + [False] * PER_BATCH
    assert samples.source == source and samples.class_names[3] == "cat"
    assert samples.inputs.flags.writeable


def python100(part: int, fine: list[int] | None = None, coarse: list[int] | None = None) -> bytes:
    return pickled(
        {
            b"filenames": [b"x.png"] * len(FINE[part]),
            b"batch_label": b"a batch",
            b"fine_labels": FINE[part] if fine is None else fine,
            b"coarse_labels": COARSE[part] if coarse is None else coarse,
            b"data": PIXELS100[part],
        }
    )


def members100() -> Files:
    batches = {f"cifar-100-python/{split}": python100(part) for part, split in enumerate(SPLITS)}
    return {"cifar-100-python/meta": pickled({b"fine_label_names": [b"apple"]}), **batches}


def assert_complete100(dataset: Dataset, folder: Path, source: str) -> None:
    samples = dataset.load(folder)
    np.testing.assert_array_equal(samples.inputs, np.concatenate(PIXELS100).reshape(-1, 3, 32, 32))
    assert samples.labels.tolist() == FINE[0] + FINE[1]
    assert samples.attributes["coarse"].values.tolist() == COARSE[0] + COARSE[1]
    assert samples.train.tolist() == [True] * 8 + [False] * 4
    assert samples.source == source and samples.size is None
    assert samples.class_names[23] == "cloud" and samples.class_names[99] == "worm"
    assert samples.attributes["coarse"].names[10] == "large_natural_outdoor_scenes"
    assert (samples.mean, samples.std) == ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
