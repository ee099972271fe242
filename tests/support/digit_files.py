"""Files of the sets of digits in miniature: MNIST, SVHN, SynthDigits, USPS and MNIST-M."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io

from pflcore.data.samples import Samples
from pflcore.datasets.mnist import Mnist
from pflcore.datasets.mnistm import MnistM
from pflcore.datasets.svhn import Svhn
from pflcore.datasets.synthdigits import SynthDigits
from pflcore.datasets.usps import Usps
from support.official import Files, Trust, encoded, no_downloads, plain, trusting

SETS = (Mnist, Svhn, Usps, SynthDigits, MnistM)
TRAIN, TEST = 15, 10  # images of every miniature, unless a test says otherwise
LABELS = [n % 10 for n in range(TRAIN)], [(3 * n) % 10 for n in range(TEST)]
DIGITS = tuple("0123456789")


def shrink(monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Counts of the miniatures, and no downloads; returns what makes a file's hash the expected one."""
    for cls in SETS:
        monkeypatch.setattr(cls, "counts", (TRAIN, TEST))
    monkeypatch.setattr(MnistM, "photos", (2, 1))
    no_downloads(monkeypatch)
    return trusting(monkeypatch, *SETS)


def pixels(part: int, *shape: int) -> np.ndarray:
    """The miniature's images: uint8 [TRAIN or TEST, *shape]."""
    rng = np.random.default_rng([part, *shape])
    return rng.integers(0, 256, ((TRAIN, TEST)[part], *shape), np.uint8)


def assert_holds(samples: Samples, images: list[np.ndarray], source: str) -> None:
    np.testing.assert_array_equal(samples.inputs, np.concatenate(images))
    assert samples.labels.tolist() == LABELS[0] + LABELS[1]
    assert samples.train.tolist() == [True] * TRAIN + [False] * TEST
    assert samples.class_names == DIGITS and samples.source == source
    assert samples.inputs.flags.writeable


IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, compressed: bool = True, **changes: bytes) -> list[Path]:
    """The four files; `changes` by the last letters of a name without its dashes."""
    arrays = [pixels(0, 28, 28), np.array(LABELS[0], np.uint8), pixels(1, 28, 28), np.array(LABELS[1], np.uint8)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, array in zip(IDX, arrays, strict=True):
        data = changes.get("_".join(name.split("-")[:2]), idx(array))
        paths.append(folder / (f"{name}.gz" if compressed else name))
        paths[-1].write_bytes(gzip.compress(data) if compressed else data)
    return paths


def digit_images(*shape: int) -> list[np.ndarray]:
    return [pixels(part, *shape).reshape(-1, 1, *shape) for part in (0, 1)]


def write_matlab(path: Path, part: int, labels: list[int] | None = None, **changes: Any) -> None:
    """As the authors': X [32, 32, 3, n] and y [n, 1]."""
    digits = np.array(LABELS[part] if labels is None else labels, np.uint8)[:, None]
    contents = {"X": pixels(part, 3, 32, 32).transpose(2, 3, 1, 0), "y": digits} | changes
    path.parent.mkdir(exist_ok=True)
    scipy.io.savemat(path, {name: value for name, value in contents.items() if value is not None}, do_compression=True)


def write_svhn(folder: Path, trust: Trust) -> None:
    for part, split in enumerate(("train", "test")):
        write_matlab(folder / f"{split}_32x32.mat", part, [label or 10 for label in LABELS[part]])
        trust(folder / f"{split}_32x32.mat")


def write_synthdigits(folder: Path) -> None:
    for part, split in enumerate(("train", "test")):
        write_matlab(folder / f"synth_{split}_32x32.mat", part)


def colour_images() -> list[np.ndarray]:
    return [pixels(part, 3, 32, 32) for part in (0, 1)]


def usps_values(part: int) -> np.ndarray:
    """Values 0..1 as the HDF5 file holds them; those of the text are these, times two, minus one."""
    return (pixels(part, 256) // 51 * 51 / 255).astype(np.float32)


def usps_images() -> list[np.ndarray]:
    return [(pixels(part, 256) // 51 * 51).reshape(-1, 1, 16, 16) for part in (0, 1)]


def write_usps_hdf5(path: Path, **changes: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        for part, split in enumerate(("train", "test")):
            group = file.create_group(split)
            group["data"] = changes.get(f"{split}_data", usps_values(part))
            group["target"] = changes.get(f"{split}_target", np.array(LABELS[part], np.int32))


def mnistm_files() -> Files:
    """The content of the official archive, whose lists are not in the order of the names."""
    files = {}
    for part, split in enumerate(("train", "test")):
        names = [f"{(7 * n + 3) % 15:08d}.png" for n in range((TRAIN, TEST)[part])]
        for name, image in zip(names, pixels(part, 3, 32, 32), strict=True):
            files[f"mnist_m/mnist_m_{split}/{name}"] = encoded(image)
        lines = [f"{name} {label}\n" for name, label in zip(names, LABELS[part], strict=True)]
        files[f"mnist_m/mnist_m_{split}_labels.txt"] = "".join(lines).encode()
    return files


PHOTOS = "BSR/BSDS500/data/images"


def photographs() -> Files:
    """Each of one colour, so that a patch is known wherever it is cut, and JPEG loses nothing."""
    photos = {"train/100": 200, "train/99": 40, "test/7": 130}
    return {
        **{f"{PHOTOS}/{name}.jpg": plain((value,) * 3, size=(60, 40)) for name, value in photos.items()},
        f"{PHOTOS}/val/1.jpg": b"is not used",
        f"{PHOTOS}/train/Thumbs.db": b"is not an image",
        "BSR/BSDS500/data/groundTruth/train/100.mat": b"is not an image",
    }
