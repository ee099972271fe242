"""DomainNet as FedBN lists it: ten classes, pickled lists, and either version of two of its archives."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.official import SIZE, Files, colour, failure, no_downloads, plain, write_files, write_zip

from pflcore.datasets import domainnet
from pflcore.errors import UserError

DOMAINS = domainnet.DomainNet.domains
CLASSES = domainnet.DomainNet.class_names
EACH = 3  # images of each class in each domain: the first is not listed, the second for testing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    no_downloads(monkeypatch)
    path = tmp_path / "data" / "domainnet"
    path.mkdir(parents=True)
    write_files(path, images())
    return path


@pytest.fixture
def net() -> domainnet.DomainNet:
    return domainnet.DomainNet(size=SIZE, lists="fedbn")


def images() -> Files:
    return {
        f"{domain}/{label}/{number}.jpg": plain(colour(d, 8 * c, number))
        for d, domain in enumerate(DOMAINS)
        for c, label in enumerate(CLASSES)
        for number in range(EACH)
    }


def lists(kind: Any = list, protocol: int = 4, pair: Any = tuple) -> Files:
    """FedBN's, of which those for training are in another order than the folders."""
    files = {}
    for domain in DOMAINS:
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
    net: domainnet.DomainNet, folder: Path, kind: Any, protocol: int
) -> None:
    write_files(folder, lists(kind, protocol))
    samples = net.load(folder)
    assert samples.source == ", ".join([*(f"folder {domain}" for domain in DOMAINS), "FedBN's lists"])
    assert len(samples) == 2 * 6 * 10 and samples.train.sum() == 6 * 10
    # The number of an image is its blue, and the first is not used.
    blue = np.rint(samples.inputs[:, 2].mean((1, 2)) / 100)
    np.testing.assert_array_equal(blue, np.where(samples.train, 2, 1))
    for split in (samples.train, ~samples.train):
        cells = {(d, c) for d, c in zip(samples.attributes["domain"].values[split], samples.labels[split], strict=True)}
        assert cells == {(d, c) for d in range(6) for c in range(10)}
    green = np.rint(samples.inputs[:, 1].mean((1, 2)) / 24)
    np.testing.assert_array_equal(green, samples.labels)


def test_only_the_first_of_each_training_list(folder: Path) -> None:
    write_files(folder, lists())
    samples = domainnet.DomainNet(size=SIZE, lists="fedbn", first=4).load(folder)
    assert samples.train.sum() == 6 * 4 and (~samples.train).sum() == 6 * 10
    for domain in range(6):
        mine = samples.train & (samples.attributes["domain"].values == domain)
        assert sorted(samples.labels[mine]) == [5, 6, 7, 8]  # the lists begin with the sixth class


@pytest.mark.parametrize("place", ["DomainNet/", "domainnet_dataset/", "domainnet_dataset.zip", "zip with a folder"])
def test_where_the_lists_may_lie(net: domainnet.DomainNet, folder: Path, place: str) -> None:
    if place.endswith("/"):
        write_files(folder / place, lists())
    else:
        inside = "DomainNet/" if "folder" in place else ""
        write_zip(folder / "domainnet_dataset.zip", {f"{inside}{name}": data for name, data in lists().items()})
    assert len(net.load(folder)) == 2 * 6 * 10


def test_a_listed_image_that_is_missing(net: domainnet.DomainNet, folder: Path) -> None:
    write_files(folder, lists())
    (folder / "painting" / "zebra" / "2.jpg").unlink()
    assert failure(net, folder) == f"{folder}: painting/zebra/2.jpg is listed but missing; put the complete data there"


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


def test_either_version_has_its_own_address_and_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned, original = (
        {s.name: s for s, _ in domainnet.DomainNet(version=v).archives} for v in ("cleaned", "original")
    )
    host = "http://csr.bu.edu/ftp/visda/2019/multi-source"
    assert cleaned["painting.zip"].url == f"{host}/groundtruth/painting.zip" and cleaned["painting.zip"].digest
    assert original["painting.zip"].url == f"{host}/painting.zip" and not original["painting.zip"].digest
    changed = {name for name in cleaned if cleaned[name] != original[name]}
    assert changed == {"clipart.zip", "painting.zip"} and original.keys() == cleaned.keys()

    path = write_zip(folder / "clipart.zip", {name: data for name, data in images().items() if "clipart" in name})
    net = domainnet.DomainNet(size=SIZE, version="original")
    size = path.stat().st_size
    assert failure(net, folder) == (
        f"{path}: has {size:,} bytes, expected 1,272,750,339; delete it and get it from {host}/clipart.zip"
    )
    assert "md5 is" in failure(domainnet.DomainNet(size=SIZE), folder)
    monkeypatch.setitem(domainnet._ORIGINALS, "clipart.zip", domainnet.Source(f"{host}/clipart.zip", size=size))
    samples = domainnet.DomainNet(size=SIZE, version="original").load(folder)
    assert len(samples) == 6 * 10 * EACH and samples.source.startswith("clipart.zip, folder infograph, ")
