"""Splits in PFLlib's layout: ``train/<client>.npz`` and ``test/<client>.npz``, each a dict of images and labels.

PFLlib stores the samples themselves, normalised, and not which of a dataset's samples they are. So reading one is
finding them again by their pixels. Its files are pickles inside of zip archives, which are read here without running
anything that they ask for.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflcore.data.assignment import Assignment
from pflcore.data.samples import SPLITS, Samples
from pflcore.datasets._pickle import _Array, _Plain, _Unpickler, check_claims
from pflcore.errors import UserError
from pflcore.files import atomic_path, write_text

_MOST = 4 << 30  # bytes of one client's file when unpacked
_MEMBER = "data.npy"
_NEAR = 1e-3  # of a pixel, by which a normalised one may miss a whole number
Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def write_pfllib(folder: Path, samples: Samples, assignment: Assignment) -> None:
    """Write a split of images as PFLlib has it: float32 pixels (n, channels, height, width) from -1 to 1, int64 labels.

    Raises:
        UserError: The samples are texts, or clients hold more than training and test samples, or are novel, or noisy.
    """
    for there, what in (
        (not samples.is_images, "texts"),
        (assignment.validation, "validation samples"),
        (assignment.novel, "novel clients"),
        (assignment.noise, "noise on images"),
    ):
        if there:
            raise UserError(
                f"partition {assignment.scheme!r} of {samples.name} has {what}, which PFLlib's files have not"
            )
    for split, held in zip(SPLITS, (assignment.train, assignment.test), strict=True):
        for client, rows in enumerate(held):
            content = {"x": (samples.inputs[rows] / np.float32(255) - 0.5) / 0.5, "y": samples.labels[rows]}
            with atomic_path(folder / split / f"{client}.npz") as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, data=np.array(content, object))
    facts = {"num_clients": assignment.clients, "num_classes": samples.classes, "partition": assignment.scheme}
    write_text(folder / "config.json", json.dumps(facts) + "\n")


def read_pfllib(folder: Path, samples: Samples) -> Assignment:
    """Which samples of a dataset the clients of a split in PFLlib's layout hold.

    Of samples with equal pixels and labels the first that is not held yet is taken.

    Raises:
        UserError: A file is missing, damaged, asks for code, or holds something that is no sample of the dataset.
    """
    clients = len(list((folder / "train").glob("*.npz")))
    if not clients:
        raise UserError(f"{folder}: no train/0.npz; name the folder of a dataset of PFLlib, such as dataset/MNIST")
    if not samples.is_images:
        raise UserError(f"{samples.name} is of texts, which are not found by their pixels")
    known: dict[bytes, deque[int]] = {}
    for row, (image, label) in enumerate(zip(samples.inputs, samples.labels.tolist(), strict=True)):
        known.setdefault(image.tobytes() + label.to_bytes(8, "little"), deque()).append(row)
    held = {split: [_rows(folder / split / f"{one}.npz", samples, known) for one in range(clients)] for split in SPLITS}
    return Assignment(held["train"], held["test"], "pfllib", 0, own_split=True)


def _rows(path: Path, samples: Samples, known: dict[bytes, deque[int]]) -> npt.NDArray[np.int64]:
    pixels, labels = _read(path)
    shape = samples.inputs.shape[1:]
    if pixels.shape[1:] != shape:
        raise UserError(f"{path}: images of {pixels.shape[1:]}, and {samples.name} has them of {shape}")
    scaled = (pixels * 0.5 + 0.5) * 255
    whole = scaled.round()
    if not (np.abs(scaled - whole) < _NEAR).all() or whole.min(initial=0) < 0 or whole.max(initial=0) > 255:
        raise UserError(f"{path}: not bytes normalised by a mean and a deviation of 0.5, as PFLlib's generators do")
    rows = []
    for at, (image, label) in enumerate(zip(whole.astype(np.uint8), labels.tolist(), strict=True)):
        there = known.get(image.tobytes() + label.to_bytes(8, "little", signed=True))
        if not there:
            raise UserError(f"{path}: image {at} with label {label} is no sample of {samples.name}, or held already")
        rows.append(there.popleft())
    return np.sort(np.array(rows, np.int64))


def _read(path: Path) -> Arrays:
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(_MEMBER)
            if info.file_size > _MOST:
                raise UserError(f"{path}: larger than any client's samples ({_MOST:,} bytes)")
            with archive.open(info) as file:
                data = file.read(_MOST)
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        if shape != () or dtype != np.dtype(object):
            raise ValueError(f"an array of {dtype} {shape}, and not a dict")
        pickled = data[stream.tell() :]
        check_claims(pickled)
        (content,) = _Unpickler(io.BytesIO(pickled), str(path), _Number).load().values
        return _column(content["x"], 4, "f"), _column(content["y"], 1, "iu")
    except UserError:
        raise
    except Exception as error:  # neither zip nor pickle promises particular exceptions for damaged input
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(f"{path}: not a file of PFLlib: 'data' has to be a dict of arrays x and y ({reason})") from None


def _column(column: Any, dimensions: int, kinds: str) -> Any:
    values = column.values if isinstance(column, _Array) else None
    if not isinstance(values, np.ndarray) or values.ndim != dimensions or values.dtype.kind not in kinds:
        raise ValueError("x has to be numbers (n, channels, height, width), y whole numbers (n)")
    return values.astype(np.float32 if kinds == "f" else np.int64)


class _Number(_Plain):
    """Stands for the dtypes of numbers, and of the objects that the outermost array is made of."""

    __slots__ = ()

    codes = r"[|<>=]?([iuf][1248]|O8)"
    called = "numbers"
