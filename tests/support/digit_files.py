"""Files of the sets of digits in miniature: MNIST, SVHN, SynthDigits, USPS and MNIST-M."""

import gzip
import struct

import h5py
import numpy as np
import scipy.io

from pflcore.datasets.digits5 import MnistM
from pflcore.datasets.small_images import Mnist, Svhn, SynthDigits, Usps
from support.official import encoded, offline, plain

TRAIN, TEST = 15, 10  # images of every miniature, unless a test says otherwise
LABELS = [n % 10 for n in range(TRAIN)], [(3 * n) % 10 for n in range(TEST)]
SPLITS = tuple(enumerate(("train", "test")))
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
PHOTOS = "BSR/BSDS500/data/images"


def shrink(monkeypatch):
    """Set the counts of the miniatures, and make downloads fail."""
    for cls in (Mnist, Svhn, Usps, SynthDigits, MnistM):
        monkeypatch.setattr(cls, "counts", (TRAIN, TEST))
    monkeypatch.setattr(MnistM, "photos", (2, 1))
    offline(monkeypatch)


def pixels(part, *shape):
    """Return the miniature's images: uint8 [TRAIN or TEST, *shape]."""
    return np.random.default_rng([part, *shape]).integers(0, 256, ((TRAIN, TEST)[part], *shape), np.uint8)


GREY = [pixels(part, 28, 28)[:, None] for part in (0, 1)]  # what datasets give of the files below
SMALL = [(pixels(part, 256) // 51 * 51).reshape(-1, 1, 16, 16) for part in (0, 1)]
COLOUR = [pixels(part, 3, 32, 32) for part in (0, 1)]


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, compressed=True):
    arrays = [array for part in (0, 1) for array in (pixels(part, 28, 28), np.array(LABELS[part], np.uint8))]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / (f"{name}.gz" if compressed else name) for name in IDX]
    for path, array in zip(paths, arrays, strict=True):
        path.write_bytes(gzip.compress(idx(array)) if compressed else idx(array))
    return paths


def write_matlab(path, part, labels=None):
    """Write as the authors do: X [32, 32, 3, n] and y [n, 1]."""
    digits = np.array(LABELS[part] if labels is None else labels, np.uint8)[:, None]
    path.parent.mkdir(exist_ok=True)
    scipy.io.savemat(path, {"X": COLOUR[part].transpose(2, 3, 1, 0), "y": digits}, do_compression=True)


def write_svhn(folder):
    for part, split in SPLITS:
        write_matlab(folder / f"{split}_32x32.mat", part, [label or 10 for label in LABELS[part]])


def write_synthdigits(folder):
    for part, split in SPLITS:
        write_matlab(folder / f"synth_{split}_32x32.mat", part)


def usps_values(part):
    """Return values 0..1 as the HDF5 file holds them; those of the text are these, times two, minus one."""
    return (pixels(part, 256) // 51 * 51 / 255).astype(np.float32)


def write_usps_hdf5(path, **changes):
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        for part, split in SPLITS:
            file[f"{split}/data"] = changes.get(f"{split}_data", usps_values(part))
            file[f"{split}/target"] = np.array(LABELS[part], np.int32)


def mnistm_files():
    """Return the content of the official archive, whose lists are not in the order of the names."""
    files = {}
    for part, split in SPLITS:
        names = [f"{(7 * n + 3) % 15:08d}.png" for n in range((TRAIN, TEST)[part])]
        images = zip(names, COLOUR[part], strict=True)
        files |= {f"mnist_m/mnist_m_{split}/{name}": encoded(image) for name, image in images}
        lines = [f"{name} {label}\n" for name, label in zip(names, LABELS[part], strict=True)]
        files[f"mnist_m/mnist_m_{split}_labels.txt"] = "".join(lines).encode()
    return files


def photographs():
    """Return photographs of one colour each: a patch is known wherever it is cut, and JPEG loses nothing."""
    photos = {"train/100": 200, "train/99": 40, "test/7": 130}
    files = {f"{PHOTOS}/{name}.jpg": plain((value,) * 3, size=(60, 40)) for name, value in photos.items()}
    unused = ("images/val/1.jpg", "images/train/Thumbs.db", "groundTruth/train/100.mat")  # the last two are no images
    return files | {f"BSR/BSDS500/data/{name}": b"is not used" for name in unused}
