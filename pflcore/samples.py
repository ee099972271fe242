"""The samples of a dataset as arrays, and the artifact ``dataset/1`` that stores them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pflcore.artifacts import atomic_path, read_meta, read_table, write_table
from pflcore.errors import UserError
from pflcore.memory import memory_limit

SCHEMA = "dataset/1"
SPLITS = ("train", "test")

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Samples:
    """All samples of a dataset, training and test, in one row order that partitions refer to.

    Args:
        pixels: uint8 [n, C, H, W], 0..255.
        labels: int64 [n], 0..classes-1.
        train: bool [n], true for training samples.
        name: The dataset's name, e.g. ``"cifar10"``.
        class_names: One name per class.
        mean, std: Per channel, of pixel values scaled to 0..1; what a model's input is normalised with.
        source: Where the samples came from, for the reader of a report. Holds no path of a machine.

    Raises:
        UserError: Arrays of different lengths, of another type or shape, or a label outside its range.
    """

    pixels: Pixels
    labels: Rows
    train: Mask
    name: str
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str

    def __post_init__(self) -> None:
        where = f"dataset {self.name!r}"
        expected = {"pixels": (4, np.uint8), "labels": (1, np.int64), "train": (1, np.bool_)}
        for key, (dimensions, dtype) in expected.items():
            array: npt.NDArray[Any] = getattr(self, key)
            if array.ndim != dimensions or array.dtype != dtype:
                wanted = f"{np.dtype(dtype)} with {dimensions} dimension{'s' if dimensions > 1 else ''}"
                raise UserError(f"{where}: {key} must be {wanted}, not {array.dtype} with {array.ndim}")
        lengths = {key: len(getattr(self, key)) for key in expected}
        if len(set(lengths.values())) > 1:
            raise UserError(f"{where}: lengths differ: {', '.join(f'{n} {key}' for key, n in lengths.items())}")
        if len(self.mean) != self.shape[0] or len(self.std) != self.shape[0] or not all(s > 0 for s in self.std):
            raise UserError(
                f"{where}: mean {self.mean} and std {self.std} need one number for each of the {self.shape[0]} "
                "channels, and a std above 0"
            )
        check_labels(self.labels, self.classes, where)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


def check_labels(labels: Rows, classes: int, where: str) -> None:
    """Raises :class:`UserError` with the first row whose label is not in 0..classes-1."""
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(f"{where}: row {row}: label {labels[row]} is outside 0..{classes - 1}")


def write_samples(path: Path, samples: Samples) -> None:
    """Write the artifact ``dataset/1``. The bytes depend on nothing but `samples`."""
    width = int(np.prod(samples.shape))
    pixels = pa.py_buffer(np.ascontiguousarray(samples.pixels))  # no copy: one row is one run of `width` bytes
    table = pa.table(
        {
            "pixels": pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(samples), [None, pixels]),
            "label": pa.array(samples.labels),
            "split": split_column(samples.train),
        }
    )
    write_table(
        path,
        table,
        SCHEMA,
        name=samples.name,
        shape=list(samples.shape),
        classes=samples.classes,
        class_names=list(samples.class_names),
        mean=list(samples.mean),
        std=list(samples.std),
        source=samples.source,
    )


def read_samples(path: Path, scratch: Path | None = None) -> Samples:
    """Read the artifact ``dataset/1``; the arrays are writable and belong to the caller.

    Args:
        path: The artifact.
        scratch: A folder for pixels that would take more than :func:`pflcore.memory.memory_limit`: they are decoded
            into a file there, once, and mapped into memory. None reads everything.

    Raises:
        UserError: The file is missing, damaged, of another schema, or its content breaks a rule of :class:`Samples`.
    """
    mapped = scratch is not None and _pixel_bytes(path) > memory_limit()
    table, meta = read_table(path, SCHEMA, ["label", "split"] if mapped else None)
    try:
        shape = tuple(int(size) for size in meta["shape"])
        return Samples(
            pixels=_mapped_pixels(path, scratch, len(table), shape)
            if mapped and scratch
            else _pixels(column(path, table, "pixels", pa.binary(int(np.prod(shape)))), shape),
            labels=column(path, table, "label", pa.int64()).to_numpy().copy(),  # Arrow memory is read-only
            train=split_mask(path, table),
            name=meta["name"],
            class_names=tuple(meta["class_names"]),
            mean=tuple(meta["mean"]),
            std=tuple(meta["std"]),
            source=meta["source"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: damaged metadata ({type(error).__name__}: {error}); run `dvc repro`") from None
    except UserError as error:
        message = str(error)
        raise UserError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def column(path: Path, table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column without nulls of the given type. Raises :class:`UserError` when there is none."""
    if name not in table.column_names or table[name].type != kind or table[name].null_count:
        found = f"{table[name].type} with {table[name].null_count} nulls" if name in table.column_names else "none"
        raise UserError(f"{path}: column {name!r} must be {kind} without nulls, found {found}; run `dvc repro`")
    return table[name]


def split_column(train: Mask) -> pa.DictionaryArray:
    """The column ``split`` of an artifact: ``train`` where the mask is true, else ``test``."""
    return pa.DictionaryArray.from_arrays((~train).astype(np.int8), pa.array(SPLITS))


def split_mask(path: Path, table: pa.Table) -> Mask:
    """The inverse of :func:`split_column`. Raises :class:`UserError` for any other word."""
    words = table["split"].cast(pa.string()) if "split" in table.column_names else pa.nulls(1, pa.string())
    index = pc.index_in(words, value_set=pa.array(SPLITS))
    if index.null_count:
        raise UserError(f"{path}: column 'split' must hold train or test in every row; run `dvc repro`")
    mask: Mask = np.asarray(index) == 0
    return mask


def _pixel_bytes(path: Path) -> int:
    """What the pixels take when they are decoded."""
    shape = read_meta(path, SCHEMA).get("shape", [])
    rows = pq.read_metadata(path).num_rows
    return int(rows * np.prod(shape)) if all(isinstance(size, int) for size in shape) else 0


def _mapped_pixels(path: Path, scratch: Path, count: int, shape: tuple[int, ...]) -> Pixels:
    """The pixels as a file that is mapped into memory; it is named by the hash of the artifact that it came from."""
    with path.open("rb") as file:
        decoded = scratch / f"{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}.npy"
    if not decoded.is_file():
        with atomic_path(decoded) as temporary:
            pixels = np.lib.format.open_memmap(temporary, "w+", np.uint8, (count, *shape))
            start = 0
            for part in pq.ParquetFile(path).iter_batches(columns=["pixels"]):
                rows = column(path, pa.Table.from_batches([part]), "pixels", pa.binary(int(np.prod(shape))))
                pixels[start : start + len(part)] = _pixels(rows, shape)
                start += len(part)
            pixels.flush()
    # Copy on write: nothing is written, but PyTorch warns of memory that must not be.
    mapped: Pixels = np.load(decoded, mmap_mode="c")
    return mapped


def _pixels(rows: pa.ChunkedArray, shape: tuple[int, ...]) -> Pixels:
    pixels = np.empty((len(rows), *shape), np.uint8)
    start, width = 0, rows.type.byte_width
    for chunk in rows.chunks:
        stored = np.frombuffer(chunk.buffers()[1], np.uint8, len(chunk) * width, chunk.offset * width)
        pixels[start : start + len(chunk)] = stored.reshape(-1, *shape)
        start += len(chunk)
    return pixels
