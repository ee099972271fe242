"""DomainNet: its archives and lists in miniature, whole and damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.official import (
    EACH,
    SIZE,
    Files,
    Trust,
    assert_every_image,
    colour,
    failure,
    no_downloads,
    plain,
    trusting,
    write_files,
    write_zip,
)

from pflcore.datasets import domainnet


def net_files(classes: tuple[str, ...] = domainnet.DomainNet.class_names) -> Files:
    """DomainNet with one class that is not among the top ten; quickdraw's images are PNG."""
    files = {}
    for d, domain in enumerate(domainnet.DomainNet.domains):
        kind, suffix = ("PNG", ".png") if domain == "quickdraw" else ("JPEG", ".jpg")
        for c, label in enumerate((*classes, "axe") if "axe" not in classes else classes):
            for number in range(EACH):
                name = f"{domain}/{label}/{domain}_{c + 1:03}_{number + 1:06}{suffix}"
                files[name] = plain(colour(d, c % 80, number), kind)
    return files


def write_net_zips(folder: Path, contents: Files) -> None:
    for domain in domainnet.DomainNet.domains:
        part = {name: data for name, data in contents.items() if name.startswith(f"{domain}/")}
        write_zip(folder / f"{domain}.zip", part)


def write_lists(folder: Path, names: list[str], *, test: Callable[[str], bool]) -> None:
    """The official lists, with class numbers that mean nothing here."""
    for domain in domainnet.DomainNet.domains:
        for split in ("train", "test"):
            chosen = [n for n in names if n.startswith(f"{domain}/") and test(n) == (split == "test")]
            (folder / f"{domain}_{split}.txt").write_text("".join(f"{name} 7\n" for name in chosen))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a dataset, in the folder of all data; nothing is downloaded."""
    no_downloads(monkeypatch)
    (tmp_path / "data" / "here").mkdir(parents=True)
    return tmp_path / "data" / "here"


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return trusting(monkeypatch, domainnet.DomainNet)


@pytest.fixture
def net() -> domainnet.DomainNet:
    return domainnet.DomainNet(size=SIZE)


@pytest.mark.parametrize("zipped", [True, False])
def test_domainnet_without_lists(net: domainnet.DomainNet, folder: Path, trust: Trust, zipped: bool) -> None:
    write_net_zips(folder, net_files()) if zipped else write_files(folder, net_files())
    trust(folder)
    names = [f"{domain}.zip" if zipped else f"folder {domain}" for domain in net.domains]
    assert_every_image(net, folder, ", ".join(names))


def test_domainnet_with_lists_and_domains_of_both_kinds(net: domainnet.DomainNet, folder: Path, trust: Trust) -> None:
    files = net_files()
    write_net_zips(folder, files)
    (folder / "real.zip").unlink()
    write_files(folder, {name: data for name, data in files.items() if name.startswith("real/")})
    trust(folder)
    dropped = "sketch/bird/sketch_001_000001.jpg"  # as in the cleaned version
    write_lists(folder, [name for name in files if name != dropped], test=lambda name: "_000002" in name)
    samples = net.load(folder)
    assert len(samples) == 6 * 10 * EACH - 1 and samples.train.sum() == 6 * 10 - 1
    blue = samples.inputs[:, 2].mean((1, 2))
    assert ((blue < 50) == samples.train).all()  # the second image of each class is the blue one
    assert np.bincount(samples.labels).tolist() == [11, *[12] * 9]
    domains = samples.attributes["domain"]
    assert np.bincount(domains.values).tolist() == [20, 20, 20, 20, 20, 19]
    assert samples.source == (
        "clipart.zip, infograph.zip, painting.zip, quickdraw.zip, folder real, sketch.zip, official lists"
    )


def test_faulty_lists(net: domainnet.DomainNet, folder: Path) -> None:
    files = net_files()
    write_files(folder, files)
    write_lists(folder, list(files), test=lambda name: "_000002" in name)
    train, test = folder / "real_train.txt", folder / "real_test.txt"
    good = train.read_text()
    for line, problem in (
        ("real/bird/x.jpg", ""),
        ("real/bird 3", ""),
        ("sketch/bird/x.jpg 3", ""),
        ("../x y/z 3", ""),
    ):
        train.write_text(f"{line}\n{good}{problem}")
        assert failure(net, folder) == (
            f"{train}: line 1: {line!r} is not '<domain>/<class>/<image> <number>' of this domain; get the official "
            "list again"
        )
    train.write_text(good + good.splitlines()[0] + "\n")
    assert failure(net, folder) == (
        f"{train}: line 12: real/bird/real_001_000001.jpg is listed twice; get the official list again"
    )
    train.write_text(good + "real/bird/absent.jpg 3\n")
    assert failure(net, folder) == f"{folder}: real/bird/absent.jpg is listed but missing; put the complete data there"
    train.write_bytes(b"\xff\xfe\x00")
    assert failure(net, folder).startswith(f"{train}: not a readable list (")
    train.write_text(good)
    test.unlink()
    assert failure(net, folder) == (f"{folder}: real_test.txt is missing; put the lists of all domains there, or none")
