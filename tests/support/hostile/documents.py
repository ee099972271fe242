"""Hostile texts, pickles, weights and archives of arrays."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable

import numpy as np

from support.hostile.making import MEBIBYTE, Maker, content, inflated, zipped


def _pickle_of(*operations: bytes) -> Maker:
    return content(lambda _: b"\x80\x04" + b"".join(operations) + b".")


PICKLE: dict[str, Maker] = {
    "a billion laughs": _pickle_of(b"]", *(b"\x94(h" + bytes([n]) * 1 + b"h" + bytes([n]) + b"l" for n in range(60))),
    "depth of a million": _pickle_of(b"(" * MEBIBYTE, b"t" * MEBIBYTE),
    "a text of 2^60 bytes": _pickle_of(b"\x8d" + struct.pack("<Q", 2**60)),
    "a number of 16 MiB": _pickle_of(b"\x8b" + struct.pack("<i", 16 * MEBIBYTE) + b"\x7f" * (16 * MEBIBYTE)),
    "a number of a million digits": content(lambda _: b"L" + b"9" * 1_000_000 + b"L\n."),
    "place 2^31 of the memory": _pickle_of(b"Nr" + struct.pack("<I", 2**31 - 1)),
    "an array of 2^60": content(
        lambda data: pickle.dumps({"data": np.zeros(2, np.uint8), "labels": [1]}, 2).replace(
            b"K\x02\x85", b"\x8a\x08" + struct.pack("<q", 2**60) + b"\x85"
        )
    ),
}

JSON: dict[str, Maker] = {
    "a number of a million digits": content(lambda data: data.replace(b"2", b"9" * 1_000_000, 1)),
    "depth of 100,000": content(lambda _: b'{"users": ' * 100_000 + b"1" + b"}" * 100_000),
    "a million users": content(
        lambda _: json.dumps({"users": ["u"] * 1_000_000, "num_samples": [1] * 1_000_000, "user_data": {}}).encode()
    ),
    "five million lists": content(lambda _: b"[" + b"[]," * 5_000_000 + b"1]"),
    "not a number": content(lambda data: data.replace(b"2", b"NaN")),
}

_BOX = b"<object><name>red</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>7</ymax></bndbox></object>"
_LAUGHS = b"".join(b'<!ENTITY l%d "%s">' % (n, b"&l%d;" % (n - 1) * 10 if n else b"laugh") for n in range(12))

XML: dict[str, Maker] = {
    "a billion laughs": content(lambda _: b"<!DOCTYPE a [" + _LAUGHS + b"]><annotation>&l11;</annotation>"),
    "another file of the machine": content(
        lambda _: b'<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><annotation>&a;</annotation>'
    ),
    "depth of 500,000": content(lambda _: b"<a>" * 500_000 + b"</a>" * 500_000),
    "an attribute of 32 MiB": content(lambda _: b'<annotation a="' + b"a" * 32 * MEBIBYTE + b'"/>'),
    "200,000 objects": content(lambda _: b"<annotation>" + _BOX * 200_000 + b"</annotation>"),
    "three million elements": content(lambda _: b"<annotation>" + b"<a/>" * 3_000_000 + b"</annotation>"),
    "100,000 objects": content(lambda _: b"<annotation>" + _BOX * 100_000 + b"</annotation>"),
    "a number of a million digits": content(lambda data: data.replace(b">5<", b">" + b"9" * 1_000_000 + b"<")),
}

TEXT: dict[str, Maker] = {
    "five million lines": content(lambda data: data.splitlines()[0] + b"\n" + b"a\n" * 5_000_000),
    "16 MiB of accents": content(lambda data: data + "é̂".encode() * (4 * MEBIBYTE)),
    "half of a character": content(lambda data: data + b"\xf0\x9f"),
    "zero bytes": content(lambda data: data.replace(b"\n", b"\0\n")),
}


def _npy(shape: str, kind: str = "|u1") -> bytes:
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x02\0" + struct.pack("<I", len(head) + 1) + head + b"\n"


def _members(change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> Maker:
    """A change of what is in a zip file."""

    def make(data: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return zipped(change({name: archive.read(name) for name in archive.namelist()}))

    return content(make)


def _first(data: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.namelist()[0]


NPZ: dict[str, Maker] = {
    "an array of 2^60": _members(lambda all_: all_ | {"train_images.npy": _npy("(1152921504606846976, 28, 28)")}),
    "objects": _members(lambda all_: all_ | {"train_images.npy": _npy("(1,)", "|O") + pickle.dumps(["a"])}),
    "a header of 64 MiB": _members(
        lambda all_: all_ | {"train_images.npy": b"\x93NUMPY\x02\0\0\0\0\x04" + b"(" * 64 * MEBIBYTE}
    ),
    "a member of 2 GiB": content(lambda data: inflated(_first(data), _npy("(2737789, 28, 28)"), 2047)),
    "50,000 members": _members(lambda all_: all_ | {f"{number}.npy": b"" for number in range(50_000)}),
}

_HEADER = struct.Struct("<Q")


def _safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return _HEADER.pack(len(text)) + text + data


WEIGHTS: dict[str, Maker] = {
    "a header of 2^63": content(lambda data: _HEADER.pack(2**63 - 1) + data[8:]),
    "a header of 64 MiB": content(lambda _: _safetensors(b"[" * 64 * MEBIBYTE)),
    "a shape of 2^120": content(
        lambda _: _safetensors({"a": {"dtype": "F32", "shape": [2**40, 2**40, 2**40], "data_offsets": [0, 0]}})
    ),
    "no rows of 2^62": content(
        lambda _: _safetensors({"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}})
    ),
    "300,000 tensors": content(
        lambda _: _safetensors({f"{n}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(300_000)})
    ),
    "one place for many": content(
        lambda _: _safetensors(
            {f"{n}": {"dtype": "U8", "shape": [MEBIBYTE], "data_offsets": [0, MEBIBYTE]} for n in range(4_000)},
            bytes(MEBIBYTE),
        )
    ),
}


def _pickled(members: dict[str, bytes]) -> str:
    return next(name for name in members if name.endswith("data.pkl"))


STATE_DICT: dict[str, Maker] = {
    "a member of 2 GiB": content(lambda data: inflated(_first(data), b"", 2047)),
    "code": _members(lambda all_: all_ | {_pickled(all_): b"cos\nsystem\n(S'true'\ntR."}),
    "depth of a million": _members(
        lambda all_: all_ | {_pickled(all_): b"\x80\x02" + b"(" * MEBIBYTE + b"t" * MEBIBYTE + b"."}
    ),
}

_LAUGHING_YAML = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]" for n in range(12)).encode()

YAML: dict[str, Maker] = {
    "a billion laughs": content(lambda _: _LAUGHING_YAML),
    "laughs after it": content(lambda data: data + b"\n" + _LAUGHING_YAML),
    "depth of 100,000": content(lambda _: b"{a: " * 100_000),
    "a number of a million digits": content(lambda data: data + b"\nnumber: " + b"9" * 1_000_000),
    "a list of 2 MiB": content(lambda data: data + b"\nlist: [" + b"1, " * (700 * 1024) + b"1]"),
    "tags": content(lambda data: data + b"\ntag: !!python/object/apply:os.system [true]"),
    "keys without end": content(lambda data: data + b"".join(b"\nk%d: 1" % n for n in range(100_000))),
}

CSV: dict[str, Maker] = {
    "a field of 32 MiB": content(lambda data: data.splitlines()[0] + b"\n" + b'"' + b"a" * (32 * MEBIBYTE) + b'"\n'),
    "two million lines": content(lambda data: data + b",,\n" * 2_000_000),
    "100,000 columns": content(lambda data: b"a," * 100_000 + b"\n" + b"1," * 100_000),
    "a number of a million digits": content(
        lambda data: data.splitlines()[0] + b"\n" + b"9" * 1_000_000 + b",0,train\n"
    ),
    "zero bytes": content(lambda data: data.replace(b"\n", b"\0\n")),
}
