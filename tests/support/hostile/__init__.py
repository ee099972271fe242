"""Files made to harm whoever reads them: endless, enormous, deep, claiming, or something else than they seem."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import pickle
from pathlib import Path

import numpy as np

from support.hostile.data import HDF5, IDX, MATLAB, PICTURE, TABLE
from support.hostile.documents import CSV, JSON, NPZ, PICKLE, STATE_DICT, TEXT, WEIGHTS, XML, YAML
from support.hostile.making import MEBIBYTE, Maker, bomb, content, hole, inflated, instead

# What may lie in the place of any file.
ANYWHERE: dict[str, Maker] = {
    "nothing in it": content(lambda _: b""),
    "noise": content(lambda _: np.random.default_rng(1).bytes(10_000)),
    "zeros": content(lambda _: bytes(MEBIBYTE)),
    "half of it": content(lambda data: data[: len(data) // 2]),
    "noise after it": content(lambda data: data + np.random.default_rng(2).bytes(MEBIBYTE)),
    "5 GiB of a hole after it": hole,
    "5 GiB of a hole": instead(hole),
    "a pipe": instead(os.mkfifo),
    "an endless device": instead(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": instead(lambda path: path.symlink_to(path.name)),
    "a folder": instead(Path.mkdir),
    "a gzip bomb": content(lambda _: bomb(gzip.compress)),
    "a bzip2 bomb": content(lambda _: bomb(bz2.compress)),
    "an xz bomb": content(lambda _: lzma.compress(bytes(MEBIBYTE)) * 256),
    "a zip bomb": content(lambda _: inflated("a", b"", 1024)),
    "a pickle": content(lambda _: pickle.dumps({"a": np.zeros(9)})),
    "one line of 64 MiB": content(lambda _: b"a" * (64 * MEBIBYTE)),
    "depth": content(lambda _: b"[" * MEBIBYTE),
}

FORMATS: dict[str, dict[str, Maker]] = {
    "picture": PICTURE, "idx": IDX, "table": TABLE, "matlab": MATLAB, "hdf5": HDF5, "pickle": PICKLE, "json": JSON,
    "xml": XML, "text": TEXT, "npz": NPZ, "safetensors": WEIGHTS, "state dict": STATE_DICT, "yaml": YAML, "csv": CSV,
    "any": {},
}  # fmt: skip
