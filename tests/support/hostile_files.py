"""Files that were made to harm whoever reads them: endless, enormous, deep, claiming, or something else than they seem.

Each maker takes a path at which a good file lies, and puts something hostile in its place. None of them takes more than
a few megabytes of the disk.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Maker = Callable[[Path], None]

MEBIBYTE = 2**20
HUGE = 5 * 2**30  # bytes, more than these readers have a use for; as a hole in a file they take no room


def _content(make: Callable[[bytes], bytes]) -> Maker:
    """What makes hostile content of the good one."""

    def put(path: Path) -> None:
        original = path.read_bytes()
        path.unlink()
        path.write_bytes(make(original))

    return put


def _instead(make: Callable[[Path], object]) -> Maker:
    """What puts something else in the file's place."""

    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


def _hole(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(HUGE)


def _bomb(pack: Callable[[bytes], bytes]) -> bytes:
    """Parts of a megabyte of nothing, packed, one after the other, as these formats allow: four gigabytes."""
    return pack(bytes(MEBIBYTE)) * 4096


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def _inflated(member: str, content: bytes, times: int) -> bytes:
    """An archive of a member that is some content and then nothing, a megabyte so many times."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(member, "w") as one:
        one.write(content)
        for _ in range(times):
            one.write(bytes(MEBIBYTE))
    return file.getvalue()


# What may lie in the place of any file.
ANYWHERE: dict[str, Maker] = {
    "nothing in it": _content(lambda _: b""),
    "noise": _content(lambda _: np.random.default_rng(1).bytes(10_000)),
    "zeros": _content(lambda _: bytes(MEBIBYTE)),
    "half of it": _content(lambda data: data[: len(data) // 2]),
    "noise after it": _content(lambda data: data + np.random.default_rng(2).bytes(MEBIBYTE)),
    "5 GiB of a hole after it": _hole,
    "5 GiB of a hole": _instead(_hole),
    "a pipe": _instead(os.mkfifo),
    "an endless device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    "a folder": _instead(Path.mkdir),
    "a gzip bomb": _content(lambda _: _bomb(gzip.compress)),
    "a bzip2 bomb": _content(lambda _: _bomb(bz2.compress)),
    "an xz bomb": _content(lambda _: lzma.compress(bytes(MEBIBYTE)) * 256),
    "a zip bomb": _content(lambda _: _inflated("a", b"", 1024)),
    "a pickle": _content(lambda _: pickle.dumps({"a": np.zeros(9)})),
    "one line of 64 MiB": _content(lambda _: b"a" * (64 * MEBIBYTE)),
    "depth": _content(lambda _: b"[" * MEBIBYTE),
}

# --- by format -----------------------------------------------------------------------------------------------------


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
    "900 million pixels of a bit": _content(lambda _: _png(30_000, 30_000, "1")),
    "81 million pixels of 32 bits": _content(lambda _: _png(9_000, 9_000, "RGBA")),
    "81 million pixels of 48 bits": _content(lambda _: _png(9_000, 9_000, "RGB16")),
    "a text that unpacks to a gigabyte": _content(
        lambda _: _told_png(b"zTXt", b"a\0\0" + zlib.compress(bytes(1024 * MEBIBYTE), 1))
    ),
    "a colour profile that unpacks to a gigabyte": _content(
        lambda _: _told_png(b"iCCP", b"a\0\0" + zlib.compress(bytes(1024 * MEBIBYTE), 1))
    ),
    "80 million pixels as a progressive JPEG": _content(
        lambda _: _encoded("JPEG", (9_000, 8_900), "L", progressive=True, quality=1)
    ),
    "2,000 frames": _content(lambda _: _frames()),
    "tags of terabytes": _content(lambda _: _tiff(200)),
    "a bitmap that claims 2^31 rows": _content(
        lambda _: struct.pack("<2sIIIIiiHH", b"BM", 200, 0, 54, 40, 2**15, 2**31 - 1, 1, 24) + bytes(170)
    ),
    "a pixmap that claims 10^9 columns": _content(lambda _: b"P6 999999999 999999999 255\n" + bytes(99)),
}

IDX: dict[str, Maker] = {
    "2^96 images": _content(lambda data: data[:4] + b"\xff" * 4 * data[3] + data[4 + 4 * data[3] :]),
    "no rows of 2^32": _content(lambda data: data[:4] + b"\xff" * 4 * (data[3] - 1) + bytes(4)),
    "200 dimensions": _content(lambda data: data[:3] + b"\xc8" + b"\0\0\0\1" * 200 + b"\0"),
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
    "pictures of 3 GB": _instead(_dictionary),
    "400 million rows": _instead(lambda path: _rows(path, nulls=False)),
    "400 million rows of nothing": _instead(lambda path: _rows(path, nulls=True)),
    "20,000 columns": _instead(lambda path: pq.write_table(pa.table({f"c{n}": [n] for n in range(20_000)}), path)),
    "lists of lists": _instead(_nested),
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
    "a claim of terabytes": _content(lambda _: _matlab(("X", _UINT8, (32, 32, 3, 2**31 - 1), 0))),
    "2 GiB that are there": _content(
        lambda _: _matlab(("X", _UINT8, (32, 32, 3, 700_000), 700_000 * 3072), ("y", _UINT8, (700_000, 1), 700_000))
    ),
    "another variable of 2 GiB": _content(lambda data: data + _matlab(("Z", _UINT8, (2**11, MEBIBYTE), 2**31))[128:]),
    "2^31 cells": _content(lambda _: _matlab(("X", _CELL, (2**31 - 1, 1), 0), ("y", _CELL, (2**31 - 1, 1), 0))),
    "labels without end": _content(lambda data: data + _matlab(("y", _DOUBLE, (2**31 - 1, 1), 0))[128:]),
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


def _pickle_of(*operations: bytes) -> Maker:
    return _content(lambda _: b"\x80\x04" + b"".join(operations) + b".")


PICKLE: dict[str, Maker] = {
    "a billion laughs": _pickle_of(b"]", *(b"\x94(h" + bytes([n]) * 1 + b"h" + bytes([n]) + b"l" for n in range(60))),
    "depth of a million": _pickle_of(b"(" * MEBIBYTE, b"t" * MEBIBYTE),
    "a text of 2^60 bytes": _pickle_of(b"\x8d" + struct.pack("<Q", 2**60)),
    "a number of 16 MiB": _pickle_of(b"\x8b" + struct.pack("<i", 16 * MEBIBYTE) + b"\x7f" * (16 * MEBIBYTE)),
    "a number of a million digits": _content(lambda _: b"L" + b"9" * 1_000_000 + b"L\n."),
    "place 2^31 of the memory": _pickle_of(b"Nr" + struct.pack("<I", 2**31 - 1)),
    "an array of 2^60": _content(
        lambda data: pickle.dumps({"data": np.zeros(2, np.uint8), "labels": [1]}, 2).replace(
            b"K\x02\x85", b"\x8a\x08" + struct.pack("<q", 2**60) + b"\x85"
        )
    ),
}

JSON: dict[str, Maker] = {
    "a number of a million digits": _content(lambda data: data.replace(b"2", b"9" * 1_000_000, 1)),
    "depth of 100,000": _content(lambda _: b'{"users": ' * 100_000 + b"1" + b"}" * 100_000),
    "a million users": _content(
        lambda _: json.dumps({"users": ["u"] * 1_000_000, "num_samples": [1] * 1_000_000, "user_data": {}}).encode()
    ),
    "five million lists": _content(lambda _: b"[" + b"[]," * 5_000_000 + b"1]"),
    "not a number": _content(lambda data: data.replace(b"2", b"NaN")),
}

_BOX = b"<object><name>red</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>7</ymax></bndbox></object>"
_LAUGHS = b"".join(b'<!ENTITY l%d "%s">' % (n, b"&l%d;" % (n - 1) * 10 if n else b"laugh") for n in range(12))

XML: dict[str, Maker] = {
    "a billion laughs": _content(lambda _: b"<!DOCTYPE a [" + _LAUGHS + b"]><annotation>&l11;</annotation>"),
    "another file of the machine": _content(
        lambda _: b'<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><annotation>&a;</annotation>'
    ),
    "depth of 500,000": _content(lambda _: b"<a>" * 500_000 + b"</a>" * 500_000),
    "an attribute of 32 MiB": _content(lambda _: b'<annotation a="' + b"a" * 32 * MEBIBYTE + b'"/>'),
    "200,000 objects": _content(lambda _: b"<annotation>" + _BOX * 200_000 + b"</annotation>"),
    "three million elements": _content(lambda _: b"<annotation>" + b"<a/>" * 3_000_000 + b"</annotation>"),
    "100,000 objects": _content(lambda _: b"<annotation>" + _BOX * 100_000 + b"</annotation>"),
    "a number of a million digits": _content(lambda data: data.replace(b">5<", b">" + b"9" * 1_000_000 + b"<")),
}

TEXT: dict[str, Maker] = {
    "five million lines": _content(lambda data: data.splitlines()[0] + b"\n" + b"a\n" * 5_000_000),
    "16 MiB of accents": _content(lambda data: data + "é̂".encode() * (4 * MEBIBYTE)),
    "half of a character": _content(lambda data: data + b"\xf0\x9f"),
    "zero bytes": _content(lambda data: data.replace(b"\n", b"\0\n")),
}


def _npy(shape: str, kind: str = "|u1") -> bytes:
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x02\0" + struct.pack("<I", len(head) + 1) + head + b"\n"


def _members(change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> Maker:
    """A change of what is in a zip file."""

    def make(data: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return zipped(change({name: archive.read(name) for name in archive.namelist()}))

    return _content(make)


def _first(data: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.namelist()[0]


NPZ: dict[str, Maker] = {
    "an array of 2^60": _members(lambda all_: all_ | {"train_images.npy": _npy("(1152921504606846976, 28, 28)")}),
    "objects": _members(lambda all_: all_ | {"train_images.npy": _npy("(1,)", "|O") + pickle.dumps(["a"])}),
    "a header of 64 MiB": _members(
        lambda all_: all_ | {"train_images.npy": b"\x93NUMPY\x02\0\0\0\0\x04" + b"(" * 64 * MEBIBYTE}
    ),
    "a member of 2 GiB": _content(lambda data: _inflated(_first(data), _npy("(2737789, 28, 28)"), 2047)),
    "50,000 members": _members(lambda all_: all_ | {f"{number}.npy": b"" for number in range(50_000)}),
}

_HEADER = struct.Struct("<Q")


def _safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return _HEADER.pack(len(text)) + text + data


WEIGHTS: dict[str, Maker] = {
    "a header of 2^63": _content(lambda data: _HEADER.pack(2**63 - 1) + data[8:]),
    "a header of 64 MiB": _content(lambda _: _safetensors(b"[" * 64 * MEBIBYTE)),
    "a shape of 2^120": _content(
        lambda _: _safetensors({"a": {"dtype": "F32", "shape": [2**40, 2**40, 2**40], "data_offsets": [0, 0]}})
    ),
    "no rows of 2^62": _content(
        lambda _: _safetensors({"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}})
    ),
    "300,000 tensors": _content(
        lambda _: _safetensors({f"{n}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(300_000)})
    ),
    "one place for many": _content(
        lambda _: _safetensors(
            {f"{n}": {"dtype": "U8", "shape": [MEBIBYTE], "data_offsets": [0, MEBIBYTE]} for n in range(4_000)},
            bytes(MEBIBYTE),
        )
    ),
}


def _pickled(members: dict[str, bytes]) -> str:
    return next(name for name in members if name.endswith("data.pkl"))


STATE_DICT: dict[str, Maker] = {
    "a member of 2 GiB": _content(lambda data: _inflated(_first(data), b"", 2047)),
    "code": _members(lambda all_: all_ | {_pickled(all_): b"cos\nsystem\n(S'true'\ntR."}),
    "depth of a million": _members(
        lambda all_: all_ | {_pickled(all_): b"\x80\x02" + b"(" * MEBIBYTE + b"t" * MEBIBYTE + b"."}
    ),
}

_LAUGHING_YAML = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]" for n in range(12)).encode()

YAML: dict[str, Maker] = {
    "a billion laughs": _content(lambda _: _LAUGHING_YAML),
    "laughs after it": _content(lambda data: data + b"\n" + _LAUGHING_YAML),
    "depth of 100,000": _content(lambda _: b"{a: " * 100_000),
    "a number of a million digits": _content(lambda data: data + b"\nnumber: " + b"9" * 1_000_000),
    "a list of 2 MiB": _content(lambda data: data + b"\nlist: [" + b"1, " * (700 * 1024) + b"1]"),
    "tags": _content(lambda data: data + b"\ntag: !!python/object/apply:os.system [true]"),
    "keys without end": _content(lambda data: data + b"".join(b"\nk%d: 1" % n for n in range(100_000))),
}

CSV: dict[str, Maker] = {
    "a field of 32 MiB": _content(lambda data: data.splitlines()[0] + b"\n" + b'"' + b"a" * (32 * MEBIBYTE) + b'"\n'),
    "two million lines": _content(lambda data: data + b",,\n" * 2_000_000),
    "100,000 columns": _content(lambda data: b"a," * 100_000 + b"\n" + b"1," * 100_000),
    "a number of a million digits": _content(
        lambda data: data.splitlines()[0] + b"\n" + b"9" * 1_000_000 + b",0,train\n"
    ),
    "zero bytes": _content(lambda data: data.replace(b"\n", b"\0\n")),
}

FORMATS: dict[str, dict[str, Maker]] = {
    "picture": PICTURE, "idx": IDX, "table": TABLE, "matlab": MATLAB, "hdf5": HDF5, "pickle": PICKLE, "json": JSON,
    "xml": XML, "text": TEXT, "npz": NPZ, "safetensors": WEIGHTS, "state dict": STATE_DICT, "yaml": YAML, "csv": CSV,
    "any": {},
}  # fmt: skip
