"""MNIST, SVHN, USPS and the synthetic digits of Ganin and Lempitsky, from the files that their authors publish."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.data.preparation import track
from pflcore.data.samples import Bytes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DIGITS, DOWNLOAD, FOLDER, HALF, Dataset
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import read_file, reading
from pflcore.options import option

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_PLACES = ("", "raw/", "MNIST/raw/")
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_EXTRA = 531_131  # further images of SVHN
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"


@DATASETS.register
class Mnist(Dataset):
    """MNIST, 60,000 + 10,000 handwritten digits, grey images of 28x28.

    The four idx files, packed or not, are looked for in the dataset's folder, in ``raw/`` and in ``MNIST/raw/``.
    """

    name = "mnist"
    citation = "Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998"
    licence = "CC BY-SA 3.0"
    homepage = "http://yann.lecun.com/exdb/mnist/"
    download_size = "12 MB"
    access = DOWNLOAD
    files = tuple(f"{place}train-images-idx3-ubyte*" for place in _PLACES)
    original = (1, 28, 28)
    class_names = DIGITS
    counts = (60_000, 10_000)
    mean = (0.1307,)
    std = (0.3081,)
    # Images and labels for training, then for testing.
    sources: ClassVar[tuple[Source, ...]] = (
        Source(f"{_MNIST}/train-images-idx3-ubyte.gz", "md5", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Source(f"{_MNIST}/train-labels-idx1-ubyte.gz", "md5", "d53e105ee54ea40749a09fcbcd1e9432"),
        Source(f"{_MNIST}/t10k-images-idx3-ubyte.gz", "md5", "9fb629c4189551a2d022fa330f9573f3"),
        Source(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", "md5", "ec29112dd5afa0611ce80d1b7f02629c"),
    )

    def load(self, folder: Path) -> Samples:
        unpacked = {source: source.name.removesuffix(".gz") for source in self.sources}
        names = [*unpacked.values(), *(source.name for source in self.sources)]
        places = [folder / place for place in _PLACES]
        place = next((one for one in places if any((one / name).is_file() for name in names)), folder)
        paths = [
            place / name
            if (place / name).is_file() and not (place / source.name).is_file()
            else source.obtain(place, "the unpacked file")
            for source, name in unpacked.items()
        ]
        arrays = [_read_idx(path, (1, 28, 28) if number % 2 == 0 else ()) for number, path in enumerate(paths)]
        parts = [(arrays[number], arrays[number + 1].astype(np.int64)) for number in (0, 2)]
        return self.complete(*self.join(parts), where=str(place), source=", ".join(path.name for path in paths))


def _read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    with reading(path):
        data = read_file(path)
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        # The header's third number is that of the dimensions; each has its size in four bytes, the first how many.
        count, header = int.from_bytes(data[4:8], "big"), 4 + 4 * data[3]
        return np.frombuffer(data, np.uint8, offset=header).reshape(count, *shape)


@DATASETS.register
class Svhn(Dataset):
    """Street View House Numbers, 73,257 + 26,032 cropped digits, colour images of 32x32.

    The files write the digit 0 as label 10. Mean and std are those of the training images.
    """

    name = "svhn"
    citation = (
        "Y. Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS workshop 2011"
    )
    licence = "for non-commercial use only"
    homepage = f"{_SVHN}/"
    download_size = "246 MB; with the extra images 1.6 GB"
    access = DOWNLOAD
    files = ("train_32x32.mat",)
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

    extra: bool = option(
        False, help="Whether the 531,131 further, easier images are training images, after the others."
    )

    @property
    def expected(self) -> tuple[int, int]:
        train, test = self.counts
        return train + _EXTRA * self.extra, test

    def load(self, folder: Path) -> Samples:
        sources = [source for name, source in self.sources.items() if self.extra or name != "extra"]
        paths = [source.obtain(folder) for source in sources]
        pixels, labels, train = self.join(_read_matlab(paths))
        labels[labels == 10] = 0
        return self.complete(pixels, labels, train, where=str(folder), source=", ".join(path.name for path in paths))


@DATASETS.register
class SynthDigits(Dataset):
    """Synthetic digits, 479,400 + 9,553 colour images of 32x32, rendered from fonts.

    The authors' page leads to ``SynthDigits.zip`` on a file sharing service, with both files in it. No hash is
    published.
    """

    name = "synthdigits"
    citation = "Y. Ganin and V. Lempitsky, Unsupervised Domain Adaptation by Backpropagation, ICML 2015"
    licence = "none stated by the authors; cite the paper"
    homepage = "http://yaroslav.ganin.net/"
    download_size = "1.5 GB unpacked"
    access = FOLDER
    files = ("synth_train_32x32.mat", "synth_test_32x32.mat")
    original = (3, 32, 32)
    class_names = DIGITS
    counts = (479_400, 9_553)
    mean = std = HALF

    def data_files(self, folder: Path) -> list[DataFile]:
        return [DataFile(name, folder, (name,), Source(self.homepage, file=name)) for name in self.files]

    def load(self, folder: Path) -> Samples:
        paths = [folder / name for name in self.files]
        if not any(path.is_file() for path in paths):
            raise self.absent(folder, " and ".join(self.files))
        return self.complete(*self.join(_read_matlab(paths)), where=str(folder), source=", ".join(self.files))


def _read_matlab(paths: Sequence[Path]) -> list[tuple[Bytes, Rows]]:
    """Read MATLAB files up to version 7 with ``X`` [H, W, C, n] and ``y`` [n, 1]: [n, C, H, W] and [n] of each."""
    import scipy.io

    parts = []
    advance = track(f"reading {', '.join(path.name for path in paths)}", len(paths))
    for path in paths:
        with reading(path), path.open("rb") as file:
            arrays = scipy.io.loadmat(file, variable_names=["X", "y"])
            parts.append((arrays["X"].transpose(3, 2, 0, 1), arrays["y"].reshape(-1).astype(np.int64)))
        advance(1)
    return parts


@DATASETS.register
class Usps(Dataset):
    """USPS, 7,291 + 2,007 handwritten digits from envelopes, grey images of 16x16.

    LIBSVM's text files, with values -1..1 and the digits plus one, are taken before ``usps.h5`` (groups ``train`` and
    ``test`` with ``data`` 0..1 and ``target``). Mean and std are those of the training images.
    """

    name = "usps"
    citation = "J. Hull, A database for handwritten text recognition research, PAMI 1994"
    licence = "none stated by the authors; cite the paper"
    homepage = f"{_LIBSVM}.html#usps"
    download_size = "8 MB"
    access = DOWNLOAD
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

    def load(self, folder: Path) -> Samples:
        import h5py
        from sklearn.datasets import load_svmlight_file

        path, parts = folder / self.files[1], []
        if path.is_file() and not any((folder / source.name).is_file() for source in self.sources):
            paths = [path]
            with reading(path), h5py.File(path, "r") as file:
                for own in (file["train"], file["test"]):
                    parts.append((_as_bytes(own["data"][:]), own["target"][:].astype(np.int64)))
        else:
            paths = [source.obtain(folder, path.name) for source in self.sources]
            for path in paths:
                with reading(path):  # what is left out of a line is 0
                    values, labels = load_svmlight_file(str(path), n_features=16 * 16, zero_based=False)
                    parts.append((_as_bytes((values.toarray() + 1) / 2), labels.astype(np.int64) - 1))
        return self.complete(*self.join(parts), where=str(folder), source=", ".join(path.name for path in paths))


def _as_bytes(values: npt.NDArray[Any]) -> Bytes:
    """Return values 0..1 as images. Raise ``ValueError`` for others."""
    if not ((values >= 0) & (values <= 1)).all():  # also NaN
        raise ValueError("a pixel is outside of its range")
    return np.rint(values.astype(np.float64) * 255).astype(np.uint8).reshape(-1, 1, 16, 16)
