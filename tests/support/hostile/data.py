"""Hostile pictures, arrays and tables."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from support.hostile.making import MEBIBYTE, Maker, content, instead


def _png(width: int, height: int, mode: str) -> bytes:
    """A picture of nothing: pixels of kilobytes."""
    kinds = {"1": (1, 0, 1), "L": (8, 0, 8), "RGBA": (8, 6, 32), "RGB16": (16, 2, 48)}
    bits, colour, pixel = kinds[mode]
    pack = zlib.compressobj(9)
    row = bytes(1 + (width * pixel + 7) // 8)
    packed = b"".join(pack.compress(row) for _ in range(height)) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (b"IHDR", b"IDAT", b"IEND"), (head, packed, b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _told_png(kind: bytes, data: bytes) -> bytes:
    """A small picture with a chunk before its pixels."""
    small = _png(8, 8, "L")
    return small[:33] + _chunk(kind, data) + small[33:]


def _encoded(kind: str, size: tuple[int, int], mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def _frames() -> bytes:
    file = io.BytesIO()
    first = Image.new("L", (8, 8))
    others = [Image.new("L", (8, 8), level % 256) for level in range(2_000)]
    first.save(file, "GIF", save_all=True, append_images=others)
    return file.getvalue()


def _tiff(entries: int) -> bytes:
    """A directory of entries that claim four billion numbers each, and which is followed by itself."""
    tags = b"".join(struct.pack("<HHII", 256 + number % 200, 4, 2**32 - 1, 8) for number in range(entries))
    return b"II*\0" + struct.pack("<IH", 8, entries) + tags + struct.pack("<I", 8)


PICTURE: dict[str, Maker] = {
    "900 million pixels of a bit": content(lambda _: _png(30_000, 30_000, "1")),
    "81 million pixels of 32 bits": content(lambda _: _png(9_000, 9_000, "RGBA")),
    "81 million pixels of 48 bits": content(lambda _: _png(9_000, 9_000, "RGB16")),
    "a text that unpacks to a gigabyte": content(
        lambda _: _told_png(b"zTXt", b"a\0\0" + zlib.compress(bytes(1024 * MEBIBYTE), 1))
    ),
    "a colour profile that unpacks to a gigabyte": content(
        lambda _: _told_png(b"iCCP", b"a\0\0" + zlib.compress(bytes(1024 * MEBIBYTE), 1))
    ),
    "80 million pixels as a progressive JPEG": content(
        lambda _: _encoded("JPEG", (9_000, 8_900), "L", progressive=True, quality=1)
    ),
    "2,000 frames": content(lambda _: _frames()),
    "tags of terabytes": content(lambda _: _tiff(200)),
    "a bitmap that claims 2^31 rows": content(
        lambda _: struct.pack("<2sIIIIiiHH", b"BM", 200, 0, 54, 40, 2**15, 2**31 - 1, 1, 24) + bytes(170)
    ),
    "a pixmap that claims 10^9 columns": content(lambda _: b"P6 999999999 999999999 255\n" + bytes(99)),
}

IDX: dict[str, Maker] = {
    "2^96 images": content(lambda data: data[:4] + b"\xff" * 4 * data[3] + data[4 + 4 * data[3] :]),
    "no rows of 2^32": content(lambda data: data[:4] + b"\xff" * 4 * (data[3] - 1) + bytes(4)),
    "200 dimensions": content(lambda data: data[:3] + b"\xc8" + b"\0\0\0\1" * 200 + b"\0"),
}


def _dictionary(path: Path) -> None:
    """One picture of a megabyte, named by each of 3,000 rows."""
    blob = pa.array([bytes(MEBIBYTE)], pa.binary())
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000, pa.int32()), blob)
    table = pa.table({"image": column, "label": pa.array([row % 2 for row in range(3_000)], pa.int64())})
    pq.write_table(table, path, store_schema=False)


def _rows(path: Path, *, nulls: bool) -> None:
    """So many rows that a column of numbers alone takes gigabytes; all alike, they take kilobytes."""
    count = 20_000_000
    labels = pa.nulls(count, pa.int64()) if nulls else pa.array(np.zeros(count, np.int64))
    table = pa.table({"image": pa.nulls(count, pa.binary()), "label": labels})
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(20):
            writer.write_table(table)


def _nested(path: Path) -> None:
    kind: pa.DataType = pa.int64()
    for _ in range(200):
        kind = pa.list_(kind)
    pq.write_table(pa.table({"image": pa.nulls(1, kind), "label": pa.nulls(1, kind)}), path)


TABLE: dict[str, Maker] = {
    "pictures of 3 GB": instead(_dictionary),
    "400 million rows": instead(lambda path: _rows(path, nulls=False)),
    "400 million rows of nothing": instead(lambda path: _rows(path, nulls=True)),
    "20,000 columns": instead(lambda path: pq.write_table(pa.table({f"c{n}": [n] for n in range(20_000)}), path)),
    "lists of lists": instead(_nested),
}


def _matlab(*variables: tuple[str, int, tuple[int, ...], int]) -> bytes:
    """A MATLAB file of version 5. Of each variable: name, class, shape, and how many zeros are there."""
    parts = [b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<HH", 0x0100, 0x4D49)]
    for name, kind, shape, zeros in variables:
        dimensions = struct.pack("<II", 5, 4 * len(shape)) + struct.pack(f"<{len(shape)}i", *shape)
        dimensions += bytes(-len(dimensions) % 8)
        head = (
            struct.pack("<IIII", 6, 8, kind, 0)
            + dimensions
            + struct.pack("<HH", 1, len(name))
            + name.encode().ljust(4, b"\0")
        )
        pack = zlib.compressobj(9)
        size = len(head) + 8 + zeros
        packed = pack.compress(struct.pack("<II", 14, size % 2**32) + head + struct.pack("<II", 2, zeros % 2**32))
        for _ in range(zeros // MEBIBYTE):
            packed += pack.compress(bytes(MEBIBYTE))
        packed += pack.compress(bytes(zeros % MEBIBYTE)) + pack.flush()
        parts.append(struct.pack("<II", 15, len(packed)) + packed)
    return b"".join(parts)


_CELL, _DOUBLE, _UINT8 = 1, 6, 9

MATLAB: dict[str, Maker] = {
    "a claim of terabytes": content(lambda _: _matlab(("X", _UINT8, (32, 32, 3, 2**31 - 1), 0))),
    "2 GiB that are there": content(
        lambda _: _matlab(("X", _UINT8, (32, 32, 3, 700_000), 700_000 * 3072), ("y", _UINT8, (700_000, 1), 700_000))
    ),
    "another variable of 2 GiB": content(lambda data: data + _matlab(("Z", _UINT8, (2**11, MEBIBYTE), 2**31))[128:]),
    "2^31 cells": content(lambda _: _matlab(("X", _CELL, (2**31 - 1, 1), 0), ("y", _CELL, (2**31 - 1, 1), 0))),
    "labels without end": content(lambda data: data + _matlab(("y", _DOUBLE, (2**31 - 1, 1), 0))[128:]),
}


def _hdf5(change: Callable[[object], None]) -> Maker:
    def put(path: Path) -> None:
        import h5py

        with h5py.File(path, "a") as file:
            del file["train/data"]
            change(file["train"])

    return put


def _h5_vlen(group: object) -> None:
    import h5py

    group.create_dataset("data", (15, 256), h5py.string_dtype())  # type: ignore[attr-defined]


HDF5: dict[str, Maker] = {
    "a shape that is not there": _hdf5(
        lambda group: group.create_dataset("data", (2**40, 256), "f4", chunks=(64, 256), compression="gzip")  # type: ignore[attr-defined]
    ),
    "a chunk of a gigabyte": _hdf5(
        lambda group: group.create_dataset(  # type: ignore[attr-defined]
            "data", data=np.zeros((15, 256), "f4"), chunks=(2**14, 2**14), maxshape=(None, None), compression="gzip"
        )
    ),
    "another file of the machine": _hdf5(
        lambda group: group.create_dataset("data", (15, 256), "f4", external=[("/etc/passwd", 0, 15 * 1024)])  # type: ignore[attr-defined]
    ),
    "texts": _hdf5(_h5_vlen),
}
