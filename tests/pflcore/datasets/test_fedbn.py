"""What FedBN's authors publish: the files of Digits-Five, and lists of DomainNet in either version."""

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
from support.official import (
    SIZE,
    Files,
    Hostile,
    colour,
    failure,
    no_downloads,
    plain,
    unreachable,
    write_files,
    write_zip,
)

from pflcore.datasets import DATASETS, Dataset, _fedbn_digits, domainnet
from pflcore.errors import UserError

# --- fedbn digits ----------------------------------------------------------------------------------------------------


DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")
FOLDERS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
SHAPES = ((28, 28), (32, 32, 3), (16, 16), (32, 32, 3), (28, 28, 3))
TESTS = (3, 4, 2, 5, 3)
PART = 2.5  # so that training files hold two and three images in turn


@pytest.fixture(autouse=True)
def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    no_downloads(monkeypatch)
    rows = zip(DOMAINS, FOLDERS, SHAPES, TESTS, strict=True)
    monkeypatch.setattr(_fedbn_digits, "_DOMAINS", {domain: tuple(row) for domain, *row in rows})
    monkeypatch.setattr(_fedbn_digits, "_PART", PART)


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
    assert [_fedbn_digits._count(part) for part in range(10)] == [743, 744, 744, 744, 744, 743, 744, 744, 744, 744]
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
    assert [part.patterns for part in dataset.parts(folder)] == [("USPS/",), ("MNIST/",)]
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
    contents = files()
    contents["USPS/test.pkl"] = bytes(10_000_000)  # packs to ten thousand bytes
    trust(write_zip(path, contents), monkeypatch)
    assert failure(create(), folder) == (
        f"{path}/USPS/test.pkl: has 10,000,000 bytes where {2 * 256 + 16 + 4096:,} are enough; get the file again"
    )
    data = bytearray(write_zip(path, files()).read_bytes())
    data[60] ^= 255
    path.write_bytes(data)
    trust(path, monkeypatch)
    assert failure(create(), folder).startswith(f"{path}/MNIST/partitions/train_part0.pkl: cannot be read (")
    path.write_bytes(b"PK")
    trust(path, monkeypatch)
    assert failure(create(), folder).startswith(f"{path}: not a readable archive (")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda path: (Hostile(path), 1), "refused: the pickle asks for posix.system; use the official file"),
        (lambda _: (eval, 1), "refused: the pickle asks for builtins.eval; use the official file"),
        (
            lambda _: [1, 2, 3],
            "not a readable pickle of two columns (it holds a list instead of a pair); get the file again",
        ),
        (
            lambda _: (np.zeros(3), np.zeros(3, int)),
            "not a readable pickle of two columns (an array of type 'f8' instead of whole numbers or words); "
            "get the file again",
        ),
        (
            lambda _: (images(0, 0), 3),
            "not a readable pickle of two columns (a column is neither whole numbers nor words); get the file again",
        ),
        (
            lambda _: (images(0, 0)[:1], digits(0, 0)),
            "must be images uint8 of 2x28x28 and as many labels; get the file again",
        ),
        (
            lambda _: (images(0, 0).astype("u2"), digits(0, 0)),
            "must be images uint8 of 2x28x28 and as many labels; get the file again",
        ),
        (
            lambda _: (images(0, 0), ["zero", "one"]),
            "must be images uint8 of 2x28x28 and as many labels; get the file again",
        ),
        (lambda _: (images(0, 0), digits(0, 0) + 9), "row 1: label 10 is outside 0..9"),
    ],
)
def test_hostile_and_damaged_pickles(folder: Path, content: Any, message: str) -> None:
    target = folder.parent / "executed"
    name = "MNIST/partitions/train_part0.pkl"
    write_files(folder, files() | {name: pickle.dumps(content(target), 4)})
    assert failure(create(), folder) == f"{folder / name}: {message}"
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


# --- fedbn lists -----------------------------------------------------------------------------------------------------


NET_DOMAINS = domainnet.DomainNet.domains
CLASSES = domainnet.DomainNet.class_names
EACH = 3  # images of each class in each domain: the first is not listed, the second for testing


@pytest.fixture
def lists_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    no_downloads(monkeypatch)
    path = tmp_path / "data" / "domainnet"
    path.mkdir(parents=True)
    write_files(path, domain_images())
    return path


@pytest.fixture
def net() -> domainnet.DomainNet:
    return domainnet.DomainNet(size=SIZE, lists="fedbn")


def domain_images() -> Files:
    return {
        f"{domain}/{label}/{number}.jpg": plain(colour(d, 8 * c, number))
        for d, domain in enumerate(NET_DOMAINS)
        for c, label in enumerate(CLASSES)
        for number in range(EACH)
    }


def lists(kind: Any = list, protocol: int = 4, pair: Any = tuple) -> Files:
    """FedBN's, of which those for training are in another order than the folders."""
    files = {}
    for domain in NET_DOMAINS:
        for split, number in (("test", 1), ("train", 2)):
            labels = [*CLASSES[5:], *CLASSES[:5]] if split == "train" else list(CLASSES)
            paths = [f"DomainNet/{domain}/{label}/{number}.jpg" for label in labels]
            files[f"{domain}_{split}.pkl"] = pickle.dumps(pair([kind(paths), kind(labels)]), protocol)
    return files


def listed(**changes: Any) -> bytes:
    """The test list of real with other columns."""
    columns = {"paths": [f"DomainNet/real/{label}/1.jpg" for label in CLASSES], "labels": list(CLASSES)} | changes
    return pickle.dumps((columns["paths"], columns["labels"]), 4)


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [
        (list, 4),
        (tuple, 3),
        (np.array, 3),
        (np.array, 4),
        (np.array, 5),
        (lambda words: np.array(words, object), 4),
        (lambda words: list(np.array(words)), 4),
    ],
)
def test_the_lists_say_what_is_used_and_for_what(
    net: domainnet.DomainNet, lists_folder: Path, kind: Any, protocol: int
) -> None:
    write_files(lists_folder, lists(kind, protocol))
    samples = net.load(lists_folder)
    assert samples.source == ", ".join([*(f"folder {domain}" for domain in NET_DOMAINS), "FedBN's lists"])
    assert len(samples) == 2 * 6 * 10 and samples.train.sum() == 6 * 10
    # The number of an image is its blue, and the first is not used.
    blue = np.rint(samples.inputs[:, 2].mean((1, 2)) / 100)
    np.testing.assert_array_equal(blue, np.where(samples.train, 2, 1))
    for split in (samples.train, ~samples.train):
        cells = {(d, c) for d, c in zip(samples.attributes["domain"].values[split], samples.labels[split], strict=True)}
        assert cells == {(d, c) for d in range(6) for c in range(10)}
    green = np.rint(samples.inputs[:, 1].mean((1, 2)) / 24)
    np.testing.assert_array_equal(green, samples.labels)


def test_only_the_first_of_each_training_list(lists_folder: Path) -> None:
    write_files(lists_folder, lists())
    samples = domainnet.DomainNet(size=SIZE, lists="fedbn", first=4).load(lists_folder)
    assert samples.train.sum() == 6 * 4 and (~samples.train).sum() == 6 * 10
    for domain in range(6):
        mine = samples.train & (samples.attributes["domain"].values == domain)
        assert sorted(samples.labels[mine]) == [5, 6, 7, 8]  # the lists begin with the sixth class


@pytest.mark.parametrize("place", ["DomainNet/", "domainnet_dataset/", "domainnet_dataset.zip", "zip with a folder"])
def test_where_the_lists_may_lie(net: domainnet.DomainNet, lists_folder: Path, place: str) -> None:
    if place.endswith("/"):
        write_files(lists_folder / place, lists())
    else:
        inside = "DomainNet/" if "folder" in place else ""
        write_zip(lists_folder / "domainnet_dataset.zip", {f"{inside}{name}": data for name, data in lists().items()})
    assert len(net.load(lists_folder)) == 2 * 6 * 10


def test_a_listed_image_that_is_missing(net: domainnet.DomainNet, lists_folder: Path) -> None:
    write_files(lists_folder, lists())
    (lists_folder / "painting" / "zebra" / "2.jpg").unlink()
    assert (
        failure(net, lists_folder)
        == f"{folder}: painting/zebra/2.jpg is listed but missing; put the complete data there"
    )


def test_options_that_do_not_go_together() -> None:
    for options, message in (
        ({"lists": "fedbn", "classes_used": "all"}, "are of ten classes; set classes_used: top ten"),
        ({"first": 105}, "is of FedBN's lists; set lists: fedbn"),
    ):
        with pytest.raises(UserError, match=message):
            domainnet.DomainNet(**options)
    assert domainnet.DomainNet(lists="fedbn", first=105).about == (630, 4_573)
    assert sum(domainnet.DomainNet(lists="fedbn").about) == domainnet.DomainNet().about[0]


# --- versions of clipart and painting --------------------------------------------------------------------------------


def test_either_version_has_its_own_address_and_check(lists_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned, original = (
        {s.name: s for s, _ in domainnet.DomainNet(version=v).archives} for v in ("cleaned", "original")
    )
    host = "http://csr.bu.edu/ftp/visda/2019/multi-source"
    assert cleaned["painting.zip"].url == f"{host}/groundtruth/painting.zip" and cleaned["painting.zip"].digest
    assert original["painting.zip"].url == f"{host}/painting.zip" and not original["painting.zip"].digest
    changed = {name for name in cleaned if cleaned[name] != original[name]}
    assert changed == {"clipart.zip", "painting.zip"} and original.keys() == cleaned.keys()

    path = write_zip(
        lists_folder / "clipart.zip", {name: data for name, data in domain_images().items() if "clipart" in name}
    )
    net = domainnet.DomainNet(size=SIZE, version="original")
    size = path.stat().st_size
    assert failure(net, lists_folder) == (
        f"{path}: has {size:,} bytes, expected 1,272,750,339; delete it and get it from {host}/clipart.zip"
    )
    assert "md5 is" in failure(domainnet.DomainNet(size=SIZE), lists_folder)
    monkeypatch.setitem(domainnet._ORIGINALS, "clipart.zip", domainnet.Source(f"{host}/clipart.zip", size=size))
    samples = domainnet.DomainNet(size=SIZE, version="original").load(lists_folder)
    assert len(samples) == 6 * 10 * EACH and samples.source.startswith("clipart.zip, folder infograph, ")
