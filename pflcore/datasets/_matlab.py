"""MATLAB files of small images: ``X`` uint8 [H, W, C, n] and ``y`` [n, 1], as SVHN's authors lay them out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Bytes, Rows
from pflcore.datasets._bounds import check_claim, check_room
from pflcore.errors import UserError

_NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "double", "single")


def read_matlab(paths: Sequence[Path], shape: tuple[int, int, int], labels: range) -> tuple[Bytes, list[Rows]]:
    """Images and labels of some files, file after file.

    Args:
        paths: MATLAB files up to version 7 (not the HDF5 files of 7.3).
        shape: Channels, height and width of an image.
        labels: The values that may occur.

    Returns:
        pixels uint8 [n, C, H, W], and for each file its labels int64 as they are written there.

    Raises:
        UserError: A damaged file, arrays of another type or shape, or a label that is none.
    """
    counts = [_check_header(path, shape) for path in paths]
    pixels = allocate((sum(counts), *shape))
    advance = track(f"reading {', '.join(path.name for path in paths)}", sum(counts))
    end, digits = 0, []
    for path, count in zip(paths, counts, strict=True):
        arrays = _read(path)
        pixels[end : end + count] = arrays["X"].transpose(3, 2, 0, 1)
        digits.append(_check_labels(arrays["y"].reshape(-1), labels, path))
        end += count
        advance(count)
    return pixels, digits


def _check_header(path: Path, shape: tuple[int, int, int]) -> int:
    """The number of images, after checking shapes and types before anything large is read."""
    import scipy.io

    channels, height, width = shape
    with _one_line(path):
        found = {name: (size, kind) for name, size, kind in scipy.io.whosmat(path, appendmat=False)}
    size, kind = found.get("X", ((), "nothing"))
    if kind != "uint8" or len(size) != 4 or tuple(size[:3]) != (height, width, channels):
        raise UserError(
            f"{path}: 'X' must be uint8 of {height}x{width}x{channels}xn, found {_describe(size, kind)}; "
            "get the official file"
        )
    count = int(size[3])
    check_claim(path, count * channels * height * width, "'X'")
    check_room(path, count * channels * height * width, "'X'")
    size, kind = found.get("y", ((), "nothing"))
    if kind not in _NUMBERS or tuple(size) not in ((count, 1), (1, count)):
        raise UserError(f"{path}: 'y' must be {count:,} numbers, found {_describe(size, kind)}; get the official file")
    return count


def _describe(size: Sequence[int], kind: str) -> str:
    return f"{kind} of {'x'.join(map(str, size))}" if size else kind


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    import scipy.io

    with _one_line(path):
        arrays = scipy.io.loadmat(path, appendmat=False, variable_names=["X", "y"])
        return {name: arrays[name] for name in ("X", "y")}


def _check_labels(values: npt.NDArray[Any], labels: range, path: Path) -> Rows:
    wrong = ~np.isin(values, labels)  # also what is no whole number
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(f"{path}: row {row}: label {values[row]} is outside {labels[0]}..{labels[-1]}")
    return values.astype(np.int64)


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turns whatever scipy raises or warns of inside the block into one line about the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    except Exception as error:  # its readers of damaged files raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: not a readable MATLAB file ({reason}); get the official file") from None
