"""Digits-Five: five sets of digits and their union, whole and in part."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pooch
import pytest
from PIL import Image
from support.digit_files import (
    LABELS,
    TEST,
    TRAIN,
    digit_images,
    mnistm_files,
    photographs,
    pixels,
    shrink,
    usps_images,
    write_mnist,
    write_svhn,
    write_synthdigits,
    write_usps_hdf5,
)
from support.official import Trust, failure, unreachable, write_files

from pflcore.datasets import DATASETS, digits5
from pflcore.errors import UserError

DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")
EACH = TRAIN + TEST


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def five(tmp_path: Path, trust: Trust) -> Path:
    """The folders of the five datasets, and the one of their union, which is not there."""
    write_mnist(tmp_path / "mnist", compressed=False)
    write_svhn(tmp_path / "svhn", trust)
    write_usps_hdf5(tmp_path / "usps" / "usps.h5")
    write_synthdigits(tmp_path / "synthdigits")
    write_files(tmp_path / "mnistm", mnistm_files() | photographs())
    return tmp_path / "digits5"


def test_digits5_has_the_sizes_of_fedbn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    sizes = [(56_000, 14_000), (79_431, 19_858), (7_438, 1_860), (391_162, 97_791), (56_000, 14_000)]
    dataset = DATASETS.create("digits5")
    for size, (domain, part) in zip(sizes, dataset.domains.items(), strict=True):
        whole = sum(part.expected)
        assert (whole - digits5._fifth(whole), digits5._fifth(whole)) == size, domain
    assert dataset.expected == dataset.counts == tuple(map(sum, zip(*sizes, strict=True)))
    assert DATASETS.create("digits5", split="official").expected == (
        60_000 + 73_257 + 7_291 + 479_400 + 60_000,
        10_000 + 26_032 + 2_007 + 9_553 + 10_000,
    )


@pytest.mark.parametrize("source", ["built", "official"])
def test_digits5_official_split(five: Path, source: str) -> None:
    dataset = DATASETS.create("digits5", split="official", mnistm=source)
    assert dataset.found(five)
    samples = dataset.load(five)
    assert not five.exists()
    assert samples.attributes["domain"].names == DOMAINS
    assert samples.attributes["domain"].values.tolist() == [n for n in range(5) for _ in range(EACH)]
    assert samples.labels.tolist() == (LABELS[0] + LABELS[1]) * 5
    assert samples.train.tolist() == ([True] * TRAIN + [False] * TEST) * 5
    assert samples.shape == dataset.shape == (3, 28, 28) and samples.mean == samples.std == (0.5, 0.5, 0.5)
    grey = np.concatenate(digit_images(28, 28))
    np.testing.assert_array_equal(samples.inputs[:EACH], np.repeat(grey, 3, axis=1))
    scaled = Image.fromarray(pixels(0, 3, 32, 32)[4].transpose(1, 2, 0)).resize((28, 28), Image.Resampling.BILINEAR)
    for domain in (1, 3, *([4] if source == "official" else [])):
        np.testing.assert_array_equal(samples.inputs[domain * EACH + 4], np.asarray(scaled).transpose(2, 0, 1))
    small = Image.fromarray(usps_images()[1][2, 0]).resize((28, 28), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(samples.inputs[2 * EACH + TRAIN + 2], np.stack([np.asarray(small)] * 3))
    assert samples.source.startswith("MNIST: train-images-idx3-ubyte, ")
    assert "; SVHN: train_32x32.mat, test_32x32.mat; USPS: usps.h5; SynthDigits: synth" in samples.source
    assert samples.source.endswith("MNIST-M: mnist_m" if source == "official" else "and BSDS500 (seed 0)")


def test_digits5_pooled_split(five: Path) -> None:
    samples = DATASETS.create("digits5").load(five)
    official = DATASETS.create("digits5", split="official").load(five)
    np.testing.assert_array_equal(samples.inputs, official.inputs)
    np.testing.assert_array_equal(samples.labels, official.labels)
    domains = samples.attributes["domain"].values
    tests = [~samples.train[domains == domain] for domain in range(5)]
    assert [int(test.sum()) for test in tests] == [5] * 5
    labels = samples.labels[:EACH]
    for test in tests:
        held = np.bincount(labels[test], minlength=10)
        assert held.max() <= 1, "each class has two or three images, so none gives two to the test set"
    assert len({tuple(np.flatnonzero(test)) for test in tests}) > 1, "every domain has a draw of its own"
    np.testing.assert_array_equal(DATASETS.create("digits5", size=32).load(five).train, samples.train)


def test_digits5_of_two_domains_has_their_samples_and_needs_no_others(five: Path) -> None:
    whole = DATASETS.create("digits5").load(five)
    for name in ("mnist", "svhn", "synthdigits"):
        (five.parent / name).rename(five.parent / f"no {name}")
    write_mnist(five.parent / "mnist", compressed=False)  # MNIST-M is made of it
    dataset = DATASETS.create("digits5", domain_list=("MNIST-M", "USPS"))
    assert dataset.found(five) and {part.what.split(",")[0] for part in dataset.parts(five)} == {"MNIST-M", "USPS"}
    samples = dataset.load(five)
    assert samples.attributes["domain"].names == dataset.attributes["domain"] == ("MNIST-M", "USPS")
    assert samples.attributes["domain"].values.tolist() == [0] * EACH + [1] * EACH
    rows = np.r_[4 * EACH : 5 * EACH, 2 * EACH : 3 * EACH]
    np.testing.assert_array_equal(samples.inputs, whole.inputs[rows])
    np.testing.assert_array_equal(samples.labels, whole.labels[rows])
    np.testing.assert_array_equal(samples.train, whole.train[rows])
    assert DATASETS.create("digits5").attributes["domain"] == DOMAINS


@pytest.mark.parametrize("names", [(), ("USPS", "USPS"), ("USPS", "usps")])
def test_domains_are_distinct_and_known(names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="domain_list"):
        DATASETS.create("digits5", domain_list=names)


def test_a_pooled_test_set_is_a_fifth_of_every_class() -> None:
    sizes = [1000, 501, 502, 503, 504, 5, 4, 3, 0, 12]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    train = digits5._draw(labels, "SVHN")
    held = np.bincount(labels[~train], minlength=10)
    assert held.sum() == -(-sum(sizes) // 5)
    assert (np.abs(held - np.array(sizes) / 5) < 1).all()
    assert held.tolist() == [200, 100, 100, 101, 101, 1, 1, 1, 0, 2]


# --- the five by themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "svhn", "usps"])
@pytest.mark.parametrize("there", [True, False])
def test_what_can_be_downloaded_but_is_not_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, there: bool
) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    folder = tmp_path / name
    if there:
        folder.mkdir()
    dataset = DATASETS.create(name)
    assert not dataset.found(folder)
    message = failure(dataset, folder)
    assert message.startswith(f"{folder}: no data here, and http")
    assert "could not be downloaded (OSError); put" in message


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", (0.1307,), (0.3081,)),
        ("usps", (0.2545,), (0.3846,)),
        ("svhn", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        ("synthdigits", None, None),
        ("mnistm", None, None),
    ],
)
def test_real_data_where_there_is_some(
    monkeypatch: pytest.MonkeyPatch, name: str, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> None:
    monkeypatch.undo()
    root = os.environ.get("PFL_DATA")
    dataset = DATASETS.create(name)
    if root and dataset.found(Path(root) / name):
        samples = dataset.load(Path(root) / name)
        assert (np.bincount(samples.labels[samples.train]) > samples.train.sum() / 20).all()
        if mean and std:
            inputs = samples.inputs[samples.train]
            np.testing.assert_allclose(inputs.mean((0, 2, 3)) / 255, mean, atol=1e-4)
            np.testing.assert_allclose(inputs.std((0, 2, 3)) / 255, std, atol=1e-4)
