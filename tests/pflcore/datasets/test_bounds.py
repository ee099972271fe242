"""Files that claim or unpack to more than there is, or never end: one line, in little memory and no time."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pflcore.datasets import DATASETS
from pflcore.datasets._bounds import check_claim, read_columns, read_image
from pflcore.errors import UserError

MEBIBYTE = 2**20


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def bomb(path: Path, rows: int = 3_000, size: int = MEBIBYTE) -> None:
    """A table of one value, again and again: kilobytes that unpack to gigabytes."""
    blob = pa.array([b"\0" * size], pa.binary())
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), blob)
    labels = pa.array([row % 2 for row in range(rows)], pa.int64())
    pq.write_table(pa.table({"image": column, "label": labels}), path, store_schema=False)


LOAD = """
import resource, sys
from pathlib import Path
from pflcore.datasets import DATASETS
try:
    DATASETS.create("image_table", path="bomb").load(Path(sys.argv[1]) / "image_table")
except Exception as error:
    print(type(error).__name__, error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_table_that_unpacks_to_gigabytes_is_one_line_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "bomb").mkdir()
    path = tmp_path / "bomb/train.parquet"
    bomb(path)
    assert path.stat().st_size < MEBIBYTE
    environment = {**os.environ, "PFL_MEMORY": "0.5", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, env=environment, check=True
    )
    line, kilobytes = done.stdout.splitlines()
    assert line.startswith(f"UserError {path}: ") and "unpack to more than the 536,870,912 there is room for" in line
    assert int(kilobytes) < 1_600_000  # of which imports are a third; all of it would be three times as much


def test_tables_within_the_bound_are_read_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"a": list(range(1_000)), "b": [f"{n}" * 3 for n in range(1_000)], "c": [0.5] * 1_000})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    assert read_columns(tmp_path / "a.parquet", ["b", "a"]).equals(table.select(["b", "a"]).combine_chunks())
    pq.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    assert read_columns(tmp_path / "empty.parquet", ["a"]).num_rows == 0
    monkeypatch.setenv("PFL_MEMORY", str(4_000 / 2**30))
    with pytest.raises(UserError, match="unpack to more than the 4,000 there is room for"):
        read_columns(tmp_path / "a.parquet", ["a"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label in ("cat", "dog"):
        (tmp_path / "image_folder" / label).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "image_folder" / label / f"{number}.png").write_bytes(png())
    return tmp_path / "image_folder"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_never_ends_is_one_line(folder: Path, kind: str) -> None:
    path = folder / "dog/2.png"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"dog/2.png: no plain file, but a folder, a pipe or a device"):
        DATASETS.create("image_folder", size=8).load(folder)


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    with path.open("wb") as file:
        file.truncate(3 * 2**30)  # which takes no room on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="3,221,225,472 bytes are more than any image has"):
        read_image(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def matlab(count: int) -> bytes:
    """A MATLAB file of version 5 whose X is said to be 32x32x3xcount, and which ends there."""
    dimensions = struct.pack("<IIiiii", 5, 16, 32, 32, 3, count)
    head = struct.pack("<IIII", 6, 8, 9, 0) + dimensions + struct.pack("<HHI", 1, 1, ord("X"))
    packed = zlib.compress(struct.pack("<II", 14, len(head)) + head)
    return (
        b"MATLAB 5.0 MAT-file".ljust(124)
        + struct.pack("<HH", 0x0100, 0x4D49)
        + struct.pack("<II", 15, len(packed))
        + packed
    )


def test_a_matlab_file_that_claims_terabytes_is_one_line(tmp_path: Path) -> None:
    from pflcore.datasets._matlab import read_matlab

    path = tmp_path / "train_32x32.mat"
    path.write_bytes(matlab(2**31 - 1))
    with pytest.raises(UserError, match="'X' claims 6,597,069,763,584 bytes, more than the file can hold"):
        read_matlab([path], (3, 32, 32), range(1, 11))
    check_claim(path, path.stat().st_size * 1_000, "'X'")  # what is packed as well as can be


def test_a_member_of_an_archive_that_claims_too_much_is_not_unpacked(tmp_path: Path) -> None:
    from contextlib import ExitStack

    from pflcore.datasets._image_trees import _zip_files

    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("domain/cat/0.png", b"\0" * MEBIBYTE)
    raw = path.read_bytes()
    # In the directory at the end, the size after unpacking.
    place = raw.rindex(b"PK\x01\x02") + 24
    path.write_bytes(raw[:place] + struct.pack("<I", 2**32 - 2) + raw[place + 4 :])
    with ExitStack() as stack:
        ((_, read),) = _zip_files(path, stack)
        with pytest.raises(UserError, match=r"its member 'domain/cat/0.png' claims 4,294,967,294 bytes"):
            read()
