"""USPS: its texts and its HDF5 file in miniature, whole and damaged."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np
import pytest
from support.digit_files import LABELS, assert_holds, shrink, usps_images, usps_values, write_usps_hdf5
from support.official import Trust, failure

from pflcore.datasets import DATASETS, usps


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def usps_text(part: int) -> str:
    lines = []
    for values, label in zip(usps_values(part) * 2.0 - 1, LABELS[part], strict=True):
        lines.append(f"{label + 1} " + " ".join(f"{n}:{value:g}" for n, value in enumerate(values, 1)) + " \n")
    return "".join(lines)


USPS_TEXTS = ("usps.bz2", "usps.t.bz2")


def write_usps_text(folder: Path, trust: Trust, **changes: str) -> None:
    folder.mkdir(exist_ok=True)
    for part, name in enumerate(USPS_TEXTS):
        text = changes.get(("train", "test")[part], usps_text(part))
        (folder / name).write_bytes(bz2.compress(text.encode()))
        trust(folder / name)


def test_usps_texts(folder: Path, trust: Trust) -> None:
    write_usps_text(folder, trust)
    (folder / "usps.h5").write_bytes(b"is not looked at")
    assert DATASETS.create("usps").found(folder)
    assert_holds(DATASETS.create("usps").load(folder), usps_images(), "usps.bz2, usps.t.bz2")


def test_usps_hdf5(folder: Path) -> None:
    write_usps_hdf5(folder / "usps.h5")
    assert DATASETS.create("usps").found(folder)
    assert_holds(DATASETS.create("usps").load(folder), usps_images(), "usps.h5")


def test_usps_of_a_wrong_hash_and_truncated(folder: Path, trust: Trust) -> None:
    write_usps_text(folder, trust)
    path = folder / "usps.t.bz2"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert failure(DATASETS.create("usps"), folder).endswith(
        "delete it and get it from https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/usps.t.bz2"
    )
    for data in (whole[: len(whole) // 2], b"no bzip2", bz2.compress("ä".encode())):
        path.write_bytes(data)
        trust(path)
        assert failure(DATASETS.create("usps"), folder).startswith(f"{path}: cannot be read (")


@pytest.mark.parametrize("line", ["1 1:0 2:1.5", "1 1:0 2:nan", "1 0:0", "1 257:0", "1 1:", "six 1:0"])
def test_usps_damaged_text(folder: Path, trust: Trust, line: str) -> None:
    lines = usps_text(1).splitlines()
    write_usps_text(folder, trust, test="\n".join([lines[0], line, *lines[2:]]))
    assert failure(DATASETS.create("usps"), folder).startswith(f"{folder}/usps.t.bz2: cannot be read (")


def test_usps_labels_are_digits(folder: Path, trust: Trust) -> None:
    lines = usps_text(1).splitlines()
    write_usps_text(folder, trust, test="\n".join([lines[0], "11 1:0", *lines[2:]]))
    assert failure(DATASETS.create("usps"), folder) == f"{folder}: row 16: label 10 is outside 0..9"


def test_usps_unreadable_hdf5(folder: Path) -> None:
    path = folder / "usps.h5"
    write_usps_hdf5(path)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"no HDF5"):
        path.write_bytes(data)
        assert failure(DATASETS.create("usps"), folder).startswith(f"{path}: cannot be read (")
    write_usps_hdf5(path, train_data=usps_values(0) * 2 - 1)
    assert failure(DATASETS.create("usps"), folder).startswith(f"{path}: cannot be read (a pixel is outside")
    write_usps_hdf5(path, test_data=usps_values(1)[:4], test_target=np.zeros(4, int))
    assert failure(DATASETS.create("usps"), folder) == (
        f"{folder}: usps has 15 training and 10 test samples, found 15 and 4; put the complete data there"
    )


def test_usps_numbers_that_are_left_out_are_zero(folder: Path, trust: Trust) -> None:
    path = folder / "usps.bz2"
    path.write_bytes(bz2.compress(b"10 2:1 256:-1\n"))
    images, labels = usps._read_text(path)
    assert labels.tolist() == [9] and images.shape == (1, 1, 16, 16)
    assert images.reshape(-1)[[0, 1, 2, 254, 255]].tolist() == [128, 255, 128, 128, 0]
