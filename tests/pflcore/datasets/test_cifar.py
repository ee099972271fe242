"""CIFAR-10: the official archives in miniature, whole and damaged."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support.cifar_files import assert_complete, binary_batch, images, members, pickled, python_batch, shrink
from support.official import Trust, failure, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset
from pflcore.datasets.cifar10 import Cifar10

PYTHON, BINARY = "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"
PIXELS, LABELS = images(0)


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def cifar() -> Dataset:
    return DATASETS.create("cifar10")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("python", [True, False])
def test_official_archives(cifar: Dataset, trust: Trust, folder: Path, python: bool) -> None:
    path = folder / (PYTHON if python else BINARY)
    write_tar(path, members(python))
    trust(path)
    assert_complete(cifar, folder, path.name)
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("python", [True, False])
def test_official_folders(cifar: Dataset, folder: Path, python: bool) -> None:
    write_files(folder, members(python))
    assert_complete(cifar, folder, "cifar-10-batches-py" if python else "cifar-10-batches-bin")


def test_a_wrong_hash_is_refused_though_a_folder_is_there(cifar: Dataset, folder: Path) -> None:
    write_tar(folder / PYTHON, members(True))
    write_files(folder, members(True))
    found = hashlib.sha256((folder / PYTHON).read_bytes()).hexdigest()
    assert failure(cifar, folder) == (
        f"{folder / PYTHON}: sha256 is {found}, expected "
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce; delete it and get it from "
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    )


@pytest.mark.parametrize("name", ["../evil-of-pfl", "/tmp/evil-of-pfl", "cifar-10-batches-py/../../evil-of-pfl"])
def test_members_that_point_outside_are_refused(cifar: Dataset, trust: Trust, folder: Path, name: str) -> None:
    path = folder / PYTHON
    write_tar(path, {name: b"x", **members(True)})
    trust(path)
    assert failure(cifar, folder) == (
        f"{path}: its member {name!r} points outside of the archive; get it from its official source"
    )
    assert sorted(folder.parent.rglob("*")) == [folder, path] and not Path("/tmp/evil-of-pfl").exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            python_batch(PIXELS[:, :-1].copy(), LABELS),
            "'data' must be a uint8 array of (n, 3072), found an array of (4, 3071)",
        ),
        (pickled({b"labels": LABELS}), "'data' must be a uint8 array of (n, 3072), found a NoneType"),
        (python_batch(PIXELS, LABELS[:-1]), "'labels' must be a list of 4 integers, found 3 of them"),
        (pickled({b"data": PIXELS}), "'labels' must be a list of 4 integers, found a NoneType"),
        (python_batch(PIXELS, [0, 0, 10, 0]), "row 2: label 10 is outside 0..9"),
        (python_batch(PIXELS, [0, -1, 0, 0]), "row 1: label -1 is outside 0..9"),
        (python_batch(PIXELS, [0, 0, 0, True]), "row 3: label True is outside 0..9"),
        (python_batch(PIXELS, [2**80, 0, 0, 0]), f"row 0: label {2**80} is outside 0..9"),
    ],
)
def test_wrong_python_batches(cifar: Dataset, folder: Path, batch: bytes, message: str) -> None:
    write_files(folder, members(True) | {"cifar-10-batches-py/data_batch_4": batch})
    assert failure(cifar, folder) == f"{folder}/cifar-10-batches-py/data_batch_4: {message}"


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (binary_batch(PIXELS, LABELS)[:-1], "12291 bytes are not a multiple of the 3073 of one image"),
        (binary_batch(PIXELS, [0, 0, 0, 200]), "row 3: label 200 is outside 0..9"),
    ],
)
def test_wrong_binary_batches(cifar: Dataset, folder: Path, batch: bytes, message: str) -> None:
    write_files(folder, members(False) | {"cifar-10-batches-bin/test_batch.bin": batch})
    assert failure(cifar, folder) == f"{folder}/cifar-10-batches-bin/test_batch.bin: {message}"


def test_an_incomplete_folder_is_refused(cifar: Dataset, folder: Path) -> None:
    contents = members(True)
    write_files(folder, contents | {"cifar-10-batches-py/test_batch": python_batch(PIXELS[:3], LABELS[:3])})
    assert failure(cifar, folder) == (
        f"{folder}/cifar-10-batches-py: cifar10 has 20 training and 4 test samples, found 20 and 3; "
        "put the complete data there"
    )
    (folder / "cifar-10-batches-py" / "data_batch_5").unlink()
    assert failure(cifar, folder) == (
        f"{folder}/cifar-10-batches-py: data_batch_5 is missing; unpack the official archive again"
    )


def test_an_empty_folder_is_downloaded_to(
    cifar: Dataset, trust: Trust, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(folder / PYTHON, members(True))
    trust(folder / PYTHON)

    def retrieve(url: str, known_hash: str, fname: str, path: Path, **_: Any) -> None:
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
        assert known_hash == f"sha256:{Cifar10.layouts[0].archive.digest}"
        path.mkdir(exist_ok=True)
        shutil.copy(folder / PYTHON, path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert_complete(cifar, folder / "raw", PYTHON)


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError("no route"), "OSError"), (ValueError("bad"), "what it sent has a wrong hash")]
)
def test_a_failed_download_says_what_to_put_where(
    cifar: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def retrieve(*_: Any, path: Path, **__: Any) -> None:
        path.mkdir(exist_ok=True)
        raise error

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    folder = tmp_path / "raw"
    assert failure(cifar, folder) == (
        f"{folder}: no data here, and https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz could not be downloaded "
        f"({reason}); put cifar-10-python.tar.gz into that folder, or cifar-10-binary.tar.gz or cifar-10-batches-py/ "
        "or cifar-10-batches-bin/"
    )
    folder.mkdir(exist_ok=True)
    (folder / "train.parquet").touch()
    assert failure(cifar, folder).endswith("; or have the Parquet files that are there read, with `source: parquet`")


def test_real_data_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    root = os.environ.get("PFL_DATA")
    if root and list((Path(root) / "cifar10").glob("train*.parquet")):
        samples = DATASETS.create("cifar10", source="parquet").load(Path(root) / "cifar10")
        assert np.bincount(samples.labels[samples.train]).tolist() == [5000] * 10
        assert np.bincount(samples.labels[~samples.train]).tolist() == [1000] * 10
        means = samples.inputs[samples.train].mean((0, 2, 3)) / 255
        np.testing.assert_allclose(means, samples.mean, atol=0.001)
