"""USPS: its texts and its HDF5 file in miniature, whole and damaged."""

from __future__ import annotations

import bz2
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
from support.digit_files import LABELS, assert_holds, shrink, usps_images, usps_values, write_usps_hdf5
from support.official import Trust, failure

from pflcore.datasets import DATASETS


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


PAIRS = "line 2: not a label and index:value pairs (1..256); get the official file"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("11 1:0", "row 1: label 11 is outside 1..10"),
        ("0 1:0", "row 1: label 0 is outside 1..10"),
        ("1.5 1:0", "row 1: label 1.5 is outside 1..10"),
        ("1 1:0 2:1.5", "row 1: a pixel is outside of its range; get the official file"),
        ("1 1:0 2:nan", "row 1: a pixel is outside of its range; get the official file"),
        *((line, PAIRS) for line in ("1 0:0", "1 257:0", "1 1:", "1 nan:0", "six 1:0", "")),
    ],
)
def test_usps_damaged_text(folder: Path, trust: Trust, line: str, message: str) -> None:
    lines = usps_text(1).splitlines()
    write_usps_text(folder, trust, test="\n".join([lines[0], line, *lines[2:]]))
    assert failure(DATASETS.create("usps"), folder) == f"{folder}/usps.t.bz2: {message}"


def test_usps_hdf5_does_not_reach_other_files(folder: Path) -> None:
    path, other = folder / "usps" / "usps.h5", folder / "other.h5"
    write_usps_hdf5(other)
    write_usps_hdf5(path)

    def refused(change: Callable[[h5py.File], None], name: str) -> None:
        write_usps_hdf5(path)
        with h5py.File(path, "a") as file:
            change(file)
        assert failure(DATASETS.create("usps"), path.parent) == (
            f"{path}: not a readable HDF5 file of USPS ({name} is not an array in it); get it again"
        )

    def external_link(file: h5py.File) -> None:
        del file["test/data"]
        file["test/data"] = h5py.ExternalLink(str(other), "test/data")

    def external_group(file: h5py.File) -> None:
        del file["train"]
        file["train"] = h5py.ExternalLink(str(other), "train")

    def external_storage(file: h5py.File) -> None:
        del file["test/data"]
        file["test"].create_dataset("data", (10, 256), "f4", external=[(str(other), 0, 10 * 256 * 4)])

    def virtual(file: h5py.File) -> None:
        del file["test/data"]
        layout = h5py.VirtualLayout((10, 256), "f4")
        layout[:] = h5py.VirtualSource(str(other), "test/data", (10, 256))
        file["test"].create_virtual_dataset("data", layout)

    refused(external_link, "test/data")
    refused(external_group, "train/data")
    refused(external_storage, "test/data")
    refused(virtual, "test/data")
