"""Datasets: what holds for every entry, generated stand-ins, and the embedded digits."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pooch
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pflcore.datasets import DATASETS, Dataset, cifar10, stand_in
from pflcore.datasets._pickle import load_batch
from pflcore.errors import UserError
from pflcore.sample_files import read_samples, write_samples

PER_BATCH = 4
PYTHON, BINARY = "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


# --- every entry ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=DATASETS.names())
def dataset(request: pytest.FixtureRequest) -> Dataset:
    return DATASETS.create(request.param)


def test_the_registry_holds_the_datasets() -> None:
    assert {"cifar10", "digits"} <= set(DATASETS.names())


def test_an_entry_documents_itself(dataset: Dataset) -> None:
    first = (type(dataset).__doc__ or "").splitlines()[0]
    assert 10 < len(first) < 90 and first.endswith(".")
    assert dataset.citation and dataset.licence and dataset.download_size
    assert len(dataset.class_names) == dataset.classes == len(set(dataset.class_names))
    assert len(dataset.shape) == 3 and len(dataset.mean) == len(dataset.std) == dataset.shape[0]
    assert all(0 < value < 1 for value in dataset.mean + dataset.std) and min(dataset.counts) > 0


def test_a_stand_in_has_the_datasets_dimensions(dataset: Dataset, tmp_path: Path) -> None:
    samples = stand_in(dataset, 2 * dataset.classes, dataset.classes + 1)
    assert samples.shape == dataset.shape and samples.classes == dataset.classes and samples.name == dataset.name
    assert (samples.train.sum(), (~samples.train).sum()) == (2 * dataset.classes, dataset.classes + 1)
    assert (np.bincount(samples.labels[samples.train]) == 2).all()
    write_samples(tmp_path / "a.parquet", samples)
    again = read_samples(tmp_path / "a.parquet")
    np.testing.assert_array_equal(again.inputs, samples.inputs)
    write_samples(tmp_path / "b.parquet", again)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    np.testing.assert_array_equal(stand_in(dataset, 2 * dataset.classes, dataset.classes + 1).inputs, samples.inputs)
    other = stand_in(dataset, 2 * dataset.classes, dataset.classes + 1, seed=1)
    assert (other.inputs != samples.inputs).any()


def test_a_stand_in_is_learnable_but_not_trivially(dataset: Dataset) -> None:
    samples = stand_in(dataset, 40 * dataset.classes, 10 * dataset.classes)
    x = samples.inputs.reshape(len(samples), -1).astype(float)
    train, test = samples.train, ~samples.train
    centres = np.array([x[train & (samples.labels == label)].mean(0) for label in range(samples.classes)])
    distance = (x[test] ** 2).sum(1)[:, None] - 2 * x[test] @ centres.T + (centres**2).sum(1)
    accuracy = (distance.argmin(1) == samples.labels[test]).mean()
    assert 5 / samples.classes < accuracy < 0.99 or 0.7 < accuracy < 0.99
    assert 90 < samples.inputs.mean() < 165 and 20 < samples.inputs.std() < 70


# --- digits --------------------------------------------------------------------------------------------------------


def test_digits_are_scaled_and_split_by_class(tmp_path: Path) -> None:
    digits = DATASETS.create("digits")
    samples = digits.load(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    assert len(samples) == 1797 and samples.inputs.min() == 0 and samples.inputs.max() == 255
    train = np.bincount(samples.labels[samples.train])
    test = np.bincount(samples.labels[~samples.train])
    assert (np.abs(test / (train + test) - 0.2) < 0.003).all()
    values = samples.inputs[samples.train] / 255
    assert digits.mean == (round(values.mean(), 4),) and digits.std == (round(values.std(), 4),)
    np.random.seed(5)
    np.testing.assert_array_equal(digits.load(tmp_path).train, samples.train)
