"""Parquet exports of CIFAR-10 and CIFAR-100 in miniature, whole and damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.cifar_files import COARSE, FINE, PIXELS100, SPLITS, assert_complete, assert_complete100, images, shrink
from support.official import Trust, encoded, failure, plain

from pflcore.datasets import DATASETS, Dataset

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def export() -> Dataset:
    return DATASETS.create("cifar10", source="parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def encode(row: np.ndarray, kind: str = "PNG") -> bytes:
    return encoded(row.reshape(3, 32, 32), kind)


def write_parquet(path: Path, data: Sequence[bytes | None], **labels: list[int]) -> None:
    column = pa.array([{"bytes": item, "path": None} for item in data], IMAGE)
    pq.write_table(pa.table({"img": column, **labels}), path)


def write_parquet100(path: Path, part: int, coarse: list[int] | None = None, data: list[bytes] | None = None) -> None:
    images = data or [encode(row) for row in PIXELS100[part]]
    write_parquet(path, images, fine_label=FINE[part], coarse_label=COARSE[part] if coarse is None else coarse)


def write_export(folder: Path, kind: str = "PNG") -> None:
    """The training images in two files, the test images in one."""
    for split, name, numbers in (("train", "0", (0, 1, 2)), ("train", "1", (3, 4)), ("test", "0", (5,))):
        data = [encode(row, kind) for number in numbers for row in images(number)[0]]
        labels = [label for number in numbers for label in images(number)[1]]
        write_parquet(folder / f"{split}-{name}.parquet", data, label=labels)


def test_parquet_export(export: Dataset, folder: Path) -> None:
    write_export(folder)
    assert_complete(export, folder, "train-0.parquet, train-1.parquet, test-0.parquet (PNG images)")


def test_an_unreadable_image_is_named(export: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pflcore.datasets._decode._CHUNK", 3)
    good = encode(images(0)[0][0])
    path = folder / "train-0.parquet"
    for bad, reason in (
        (b"no image", "not PNG or JPEG"),
        (plain((0, 0, 0), "GIF", (32, 32)), "not PNG or JPEG"),
        (None, "it is null"),
        (plain((0, 0, 0), "PNG", (33, 32)), "33x32 instead of 32x32 pixels"),
    ):
        write_parquet(path, [*[good] * 7, bad, good, bad], label=[0] * 10)
        assert failure(export, folder) == f"{path}: row 7: not a readable image ({reason})"
    write_parquet(path, [good, good[: len(good) // 2], good], label=[0] * 3)
    assert failure(export, folder).startswith(f"{path}: row 1: not a readable image (")


def test_cifar100_parquet_export(folder: Path) -> None:
    export100 = DATASETS.create("cifar100", source="parquet")
    for part, split in enumerate(SPLITS):
        write_parquet100(folder / f"{split}-0.parquet", part)
    assert_complete100(export100, folder, "train-0.parquet, test-0.parquet (PNG images)")
