"""Digits-Five from the files that FedBN's authors publish: read as they are, restricted, and bounded in size."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from PIL import Image
from support.official import Files, Hostile, failure, no_downloads, unreachable, write_files, write_zip

from pflcore.datasets import DATASETS, Dataset, _fedbn_digits

DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")
FOLDERS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
SHAPES = ((28, 28), (32, 32, 3), (16, 16), (32, 32, 3), (28, 28, 3))
TESTS = (3, 4, 2, 5, 3)
PART = 2.5  # so that training files hold two and three images in turn


@pytest.fixture(autouse=True)
def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    no_downloads(monkeypatch)
    rows = zip(DOMAINS, FOLDERS, SHAPES, TESTS, strict=True)
    monkeypatch.setattr(
        _fedbn_digits,
        "_DOMAINS",
        {domain: _fedbn_digits._Domain(name, (*shape, 1)[:3], tests) for domain, name, shape, tests in rows},
    )
    monkeypatch.setattr(_fedbn_digits, "PART_SIZE", PART)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "digits5"
    path.mkdir(parents=True)
    return path


def create(**options: Any) -> Dataset:
    return DATASETS.create("digits5", source="fedbn", **options)


def images(domain: int, part: int) -> np.ndarray:
    """Those of a training file, or of the test file as part 10."""
    count = TESTS[domain] if part == 10 else int(PART * (part + 1)) - int(PART * part)
    return np.random.default_rng([domain, part]).integers(0, 256, (count, *SHAPES[domain]), np.uint8)


def digits(domain: int, part: int) -> np.ndarray:
    return (np.arange(len(images(domain, part))) + 3 * domain + part) % 10


def files(protocol: int = 4) -> Files:
    """All 55 pickles."""
    names = {part: f"partitions/train_part{part}.pkl" for part in range(10)} | {10: "test.pkl"}
    return {
        f"{FOLDERS[domain]}/{name}": pickle.dumps((images(domain, part), digits(domain, part)), protocol)
        for domain in range(5)
        for part, name in names.items()
    }


def scaled(image: np.ndarray) -> np.ndarray:
    """As torchvision does it: of colour or grey [H, W], to [3, 28, 28]."""
    small = np.asarray(Image.fromarray(image).resize((28, 28), Image.Resampling.BILINEAR))
    return np.stack([small] * 3) if small.ndim == 2 else small.transpose(2, 0, 1)


def test_the_sizes_are_those_that_the_papers_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    tests = 14_000 + 19_858 + 1_860 + 97_791 + 14_000
    assert create().expected == (5 * 743, tests) and create(parts_used=10).expected == (5 * 7_438, tests)
    assert DATASETS.create("digits5").expected[1] == tests


@pytest.mark.parametrize("parts", [1, 2, 10])
def test_images_labels_and_splits_are_those_of_the_files(folder: Path, parts: int) -> None:
    write_files(folder, files())
    dataset = create(parts_used=parts)
    assert dataset.found(folder)
    samples = dataset.load(folder)
    assert samples.source == f"FedBN's files, {parts} of 10 for training"
    end = 0
    for domain in range(5):
        for part in [*range(parts), 10]:
            expected = np.stack([scaled(image) for image in images(domain, part)])
            rows = slice(end, end + len(expected))
            np.testing.assert_array_equal(samples.inputs[rows], expected)
            assert samples.labels[rows].tolist() == digits(domain, part).tolist()
            assert samples.train[rows].tolist() == [part < 10] * len(expected)
            assert set(samples.attributes["domain"].values[rows]) == {domain}
            end += len(expected)
    assert end == len(samples) and samples.attributes["domain"].names == DOMAINS


def test_domains_may_be_a_part_of_them_in_another_order(folder: Path) -> None:
    write_files(folder, {name: data for name, data in files().items() if name.startswith(("USPS/", "MNIST/"))})
    dataset = create(domain_list=("USPS", "MNIST"))
    assert dataset.expected == (2 * len(images(0, 0)), TESTS[2] + TESTS[0])
    assert [part.patterns for part in dataset.data_files(folder)] == [("USPS/",), ("MNIST/",)]
    samples = dataset.load(folder)
    first, last = images(2, 0), digits(0, 10).tolist()
    np.testing.assert_array_equal(samples.inputs[: len(first)], np.stack([scaled(image) for image in first]))
    assert samples.labels[-len(last) :].tolist() == last
    assert samples.attributes["domain"].names == ("USPS", "MNIST")
    sizes = len(first) + TESTS[2], len(images(0, 0)) + TESTS[0]
    assert samples.attributes["domain"].values.tolist() == [0] * sizes[0] + [1] * sizes[1]


@pytest.mark.parametrize("root", ["", "digit_dataset/", "data/"])
def test_the_archive_is_read_as_it_is(folder: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(folder.parent / "other", files())
    same = create().load(folder.parent / "other")
    noise = {"README": b"x", f"{root}MNIST/partitions/._train_part0.txt": b"x", "__MACOSX/MNIST/._test.pkl": b"x"}
    path = write_zip(folder / "digit_dataset.zip", {f"{root}{name}": data for name, data in files().items()} | noise)
    assert create().found(folder)
    assert failure(create(), folder).startswith(f"{path}: sha256 is ")
    trust(path, monkeypatch)
    samples = create().load(folder)
    np.testing.assert_array_equal(samples.inputs, same.inputs)
    assert sorted(folder.iterdir()) == [path]


def test_hostile_archives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(folder / "digit_dataset.zip", files() | {"MNIST/../../evil.pkl": b"x"})
    trust(path, monkeypatch)
    assert "points outside of the archive" in failure(create(), folder)
    data = bytearray(write_zip(path, files()).read_bytes())
    data[60] ^= 255
    path.write_bytes(data)
    trust(path, monkeypatch)
    assert failure(create(), folder).startswith(f"{path}: cannot be read (")
    path.write_bytes(b"PK")
    trust(path, monkeypatch)
    assert failure(create(), folder).startswith(f"{path}: cannot be read (")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda path: (Hostile(path), 1), "cannot be read (refused: the pickle asks for posix.system); "),
        (lambda _: [1, 2, 3], "cannot be read ("),
        (lambda _: (images(0, 0), 3), "cannot be read ("),
        (lambda _: (images(0, 0)[:1], digits(0, 0)), "cannot be read ("),
        (lambda _: (images(0, 0).astype("u2"), digits(0, 0)), "cannot be read (images of uint16); "),
        (lambda _: (images(0, 0), ["zero", "one"]), "cannot be read ("),
    ],
)
def test_hostile_and_damaged_pickles(folder: Path, content: Any, message: str) -> None:
    target = folder.parent / "executed"
    name = "MNIST/partitions/train_part0.pkl"
    write_files(folder, files() | {name: pickle.dumps(content(target), 4)})
    assert failure(create(), folder).startswith(f"{folder / name}: {message}")
    assert not target.exists()


def test_what_is_missing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    assert not create().found(folder)
    message = failure(create(), folder)
    assert message.startswith(f"{folder}: no data here, and https://huggingface.co/datasets/Jemary/FedBN_Dataset/")
    assert message.endswith(
        "put digit_dataset.zip into that folder, or what it unpacks to, MNIST, SVHN, USPS, SynthDigits, MNIST_M"
    )
    write_files(folder, files())
    (folder / "SynthDigits" / "test.pkl").unlink()
    assert failure(create(), folder).startswith(f"{folder}: has no SynthDigits/test.pkl; get the file again from https")


def trust(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(_fedbn_digits, "ARCHIVE", dataclasses.replace(_fedbn_digits.ARCHIVE, digest=digest))
