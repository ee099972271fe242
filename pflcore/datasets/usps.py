"""USPS digits from the LIBSVM text files or from the customary HDF5 file."""

from __future__ import annotations

import bz2
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.data.preparation import track
from pflcore.data.samples import Bytes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._sources import Source
from pflcore.errors import UserError

_HOST = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
_PIXELS = 16 * 16
_INDICES = np.arange(1, _PIXELS + 1)
_HDF5 = "usps.h5"
_SPLITS = ("train", "test")
_LARGEST = 100_000 * _PIXELS  # numbers in an HDF5 array; a small file can claim any shape


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
        texts = any((folder / source.name).is_file() for source in self.sources)
        if not texts and (folder / _HDF5).is_file():
            parts, names = _read_hdf5(folder / _HDF5), [_HDF5]
        else:
            paths = [source.obtain(folder, _HDF5) for source in self.sources]
            parts, names = [_read_text(path) for path in paths], [path.name for path in paths]
        return self.complete(*self.join(parts), where=str(folder), source=", ".join(names))


def _read_text(path: Path) -> tuple[Bytes, Rows]:
    """A LIBSVM file: per line a label 1..10 and ``index:value`` with index 1..256; what is left out is 0."""
    try:
        lines = bz2.decompress(path.read_bytes()).decode("ascii").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: not a readable bzip2 text ({error}); delete it and get it again") from None
    values, labels = np.zeros((len(lines), _PIXELS)), np.zeros(len(lines))
    advance = track(f"reading {path.name}", len(lines))
    for row, line in enumerate(lines):
        try:
            numbers = np.array(line.replace(":", " ").split(), np.float64)
            if not np.isin(numbers[1::2], _INDICES).all():
                raise ValueError("an index that is none")
            indices = numbers[1::2].astype(np.int64)
            labels[row], values[row, indices - 1] = numbers[0], numbers[2::2]
        except (ValueError, IndexError):
            raise UserError(
                f"{path}: line {row + 1}: not a label and index:value pairs (1..{_PIXELS}); get the official file"
            ) from None
    advance(len(lines))
    return _pixels((values + 1) / 2, str(path)), _digits(labels, 1, str(path))


def _read_hdf5(path: Path) -> list[tuple[Bytes, Rows]]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            arrays = [[_hdf5_array(file, f"{split}/{name}") for name in ("data", "target")] for split in _SPLITS]
    except Exception as error:  # damaged HDF5 files raise almost anything
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a readable HDF5 file of USPS ({reason}); get it again") from None
    parts = []
    for split, (data, target) in zip(_SPLITS, arrays, strict=True):
        if data.ndim != 2 or data.shape[1] != _PIXELS or data.dtype.kind != "f":
            raise UserError(f"{path}: {split}/data must be floats of (n, {_PIXELS}), found {data.dtype} {data.shape}")
        if target.shape != data.shape[:1] or target.dtype.kind not in "iu":
            found = f"{target.dtype} {target.shape}"
            raise UserError(f"{path}: {split}/target must be integers of ({len(data)},), found {found}")
        parts.append((_pixels(data, f"{path}: {split}"), _digits(target, 0, f"{path}: {split}")))
    return parts


def _hdf5_array(file: Any, name: str) -> npt.NDArray[Any]:
    """A dataset that lies in the file itself: HDF5 can also point to other files of the machine."""
    import h5py

    group, _, leaf = name.partition("/")
    links = file.get(group, getlink=True), file[group].get(leaf, getlink=True)
    array = file[name] if all(isinstance(link, h5py.HardLink) for link in links) else None
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise ValueError(f"{name} is not an array in it")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} holds {array.dtype}, not numbers")
    for what, shape in (("a shape", array.shape), ("parts", array.chunks or ())):
        if prod(shape) > _LARGEST:
            raise ValueError(f"{name} has {what} of {shape}")
    values: npt.NDArray[Any] = array[()]
    return values


def _pixels(values: npt.NDArray[Any], where: str) -> Bytes:
    """Values 0..1 as images."""
    wrong = ~((values >= 0) & (values <= 1)).all(1)  # also NaN
    if wrong.any():
        raise UserError(f"{where}: row {int(wrong.argmax())}: a pixel is outside of its range; get the official file")
    return np.rint(values.astype(np.float64) * 255).astype(np.uint8).reshape(-1, 1, 16, 16)


def _digits(values: npt.NDArray[Any], zero: int, where: str) -> Rows:
    """Labels as digits, when `zero` is the label of the digit 0."""
    wrong = ~np.isin(values, range(zero, zero + 10))
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(f"{where}: row {row}: label {values[row]:g} is outside {zero}..{zero + 9}")
    return values.astype(np.int64) - zero
