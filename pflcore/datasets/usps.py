"""USPS digits from the LIBSVM text files or from the customary HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.data.samples import Bytes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._download import Source
from pflcore.datasets._files import reading

_HOST = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
_HDF5 = "usps.h5"


@DATASETS.register
class Usps(Dataset):
    """USPS, 7,291 + 2,007 handwritten digits from envelopes, grey images of 16x16.

    The files ``usps.bz2`` and ``usps.t.bz2``, with pixel values -1..1 and the digits plus one as labels, are taken
    before ``usps.h5`` (groups ``train`` and ``test`` with ``data`` 0..1 and ``target``), and downloaded when nothing is
    there. Pixel values are scaled to 0..255. Mean and std are those of the training images.
    """

    citation = "J. Hull, A database for handwritten text recognition research, PAMI 1994"
    licence = "none stated by the authors; cite the paper"
    homepage = f"{_HOST}.html#usps"
    download_size = "8 MB"
    access = DOWNLOAD
    files = ("usps.bz2", _HDF5)
    original = (1, 16, 16)
    class_names = tuple("0123456789")
    counts = (7_291, 2_007)
    mean = (0.2545,)
    std = (0.3846,)
    sources: ClassVar[tuple[Source, Source]] = (
        Source(f"{_HOST}/usps.bz2", "md5", "ec16c51db3855ca6c91edd34d0e9b197"),
        Source(f"{_HOST}/usps.t.bz2", "md5", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    )

    def load(self, folder: Path) -> Samples:
        """Read from `folder`, downloading the text files when nothing is there."""
        if (folder / _HDF5).is_file() and not any((folder / source.name).is_file() for source in self.sources):
            parts, names = _read_hdf5(folder / _HDF5), [_HDF5]
        else:
            paths = [source.obtain(folder, _HDF5) for source in self.sources]
            parts, names = [_read_text(path) for path in paths], [path.name for path in paths]
        return self.complete(*self.join(parts), where=str(folder), source=", ".join(names))


def _read_text(path: Path) -> tuple[Bytes, Rows]:
    """Read a LIBSVM file: values -1..1, of which those that are left out are 0, and labels 1..10."""
    from sklearn.datasets import load_svmlight_file

    with reading(path):
        values, labels = load_svmlight_file(str(path), n_features=16 * 16, zero_based=False)
        return _pixels((values.toarray() + 1) / 2), labels.astype(np.int64) - 1


def _read_hdf5(path: Path) -> list[tuple[Bytes, Rows]]:
    """Read the customary file: values 0..1 and labels 0..9 of both splits."""
    import h5py

    with reading(path), h5py.File(path, "r") as file:
        return [
            (_pixels(file[split]["data"][:]), file[split]["target"][:].astype(np.int64)) for split in ("train", "test")
        ]


def _pixels(values: npt.NDArray[Any]) -> Bytes:
    """Return values 0..1 as images. Raise ``ValueError`` for others."""
    if not ((values >= 0) & (values <= 1)).all():  # also NaN
        raise ValueError("a pixel is outside of its range")
    return np.rint(values.astype(np.float64) * 255).astype(np.uint8).reshape(-1, 1, 16, 16)
