"""MNIST: its idx files in miniature, whole and damaged."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support.digit_files import IDX, LABELS, TEST, TRAIN, assert_holds, digit_images, idx, pixels, shrink, write_mnist
from support.official import Files, Trust, failure, unreachable

from pflcore.datasets import DATASETS


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("compressed", [True, False])
def test_mnist(folder: Path, trust: Trust, place: str, compressed: bool) -> None:
    paths = write_mnist(folder / place, compressed)
    for path in paths:
        trust(path)
    assert DATASETS.create("mnist").found(folder)
    samples = DATASETS.create("mnist").load(folder)
    assert_holds(samples, digit_images(28, 28), ", ".join(path.name for path in paths))
    assert samples.mean == (0.1307,) and samples.std == (0.3081,)


def test_mnist_is_downloaded(folder: Path, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    published = {path.name: path for path in write_mnist(folder / "host")}
    for path in published.values():
        trust(path)

    def retrieve(url: str, known_hash: str, fname: str, path: Path, **_: Any) -> None:
        assert url == f"https://ossci-datasets.s3.amazonaws.com/mnist/{fname}" and known_hash.startswith("md5:")
        path.mkdir(exist_ok=True)
        (path / fname).write_bytes(published[fname].read_bytes())

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(DATASETS.create("mnist").load(folder / "mnist")) == TRAIN + TEST
    assert sorted(path.name for path in (folder / "mnist").iterdir()) == sorted(published)


def test_mnist_of_a_wrong_hash(folder: Path) -> None:
    write_mnist(folder)
    write_mnist(folder, compressed=False)  # does not hide the wrong one
    found = hashlib.md5((folder / f"{IDX[0]}.gz").read_bytes()).hexdigest()
    assert failure(DATASETS.create("mnist"), folder) == (
        f"{folder}/{IDX[0]}.gz: md5 is {found}, expected f68b3c2dcbeaaa9fbdd348bbdeb94873; delete it and get it from "
        f"https://ossci-datasets.s3.amazonaws.com/mnist/{IDX[0]}.gz"
    )


def test_mnist_truncated(folder: Path, trust: Trust) -> None:
    for path in write_mnist(folder):
        trust(path)
    path = folder / f"{IDX[2]}.gz"
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"no gzip"):
        path.write_bytes(data)
        trust(path)
        message = failure(DATASETS.create("mnist"), folder)
        assert message.startswith(f"{path}: cannot be read (") and message.count(str(folder)) == 1


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"train_images": idx(pixels(0, 28, 28))[:-1]}, IDX[0]),
        ({"t10k_images": b"\0\0\x08\3\0\0"}, IDX[2]),
        ({"t10k_labels": b""}, IDX[3]),
        ({"train_images": idx(pixels(0, 28, 27))}, IDX[0]),
    ],
)
def test_mnist_damaged(folder: Path, changes: Files, name: str) -> None:
    write_mnist(folder, compressed=False, **changes)
    message = failure(DATASETS.create("mnist"), folder)
    assert message.startswith(f"{folder}/{name}: cannot be read (") and "pfl fetch" in message


def test_mnist_labels_are_digits(folder: Path) -> None:
    write_mnist(folder, compressed=False, train_labels=idx(np.array([*LABELS[0][:-1], 10], np.uint8)))
    assert failure(DATASETS.create("mnist"), folder) == f"{folder}: row 14: label 10 is outside 0..9"


def test_mnist_incomplete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = idx(pixels(0, 28, 28)[1:]), idx(np.array(LABELS[0][1:], np.uint8))
    write_mnist(folder, compressed=False, train_images=images, train_labels=labels)
    assert failure(DATASETS.create("mnist"), folder) == (
        f"{folder}: mnist has 15 training and 10 test samples, found 14 and 10; put the complete data there"
    )
    (folder / IDX[3]).unlink()
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    assert failure(DATASETS.create("mnist"), folder).endswith(
        f"(OSError); put {IDX[3]}.gz into that folder, or the unpacked file"
    )
