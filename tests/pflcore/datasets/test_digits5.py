"""Digits-Five: composed of five datasets, and as FedBN's authors publish it, in miniature."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.digit_files import (
    COLOUR,
    GREY,
    LABELS,
    SMALL,
    TEST,
    TRAIN,
    mnistm_files,
    photographs,
    shrink,
    write_mnist,
    write_svhn,
    write_synthdigits,
    write_usps_hdf5,
)  # fmt: skip
from support.official import Files, Hostile, failure, trust, write_files, write_zip

from pflcore.datasets import DATASETS, Dataset, digits5
from pflcore.errors import UserError

DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")
EACH = TRAIN + TEST


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    trust(monkeypatch)


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """The folder of Digits-Five, which is not there, beside those of the five datasets."""
    write_mnist(tmp_path / "mnist", compressed=False)
    write_svhn(tmp_path / "svhn")
    write_usps_hdf5(tmp_path / "usps" / "usps.h5")
    write_synthdigits(tmp_path / "synthdigits")
    write_files(tmp_path / "mnistm", mnistm_files() | photographs())
    return tmp_path / "digits5"


def create(**options: Any) -> Dataset:
    return DATASETS.create("digits5", **options)


def scaled(image: np.ndarray) -> np.ndarray:
    """Return what torchvision makes of colour [H, W, 3] or grey [H, W]: [3, 28, 28]."""
    small = np.asarray(Image.fromarray(image).resize((28, 28), Image.Resampling.BILINEAR))
    return np.stack([small] * 3) if small.ndim == 2 else small.transpose(2, 0, 1)


def test_the_sizes_are_those_of_fedbn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    sizes = [(56_000, 14_000), (79_431, 19_858), (7_438, 1_860), (391_162, 97_791), (56_000, 14_000)]
    train, test = map(sum, zip(*sizes, strict=True))
    assert create().expected == create().counts == (train, test)
    assert create(source="fedbn").expected == (5 * 743, test)
    assert create(source="fedbn", parts_used=10).expected == (5 * 7_438, test)
    official = create(split="official").expected
    assert official == (60_000 + 73_257 + 7_291 + 479_400 + 60_000, 10_000 + 26_032 + 2_007 + 9_553 + 10_000)


@pytest.mark.parametrize("source", ["built", "official"])
def test_both_splits(five: Path, source: str) -> None:
    dataset = create(split="official", mnistm=source)
    assert dataset.found(five)
    samples = dataset.load(five)
    assert not five.exists() and samples.attributes["domain"].names == DOMAINS
    assert samples.attributes["domain"].values.tolist() == [n for n in range(5) for _ in range(EACH)]
    assert samples.labels.tolist() == (LABELS[0] + LABELS[1]) * 5
    assert samples.train.tolist() == ([True] * TRAIN + [False] * TEST) * 5
    assert samples.shape == dataset.shape == (3, 28, 28) and samples.mean == samples.std == (0.5, 0.5, 0.5)
    np.testing.assert_array_equal(samples.inputs[:EACH], np.repeat(np.concatenate(GREY), 3, axis=1))
    for domain in (1, 3, *([4] if source == "official" else [])):
        np.testing.assert_array_equal(samples.inputs[domain * EACH + 4], scaled(COLOUR[0][4].transpose(1, 2, 0)))
    np.testing.assert_array_equal(samples.inputs[2 * EACH + TRAIN + 2], scaled(SMALL[1][2, 0]))
    assert samples.source.startswith("MNIST: train-images-idx3-ubyte, ") and "; USPS: usps.h5; " in samples.source
    assert samples.source.endswith("MNIST-M: mnist_m" if source == "official" else "and BSDS500 (seed 0)")
    pooled = create(mnistm=source).load(five)
    np.testing.assert_array_equal(pooled.inputs, samples.inputs)
    tests = [~pooled.train[pooled.attributes["domain"].values == domain] for domain in range(5)]
    assert [int(test.sum()) for test in tests] == [5] * 5
    assert max(np.bincount(samples.labels[:EACH][test]).max() for test in tests) == 1
    assert len({tuple(np.flatnonzero(test)) for test in tests}) > 1, "every domain has a draw of its own"
    large = create(size=32, mnistm=source).load(five)
    np.testing.assert_array_equal(large.inputs[EACH : 2 * EACH], np.concatenate(COLOUR))


def test_a_pooled_test_set_is_a_fifth_of_every_class() -> None:
    sizes = [1000, 501, 502, 503, 504, 5, 4, 3, 0, 12]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    held = np.bincount(labels[~digits5.draw_train(labels, "SVHN")], minlength=10)
    assert held.tolist() == [200, 100, 100, 101, 101, 1, 1, 1, 0, 2]


def test_two_domains_need_no_others(five: Path) -> None:
    whole = create().load(five)
    for name in ("svhn", "synthdigits"):
        (five.parent / name).rename(five.parent / f"no {name}")
    dataset = create(domain_list=("MNIST-M", "USPS"))
    assert dataset.found(five) and {part.what.split(",")[0] for part in dataset.data_files(five)} == {"MNIST-M", "USPS"}
    samples = dataset.load(five)
    assert samples.attributes["domain"].names == dataset.attributes["domain"] == ("MNIST-M", "USPS")
    rows = np.r_[4 * EACH : 5 * EACH, 2 * EACH : 3 * EACH]
    np.testing.assert_array_equal(samples.inputs, whole.inputs[rows])
    np.testing.assert_array_equal(samples.train, whole.train[rows])
    for names in ((), ("USPS", "USPS"), ("USPS", "usps")):
        with pytest.raises(UserError, match="domain_list"):
            create(domain_list=names)


def test_what_a_person_has_to_get_is_named_before_anything_is_downloaded(five: Path) -> None:
    for name in ("svhn", "synthdigits", "mnistm"):
        (five.parent / name).rename(five.parent / f"no {name}")
    for name in ("synthdigits", "mnistm", "svhn"):
        assert not create().found(five)
        assert failure(create(), five).startswith(f"{five.parent / name}: ")
        (five.parent / f"no {name}").rename(five.parent / name)


# --- FedBN's files -------------------------------------------------------------------------------------------------

FOLDERS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
SHAPES = ((28, 28), (32, 32, 3), (16, 16), (32, 32, 3), (28, 28, 3))
TESTS = (3, 4, 2, 5, 3)
PART = 2.5  # so that training files hold two and three images in turn


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = zip(DOMAINS, FOLDERS, SHAPES, TESTS, strict=True)
    known = {domain: (name, (*shape, 1)[:3], tests) for domain, name, shape, tests in rows}
    monkeypatch.setattr(digits5, "PUBLISHED", known)
    monkeypatch.setattr(digits5, "PART_SIZE", PART)
    (tmp_path / "digits5").mkdir()
    return tmp_path / "digits5"


def images(domain: int, part: int) -> np.ndarray:
    """Return those of a training file, or of the test file as part 10."""
    count = TESTS[domain] if part == 10 else int(PART * (part + 1)) - int(PART * part)
    return np.random.default_rng([domain, part]).integers(0, 256, (count, *SHAPES[domain]), np.uint8)


def labels_of(domain: int, part: int) -> np.ndarray:
    return (np.arange(len(images(domain, part))) + 3 * domain + part) % 10


def write_published(folder: Path, root: str = "", svhn: bytes | None = None) -> Path:
    """Write the archive of all 55 pickles, the first training file of SVHN perhaps another one."""
    names = {part: f"partitions/train_part{part}.pkl" for part in range(10)} | {10: "test.pkl"}
    files: Files = {"README": b"x", "__MACOSX/MNIST/._test.pkl": b"x"}
    for domain in range(5):
        for part, name in names.items():
            data = pickle.dumps((images(domain, part), labels_of(domain, part)))
            files[f"{root}{FOLDERS[domain]}/{name}"] = svhn if svhn is not None and (domain, part) == (1, 0) else data
    return write_zip(folder / "digit_dataset.zip", {name: data for name, data in files.items() if data})


@pytest.mark.parametrize(("parts", "root"), [(1, ""), (10, "data/")])
def test_images_labels_and_splits_are_those_of_the_files(published: Path, parts: int, root: str) -> None:
    path = write_published(published, root)
    dataset = create(source="fedbn", parts_used=parts, domain_list=("USPS", *DOMAINS[:2], *DOMAINS[3:]))
    assert dataset.found(published)
    samples, end = dataset.load(published), 0
    assert samples.source == f"FedBN's files, {parts} of 10 for training"
    for number, domain in enumerate((2, 0, 1, 3, 4)):
        for part in [*range(parts), 10]:
            expected = np.stack([scaled(image) for image in images(domain, part)])
            rows = slice(end, end + len(expected))
            np.testing.assert_array_equal(samples.inputs[rows], expected)
            assert samples.labels[rows].tolist() == labels_of(domain, part).tolist()
            assert samples.train[rows].tolist() == [part < 10] * len(expected)
            assert set(samples.attributes["domain"].values[rows]) == {number}
            end += len(expected)
    assert end == len(samples) and list(published.iterdir()) == [path]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is missing"),
        (pickle.dumps((images(1, 0).astype(float), labels_of(1, 0))), "images of float64"),
        (pickle.dumps((images(1, 0), labels_of(1, 0)[:-1])), "cannot be read ("),
        (pickle.dumps(Hostile(Path("/tmp/evil-of-pfl"))), "refused: the pickle asks for posix.system"),
    ],
)
def test_damaged_pickles(published: Path, data: bytes, problem: str) -> None:
    path = write_published(published, svhn=data)
    message = failure(create(source="fedbn"), published)
    assert message.startswith(f"{path}/SVHN/partitions/train_part0.pkl: ") and problem in message
    assert not Path("/tmp/evil-of-pfl").exists()
