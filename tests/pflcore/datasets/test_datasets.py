"""Datasets: what holds for every entry, generated stand-ins, and the embedded digits."""

from pathlib import Path

import numpy as np
import pytest

from pflcore.data.sample_files import write_samples
from pflcore.datasets import DATASETS, stand_in
from pflcore.datasets._base import DOWNLOAD, FOLDER, INCLUDED


@pytest.mark.parametrize("name", DATASETS.names())
def test_the_facts_of_an_entry(name, tmp_path):
    dataset = DATASETS.create(name)
    assert dataset.licence and dataset.download_size
    assert dataset.access in (INCLUDED, DOWNLOAD, FOLDER)
    assert all(part.patterns for part in dataset.data_files(Path("data", name)))
    assert dataset.access == INCLUDED or dataset.homepage or dataset.counts is None
    assert len(dataset.class_names) == dataset.classes == len(set(dataset.class_names))
    assert len(dataset.shape) in {"text": (1,), "images": (3,), "arrays": (1, 2, 3)}[dataset.kind]
    assert min(dataset.shape) > 0 or (dataset.kind == "arrays" and not dataset.classes)
    assert len(dataset.mean) == len(dataset.std) == (dataset.shape[0] if dataset.kind == "images" else 0)
    assert all(0 < value < 1 for value in dataset.mean + dataset.std)
    assert dataset.found(tmp_path / name) == (dataset.access == INCLUDED) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", DATASETS.names())
def test_a_stand_in_is_learnable_but_not_trivially(name, tmp_path):
    dataset = DATASETS.create(name, **DATASETS.get(name).smoke)
    count = dataset.classes or 10
    samples = stand_in(dataset, 40 * count, 10 * count)
    train, test = samples.train, ~samples.train
    assert samples.shape == tuple(side or 16 for side in dataset.shape) and samples.kind == dataset.kind
    assert samples.classes == count and samples.name == name
    assert (train.sum(), test.sum()) == (40 * count, 10 * count) and set(samples.attributes) == set(dataset.attributes)
    for file in "ab":
        write_samples(tmp_path / file, small := stand_in(dataset, 2 * count, count + 1))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (stand_in(dataset, 2 * count, count + 1, seed=1).inputs != small.inputs).any()
    black = stand_in(dataset, 2 * count, count + 1, with_images=False)
    assert black.shape == small.shape and black.labels.tolist() == small.labels.tolist()
    if samples.kind == "text":  # the character after another one, from the pairs seen in training
        before, after = samples.inputs[:, -2].astype(int), samples.labels
        seen = np.zeros((count, count))
        np.add.at(seen, (before[train], after[train]), 1)
        assert 0.25 < (seen.argmax(1)[before[test]] == after[test]).mean() < 0.6  # one of three is right
        return
    assert (np.bincount(samples.labels[train]) == 40).all()
    x = samples.inputs.reshape(len(samples), -1).astype(np.float32)
    centres = np.array([x[train & (samples.labels == label)].mean(0) for label in range(count)])
    distance = (x[test] ** 2).sum(1)[:, None] - 2 * x[test] @ centres.T + (centres**2).sum(1)
    assert min(5 / count, 0.7) < (distance.argmin(1) == samples.labels[test]).mean() < 0.995
    assert samples.is_arrays or (90 < samples.inputs.mean() < 165 and 20 < samples.inputs.std() < 70)


def test_digits_are_scaled_and_split_by_class(tmp_path):
    digits = DATASETS.create("digits")
    samples = digits.load(tmp_path / "absent")
    assert len(samples) == 1797 and samples.inputs.min() == 0 and samples.inputs.max() == 255
    train, test = np.bincount(samples.labels[samples.train]), np.bincount(samples.labels[~samples.train])
    assert (np.abs(test / (train + test) - 0.2) < 0.003).all()
    values = samples.inputs[samples.train] / 255
    assert digits.mean == (round(values.mean(), 4),) and digits.std == (round(values.std(), 4),)
    np.random.seed(5)
    np.testing.assert_array_equal(digits.load(tmp_path).train, samples.train)
