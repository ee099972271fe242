"""Official files of datasets in miniature: archives, images, no network, and what a failed reading leaves behind."""

import io
import json
import os
import tarfile
import warnings
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from pflcore.datasets import _download
from support.mistakes import line_of

Files = dict[str, bytes]
SIZE = 8  # to which images are scaled


def failure(dataset, folder):
    """Return the one line of the error, after which everything in the folder and beside it is as it was."""
    before = _contents(folder.parent)
    line = line_of(dataset.load, folder)
    assert _contents(folder.parent) == before
    return line


def _contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def offline(monkeypatch):
    """Make every download fail."""

    def urlopen(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr(_download, "urlopen", urlopen)
    monkeypatch.setattr(_download, "PAUSE_SECONDS", 0.0)


def trust(monkeypatch):
    """Give every file the hash that is expected of it."""
    monkeypatch.setattr(_download.Source, "hash_of", lambda self, _: self.digest)


def write_tar(path, files, mode="w:gz"):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_zip(path, files):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_files(root, files):
    """Write texts and bytes by path, below `root`, and return it."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


class Hostile:
    """A pickle of it runs a command wherever it is loaded without care."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def encoded(pixels, kind="PNG"):
    """Return pixels [3, height, width] as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, kind, quality=100)
    return file.getvalue()


def plain(colour, kind="JPEG", size=(14, 11)):
    """Return an image of one colour that is not square; `size` is (width, height)."""
    return encoded(np.broadcast_to(np.array(colour, np.uint8)[:, None, None], (3, size[1], size[0])), kind)


def table(images, names=None, **columns):
    """Return a table as exports lay it out: a struct of bytes, other columns, names of classes in the metadata."""
    rows = pa.table({"image": pa.array([{"bytes": image, "path": None} for image in images]), **columns})
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        rows = rows.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = io.BytesIO()
    pq.write_table(rows, file, row_group_size=2)
    return file.getvalue()
