"""SVHN and SynthDigits: their MATLAB files in miniature, whole and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.digit_files import (
    LABELS,
    TEST,
    TRAIN,
    assert_holds,
    colour_images,
    pixels,
    shrink,
    write_matlab,
    write_svhn,
    write_synthdigits,
)
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


def test_svhn(folder: Path, trust: Trust) -> None:
    write_svhn(folder, trust)
    assert DATASETS.create("svhn").found(folder)
    samples = DATASETS.create("svhn").load(folder)
    assert_holds(samples, colour_images(), "train_32x32.mat, test_32x32.mat")


def test_svhn_with_extra_images(folder: Path, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = DATASETS.create("svhn", extra=True)
    assert dataset.expected == (TRAIN + 531_131, TEST)
    monkeypatch.setattr("pflcore.datasets.svhn._EXTRA", TEST)
    write_svhn(folder, trust)
    write_matlab(folder / "extra_32x32.mat", 1, [7] * TEST)
    trust(folder / "extra_32x32.mat")
    samples = dataset.load(folder)
    assert samples.labels.tolist() == LABELS[0] + [7] * TEST + LABELS[1]
    np.testing.assert_array_equal(samples.inputs[TRAIN : TRAIN + TEST], pixels(1, 3, 32, 32))
    assert samples.train.tolist() == [True] * (TRAIN + TEST) + [False] * TEST


def test_svhn_labels_are_1_to_10(folder: Path, trust: Trust) -> None:
    write_svhn(folder, trust)
    path = folder / "train_32x32.mat"
    write_matlab(path, 0)
    trust(path)
    assert failure(DATASETS.create("svhn"), folder) == f"{path}: row 0: label 0 is outside 1..10"


def test_synthdigits(folder: Path) -> None:
    write_synthdigits(folder)
    assert DATASETS.create("synthdigits").found(folder)
    samples = DATASETS.create("synthdigits").load(folder)
    assert_holds(samples, colour_images(), "synth_train_32x32.mat, synth_test_32x32.mat")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "'X' must be uint8 of 32x32x3xn, found uint8 of 32x32x3"),
        ({"X": np.zeros((3, 32, 32, TEST), np.uint8)}, "'X' must be uint8 of 32x32x3xn, found uint8 of 3x32x32x10"),
        ({"X": np.zeros((32, 32, 3, TEST))}, "'X' must be uint8 of 32x32x3xn, found double of 32x32x3x10"),
        ({"X": None}, "'X' must be uint8 of 32x32x3xn, found nothing"),
        ({"y": None}, "'y' must be 10 numbers, found nothing"),
        ({"y": np.zeros((9, 1))}, "'y' must be 10 numbers, found double of 9x1"),
        ({"y": np.array([["a"] * TEST], object)}, "'y' must be 10 numbers, found cell of 1x10"),
    ],
)
def test_synthdigits_damaged(folder: Path, changes: dict[str, Any], message: str) -> None:
    write_synthdigits(folder)
    path = folder / "synth_test_32x32.mat"
    write_matlab(path, 1, **changes)
    assert failure(DATASETS.create("synthdigits"), folder) == f"{path}: {message}; get the official file"


@pytest.mark.parametrize(("row", "label"), [(9, 10), (3, 0.5), (2, np.nan)])
def test_synthdigits_labels_are_digits(folder: Path, row: int, label: float) -> None:
    write_synthdigits(folder)
    labels = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]], type(label))
    labels[0, row] = label
    path = folder / "synth_test_32x32.mat"
    write_matlab(path, 1, y=labels)
    assert failure(DATASETS.create("synthdigits"), folder) == f"{path}: row {row}: label {label} is outside 0..9"
