"""Files of CIFAR-10 and CIFAR-100 in miniature, in the official layouts."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any, ClassVar

import numpy as np
import pytest

from pflcore.datasets.cifar import Cifar10, Cifar100
from support.official import Files, offline

PER_BATCH = 4
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]

# Labels of CIFAR-100, written down by hand from the table on the dataset's page.
FINE = ([0, 1, 3, 11, 15, 23, 44, 47], [50, 58, 81, 99])
COARSE = ([4, 1, 8, 14, 11, 10, 15, 17], [16, 18, 19, 13])
PIXELS100 = [np.random.default_rng(100 + part).integers(0, 256, (len(FINE[part]), 3072), np.uint8) for part in (0, 1)]


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the counts of the miniatures, and make downloads fail."""
    monkeypatch.setattr(Cifar10, "counts", (5 * PER_BATCH, PER_BATCH))
    monkeypatch.setattr(Cifar100, "counts", (len(FINE[0]), len(FINE[1])))
    offline(monkeypatch)


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes bytes and str as Python 2 wrote its strings."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def pickled(value: object) -> bytes:
    """Return what the official batches are: protocol 2, Python 2 strings, the module names of NumPy 1."""
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def images(number: int) -> tuple[np.ndarray, list[int]]:
    """Return pixels uint8 [n, 3072] and labels of one miniature batch."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (PER_BATCH, 3072), np.uint8), rng.integers(0, 10, PER_BATCH).tolist()


def python_batch(pixels: np.ndarray, labels: list[Any]) -> bytes:
    return pickled({b"batch_label": b"a batch", b"labels": labels, b"data": pixels, b"filenames": [b"x.png"]})


def members() -> Files:
    return {f"cifar-10-batches-py/{name}": python_batch(*images(number)) for number, name in enumerate(NAMES)}


def python100(part: int, coarse: list[int] | None = None) -> bytes:
    labels = {b"fine_labels": FINE[part], b"coarse_labels": COARSE[part] if coarse is None else coarse}
    return pickled({b"batch_label": b"a batch", **labels, b"data": PIXELS100[part]})


def members100() -> Files:
    batches = {f"cifar-100-python/{split}": python100(part) for part, split in enumerate(("train", "test"))}
    return {"cifar-100-python/meta": pickled({b"fine_label_names": [b"apple"]}), **batches}
