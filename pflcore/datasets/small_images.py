"""Small images, published in a few files of arrays: digits, MNIST, SVHN, synthetic digits, USPS and OrganAMNIST."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.data.samples import SPLITS, Bytes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DIGITS, DOWNLOAD, HALF, INCLUDED, Dataset
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import read_file, reading
from pflcore.options import option
from pflcore.seeds import generator


@DATASETS.register
class Digits(Dataset):
    """Handwritten digits, 1,797 grey images of 8x8, installed with scikit-learn.

    scikit-learn has no test set; a fifth of every class, always the same, is drawn for it. The dataset is meant for a
    first run without a download, not for conclusions.
    """

    name = "digits"
    citation = "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998"
    licence = "CC BY 4.0"
    access = INCLUDED
    download_size = "none: comes with scikit-learn"
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
        train = np.ones(len(labels), bool)
        rng = generator(0, "digits test set")
        for label in range(self.classes):
            rows = rng.permutation(np.flatnonzero(labels == label))
            train[rows[: round(0.2 * len(rows))]] = False
        return self.complete(pixels, labels, train, where="scikit-learn's digits", source="scikit-learn load_digits")


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_SUBFOLDERS = ("", "raw/", "MNIST/raw/")


@DATASETS.register
class Mnist(Dataset):
    """MNIST, 60,000 + 10,000 handwritten digits, grey images of 28x28.

    The four idx files, gzipped or not, can be in the dataset's folder, in ``raw/`` or in ``MNIST/raw/``.
    """

    name = "mnist"
    citation = "Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998"
    licence = "CC BY-SA 3.0"
    homepage = "http://yann.lecun.com/exdb/mnist/"
    access = DOWNLOAD
    download_size = "12 MB"
    original = (1, 28, 28)
    class_names = DIGITS
    counts = (60_000, 10_000)
    mean = (0.1307,)
    std = (0.3081,)
    # Images and labels for training, then for testing.
    sources: ClassVar[tuple[Source, ...]] = (
        Source(f"{_MNIST}/train-images-idx3-ubyte.gz", "md5", "f68b3c2dcbeaaa9fbdd348bbdeb89873"),
        Source(f"{_MNIST}/train-labels-idx1-ubyte.gz", "md5", "d53e105ee54ea40749a09fcbcd1e9432"),
        Source(f"{_MNIST}/t10k-images-idx3-ubyte.gz", "md5", "9fb629c4189551a2d022fa330f9573f3"),
        Source(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", "md5", "ec29112dd5afa0611ce80d1b7f02629c"),
    )

    def data_files(self, folder: Path) -> list[DataFile]:
        descriptions = ("training images", "training labels", "test images", "test labels")
        files = []
        for description, source in zip(descriptions, self.sources, strict=True):
            names = source.name, source.name.removesuffix(".gz")
            patterns = tuple(subfolder + name for subfolder in _SUBFOLDERS for name in names)
            files.append(DataFile(description, folder, patterns, source, automatic=True))
        return files

    def load(self, folder: Path) -> Samples:
        names = [source.name.removesuffix(".gz") for source in self.sources]
        roots = [folder / subfolder for subfolder in _SUBFOLDERS]
        root = next((root for root in roots if any([*root.glob(f"{name}*")] for name in names)), folder)
        paths = []
        for source, name in zip(self.sources, names, strict=True):
            unpacked = (root / name).is_file() and not (root / source.name).is_file()
            paths.append(root / name if unpacked else source.obtain(root, "the unpacked file"))
        images, labels, test_images, test_labels = map(_read_idx, paths, [(1, 28, 28), ()] * 2)
        parts = [(images, labels.astype(np.int64)), (test_images, test_labels.astype(np.int64))]
        return self.join(parts, root, ", ".join(path.name for path in paths))


def _read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    with reading(path):
        data = read_file(path)
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        # Byte 3 is the number of dimensions. Their sizes follow in four bytes each; the first is the number of samples.
        count = int.from_bytes(data[4:8], "big")
        header = 4 + 4 * data[3]
        return np.frombuffer(data, np.uint8, offset=header).reshape(count, *shape)


_SVHN = "http://ufldl.stanford.edu/housenumbers"


@DATASETS.register
class Svhn(Dataset):
    """Street View House Numbers, 73,257 + 26,032 cropped digits, colour images of 32x32.

    The files write the digit 0 as label 10. Mean and std are those of the training images.
    """

    name = "svhn"
    citation = "Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS workshop 2011"
    licence = "for non-commercial use only"
    homepage = f"{_SVHN}/"
    access = DOWNLOAD
    download_size = "246 MB; with the extra images 1.6 GB"
    original = (3, 32, 32)
    class_names = DIGITS
    counts = (73_257, 26_032)
    mean = (0.4377, 0.4438, 0.4728)
    std = (0.1980, 0.2010, 0.1970)
    sources: ClassVar[dict[str, Source]] = {
        "train": Source(f"{_SVHN}/train_32x32.mat", "md5", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        "extra": Source(f"{_SVHN}/extra_32x32.mat", "md5", "a93ce644f1a588dc4d68dda5feec44a7"),
        "test": Source(f"{_SVHN}/test_32x32.mat", "md5", "eb5a983be6a315427106f1b164d9cef3"),
    }
    sizes: ClassVar[dict[str, str]] = {"train": "182 MB", "extra": "1.3 GB", "test": "64 MB"}
    extra_images: ClassVar[int] = 531_131

    extra: bool = option(
        False, help="Whether the 531,131 further, easier images are training images, after the others."
    )

    @property
    def expected(self) -> tuple[int, int]:
        train, test = self.counts
        return train + self.extra_images if self.extra else train, test

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits in use; the last is the test set."""
        return ("train", "extra", "test") if self.extra else ("train", "test")

    def data_files(self, folder: Path) -> list[DataFile]:
        files = []
        for split in self.splits:
            source = self.sources[split]
            files.append(DataFile(split, folder, (source.name,), source, self.sizes[split], automatic=True))
        return files

    def load(self, folder: Path) -> Samples:
        paths = [self.sources[split].obtain(folder) for split in self.splits]
        parts = [(pixels, np.where(labels == 10, 0, labels)) for pixels, labels in _read_matlab(paths)]
        return self.join(parts, folder, ", ".join(path.name for path in paths))


@DATASETS.register
class SynthDigits(Dataset):
    """Synthetic digits, 479,400 + 9,553 colour images of 32x32, rendered from fonts.

    The authors' page leads to ``SynthDigits.zip`` on a file sharing service, which contains both files. No hash is
    published.
    """

    name = "synthdigits"
    citation = "Y. Ganin and V. Lempitsky, Unsupervised Domain Adaptation by Backpropagation, ICML 2015"
    licence = "none stated by the authors; cite the paper"
    homepage = "http://yaroslav.ganin.net/"
    download_size = "1.5 GB unpacked"
    files = ("synth_train_32x32.mat", "synth_test_32x32.mat")
    original = (3, 32, 32)
    class_names = DIGITS
    counts = (479_400, 9_553)
    mean = std = HALF

    def data_files(self, folder: Path) -> list[DataFile]:
        return [DataFile(name, folder, (name,), Source(self.homepage, file=name)) for name in self.files]

    def load(self, folder: Path) -> Samples:
        paths = [Source(self.homepage, file=name).obtain(folder) for name in self.files]
        return self.join(_read_matlab(paths), folder, ", ".join(self.files))


def _read_matlab(paths: Sequence[Path]) -> list[tuple[Bytes, Rows]]:
    """Return images [n, C, H, W] and labels [n] of MATLAB files (version 7 or older) with ``X`` [H, W, C, n], ``y``."""
    import scipy.io

    parts = []
    for path in paths:
        with reading(path), path.open("rb") as file:
            arrays = scipy.io.loadmat(file, variable_names=["X", "y"])
            parts.append((arrays["X"].transpose(3, 2, 0, 1), arrays["y"].reshape(-1).astype(np.int64)))
    return parts


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"


@DATASETS.register
class Usps(Dataset):
    """USPS, 7,291 + 2,007 handwritten digits from envelopes, grey images of 16x16.

    LIBSVM's text files, with values -1..1 and digits plus one, are preferred to ``usps.h5`` (groups ``train`` and
    ``test`` with ``data`` 0..1 and ``target``). Mean and std are those of the training images.
    """

    name = "usps"
    citation = "J. Hull, A database for handwritten text recognition research, PAMI 1994"
    licence = "none stated by the authors; cite the paper"
    homepage = f"{_LIBSVM}.html#usps"
    access = DOWNLOAD
    download_size = "8 MB"
    files = ("usps.bz2", "usps.h5")
    original = (1, 16, 16)
    class_names = DIGITS
    counts = (7_291, 2_007)
    mean = (0.2545,)
    std = (0.3846,)
    sources: ClassVar[tuple[Source, Source]] = (
        Source(f"{_LIBSVM}/usps.bz2", "md5", "ec16c51db3855ca6c91edd34d0e9b197"),
        Source(f"{_LIBSVM}/usps.t.bz2", "md5", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    )

    def data_files(self, folder: Path) -> list[DataFile]:
        pairs = zip(SPLITS, self.sources, strict=True)
        return [DataFile(split, folder, (s.name, self.files[1]), s, automatic=True) for split, s in pairs]

    def load(self, folder: Path) -> Samples:
        import h5py
        from sklearn.datasets import load_svmlight_file

        path = folder / self.files[1]
        parts = []
        if path.is_file() and not any((folder / source.name).is_file() for source in self.sources):
            paths = [path]
            with reading(path), h5py.File(path, "r") as file:
                for group in (file["train"], file["test"]):
                    parts.append((_as_bytes(group["data"][:]), group["target"][:].astype(np.int64)))
        else:
            paths = [source.obtain(folder, path.name) for source in self.sources]
            for path in paths:
                with reading(path):  # values that a line omits are 0
                    values, labels = load_svmlight_file(str(path), n_features=16 * 16, zero_based=False)
                    parts.append((_as_bytes((values.toarray() + 1) / 2), labels.astype(np.int64) - 1))
        return self.join(parts, folder, ", ".join(path.name for path in paths))


def _as_bytes(values: npt.NDArray[Any]) -> Bytes:
    """Return values 0..1 as uint8 images [n, 1, 16, 16]. Raise ``ValueError`` for other values."""
    if not ((values >= 0) & (values <= 1)).all():  # also NaN
        raise ValueError("a pixel is outside of its range")
    return np.rint(values.astype(np.float64) * 255).astype(np.uint8).reshape(-1, 1, 16, 16)


_ZENODO = "https://zenodo.org/records"
_ORGANS = "files/organamnist.npz"


@DATASETS.register
class OrganAMnist(Dataset):
    """OrganAMNIST, 41,072 + 17,778 axial CT slices of 11 organs, grey images of 28x28.

    The published training and validation images are the training images here. Release v2 (58,850 images) is the one in
    medmnist 2, v3 (58,830 images) the one in medmnist 3.
    """

    name = "organamnist"
    citation = "J. Yang et al., MedMNIST v2, Scientific Data 2023"
    licence = "CC BY 4.0"
    homepage = "https://medmnist.com"
    access = DOWNLOAD
    download_size = "38 MB"
    files = ("organamnist.npz",)
    original = (1, 28, 28)
    class_names = (
        *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
        *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
    )
    counts = (34_581 + 6_491, 17_778)
    mean = std = (0.5,)
    smoke: ClassVar[dict[str, Any]] = {"size": 32}  # a multiple of the ViTs' patches
    # For each release its file, and the numbers of training and test images.
    releases: ClassVar[dict[str, tuple[Source, tuple[int, int]]]] = {
        "v2": (Source(f"{_ZENODO}/6496656/{_ORGANS}", "md5", "866b832ed4eeba67bfb9edee1d5544e6"), counts),
        "v3": (Source(f"{_ZENODO}/10519652/{_ORGANS}", "md5", "68e3f8846a6bd62f0c9bf841c0d9eacc"), (41_052, 17_778)),
    }

    release: str = option("v2", choices=("v2", "v3"), help="v2: as papers before 2024 used; v3: without 20 images.")
    size: int | None = option(None, ge=28, le=1024, help="Pixels that sides are scaled up to in use; null leaves 28.")
    channels: int = option(1, choices=(1, 3), help="1: grey; 3: the same values three times, for colour backbones.")

    @property
    def expected(self) -> tuple[int, int]:
        return self.releases[self.release][1]

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.mean * self.channels, self.std * self.channels

    def data_files(self, folder: Path) -> list[DataFile]:
        source, _ = self.releases[self.release]
        return [DataFile(self.name, folder, self.files, source, self.download_size, automatic=True)]

    def load(self, folder: Path) -> Samples:
        source, _ = self.releases[self.release]
        path = source.obtain(folder)
        parts = []
        with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for split in ("train", "val", "test"):
                pixels = arrays[f"{split}_images"].reshape(-1, 1, *self.original[1:])
                labels = arrays[f"{split}_labels"].reshape(len(pixels)).astype(np.int64, casting="safe")
                parts.append((np.repeat(pixels, self.channels, axis=1), labels))
        return self.join(parts, path, f"{path.name} ({self.release})", size=self.size)
