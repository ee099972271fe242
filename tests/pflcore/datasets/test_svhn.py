"""SVHN and SynthDigits: their MATLAB files in miniature, whole and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
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


def test_svhn_of_a_wrong_hash(folder: Path, trust: Trust) -> None:
    write_svhn(folder, trust)
    path = folder / "test_32x32.mat"
    path.write_bytes(path.read_bytes() + b"x")
    assert failure(DATASETS.create("svhn"), folder).endswith(
        "; delete it and get it from http://ufldl.stanford.edu/housenumbers/test_32x32.mat"
    )


def test_synthdigits(folder: Path) -> None:
    write_synthdigits(folder)
    assert DATASETS.create("synthdigits").found(folder)
    samples = DATASETS.create("synthdigits").load(folder)
    assert_holds(samples, colour_images(), "synth_train_32x32.mat, synth_test_32x32.mat")


@pytest.mark.parametrize(
    "changes",
    [{"X": np.zeros((32, 32, 3), np.uint8)}, {"X": None}, {"y": None}, {"y": np.array([["a"] * TEST], object)}],
)
def test_synthdigits_damaged(folder: Path, changes: dict[str, Any]) -> None:
    write_synthdigits(folder)
    path = folder / "synth_test_32x32.mat"
    write_matlab(path, 1, **changes)
    message = failure(DATASETS.create("synthdigits"), folder)
    assert message.startswith(f"{path}: ") and "pfl fetch" in message


def test_synthdigits_truncated(folder: Path) -> None:
    write_synthdigits(folder)
    path = folder / "synth_train_32x32.mat"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    with h5py.File(folder / "v73.mat", "w") as file:
        file["X"] = np.zeros(3)
    hdf5 = (folder / "v73.mat").read_bytes()
    (folder / "v73.mat").unlink()
    for data in (whole[: len(whole) // 2], whole[:100], b"", b"no matrix" * 50, bytes(flipped), hdf5):
        path.write_bytes(data)
        assert failure(DATASETS.create("synthdigits"), folder).startswith(f"{path}: ")
    path.unlink()
    assert failure(DATASETS.create("synthdigits"), folder).startswith(f"{path}: is missing; ")


def test_synthdigits_incomplete(folder: Path) -> None:
    write_synthdigits(folder)
    images = pixels(1, 3, 32, 32)[1:].transpose(2, 3, 1, 0)
    write_matlab(folder / "synth_test_32x32.mat", 1, LABELS[1][1:], X=images)
    assert failure(DATASETS.create("synthdigits"), folder) == (
        f"{folder}: synthdigits has 15 training and 10 test samples, found 15 and 9; put the complete data there"
    )
