"""Files of CIFAR-10 and CIFAR-100 in miniature, in the official layouts."""

import io
import pickle
import struct

import numpy as np

from pflcore.datasets.cifar import Cifar10, Cifar100
from support.official import offline

PER_BATCH = 4
# Labels of CIFAR-100, written down by hand from the table on the dataset's page.
FINE = ([0, 1, 3, 11, 15, 23, 44, 47], [50, 58, 81, 99])
COARSE = ([4, 1, 8, 14, 11, 10, 15, 17], [16, 18, 19, 13])
PIXELS100 = [np.random.default_rng(100 + part).integers(0, 256, (len(FINE[part]), 3072), np.uint8) for part in (0, 1)]


def shrink(monkeypatch):
    """Set the counts of the miniatures, and make downloads fail."""
    monkeypatch.setattr(Cifar10, "counts", (5 * PER_BATCH, PER_BATCH))
    monkeypatch.setattr(Cifar100, "counts", (len(FINE[0]), len(FINE[1])))
    offline(monkeypatch)


def pickled(value):
    """Return what the official batches are: protocol 2, Python 2 strings, the module names of NumPy 1."""

    def save_string(pickler, text):
        data = text.encode() if isinstance(text, str) else text
        pickler.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        pickler.memoize(text)

    file = io.BytesIO()
    pickler = pickle._Pickler(file, 2)
    pickler.dispatch = {**pickler.dispatch, bytes: save_string, str: save_string}
    pickler.dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def images(number):
    """Return pixels uint8 [n, 3072] and labels of one miniature batch."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (PER_BATCH, 3072), np.uint8), rng.integers(0, 10, PER_BATCH).tolist()


def python_batch(pixels, labels):
    return pickled({b"batch_label": b"a batch", b"labels": labels, b"data": pixels, b"filenames": [b"x.png"]})


def members():
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {f"cifar-10-batches-py/{name}": python_batch(*images(number)) for number, name in enumerate(names)}


def python100(part, coarse=None):
    labels = {b"fine_labels": FINE[part], b"coarse_labels": COARSE[part] if coarse is None else coarse}
    return pickled({b"batch_label": b"a batch", **labels, b"data": PIXELS100[part]})


def members100():
    batches = {f"cifar-100-python/{split}": python100(part) for part, split in enumerate(("train", "test"))}
    return {"cifar-100-python/meta": pickled({b"fine_label_names": [b"apple"]}), **batches}
