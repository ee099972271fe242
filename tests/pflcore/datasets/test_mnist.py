"""MNIST: its idx files in miniature, whole and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support.digit_files import IDX, TEST, TRAIN, assert_holds, digit_images, idx, pixels, shrink, write_mnist
from support.official import Files, Trust, failure

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


SHAPED = "not an idx file of bytes with {} (it begins with {})"


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        (
            {"train_images": idx(pixels(0, 28, 28))[:-1]},
            IDX[0],
            "holds 11,759 bytes after its header, which says 11,760",
        ),
        ({"t10k_images": idx(pixels(1, 28))}, IDX[2], SHAPED.format("3 dimensions", "00000802")),
        ({"t10k_images": b"\0\0\x08\3\0\0"}, IDX[2], SHAPED.format("3 dimensions", "00000803")),
        ({"t10k_labels": b"\0\0\x0d\1" + bytes(8)}, IDX[3], SHAPED.format("1 dimension", "00000d01")),
        ({"t10k_labels": b""}, IDX[3], SHAPED.format("1 dimension", "nothing")),
        ({"train_images": idx(pixels(0, 28, 27))}, IDX[0], "images of 28x27 instead of 28x28"),
        ({"train_labels": idx(np.zeros(4, np.uint8))}, IDX[1], "4 labels for 15 images"),
    ],
)
def test_mnist_damaged(folder: Path, changes: Files, name: str, message: str) -> None:
    write_mnist(folder, compressed=False, **changes)
    assert failure(DATASETS.create("mnist"), folder) == f"{folder}/{name}: {message}; get the official file"
