"""Office-31 and Office-Home: their archives and folders in miniature, whole and damaged."""

from __future__ import annotations

import os
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
    encoded,
    failure,
    no_downloads,
    plain,
    trusting,
    write_files,
    write_tar,
    write_zip,
)

from pflcore.datasets import DATASETS, domainnet, office31, officehome, stand_in
from pflcore.datasets._image_trees import DomainImages

OFFICE = "domain_adaptation_images.tar.gz"
HOME = "OfficeHomeDataset_10072016.zip"


def office_files() -> Files:
    return {
        f"{domain}/images/{label}/frame_{number + 1:04}.jpg": plain(colour(d, c, number))
        for d, domain in enumerate(office31.Office31.domains)
        for c, label in enumerate(office31.Office31.class_names)
        for number in range(EACH)
    }


def home_files() -> Files:
    return {
        f"OfficeHomeDataset_10072016/{domain}/{label}/{number + 1:05}.jpg": plain(colour(d, c, number))
        for d, domain in enumerate(officehome.OfficeHome.domains)
        for c, label in enumerate(officehome.OfficeHome.class_names)
        for number in range(EACH)
    } | {"OfficeHomeDataset_10072016/ImageInfo.csv": b"x", "OfficeHomeDataset_10072016/Art/Bed/._00001.jpg": b"x"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a dataset, in the folder of all data; nothing is downloaded."""
    no_downloads(monkeypatch)
    monkeypatch.setattr(office31.Office31, "counts", (3 * 31 * EACH, 0))
    monkeypatch.setattr(officehome.OfficeHome, "counts", (4 * 65 * EACH, 0))
    (tmp_path / "data" / "here").mkdir(parents=True)
    return tmp_path / "data" / "here"


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return trusting(monkeypatch, office31.Office31, officehome.OfficeHome)


@pytest.fixture
def office() -> DomainImages:
    return office31.Office31(size=SIZE)


@pytest.fixture
def home() -> DomainImages:
    return officehome.OfficeHome(size=SIZE)


def test_official_facts() -> None:
    assert office31.Office31.counts == (2817 + 498 + 795, 0)
    assert officehome.OfficeHome.counts == (2427 + 4365 + 4439 + 4357, 0)
    assert (office31.Office31().classes, officehome.OfficeHome().classes) == (31, 65)
    assert len(set(domainnet.DomainNet(classes_used="all").class_names)) == 345
    assert set(domainnet.DomainNet().class_names) < set(domainnet.DomainNet(classes_used="all").class_names)
    for cls in (office31.Office31, officehome.OfficeHome, domainnet.DomainNet):
        assert list(cls().class_names) == sorted(cls().class_names)
        assert stand_in(cls(size=SIZE), 130, 65).attributes["domain"].names == cls.domains


def test_office_31_from_its_archive(office: DomainImages, folder: Path, trust: Trust) -> None:
    stray = ("amazon/label.txt", "other/images/bike/frame_0001.jpg", "amazon/masks/bike/frame_0001.jpg")
    # The order of an archive is nobody's choice.
    write_tar(folder / OFFICE, dict(reversed(office_files().items())) | dict.fromkeys(stray, b"x"))
    trust(folder)
    assert office.found(folder)
    assert_every_image(office, folder, OFFICE)
    assert [path.name for path in folder.iterdir()] == [OFFICE]


@pytest.mark.parametrize("inside", [".", "domain_adaptation_images"])
def test_office_31_unpacked(office: DomainImages, folder: Path, inside: str) -> None:
    write_files(folder / inside, office_files())
    assert office.found(folder)
    assert_every_image(office, folder, "folder amazon, folder dslr, folder webcam")


def test_office_home_from_its_archive(home: DomainImages, folder: Path, trust: Trust) -> None:
    write_zip(folder / HOME, dict(reversed(home_files().items())))
    trust(folder)
    assert_every_image(home, folder, HOME)


def test_office_home_unpacked(home: DomainImages, folder: Path) -> None:
    write_files(folder, home_files())
    assert_every_image(home, folder, "folder Art, folder Clipart, folder Product, folder Real World")


def test_images_are_scaled_as_a_whole(office: DomainImages, folder: Path) -> None:
    files = office_files()
    halves = np.zeros((3, 60, 100), np.uint8)
    halves[:, :, 50:] = 255
    files["amazon/images/back_pack/frame_0001.jpg"] = encoded(halves)
    write_files(folder, files)
    first = office.load(folder).inputs[0]
    assert first[:, :, : SIZE // 2 - 1].max() < 30 and first[:, :, SIZE // 2 + 1 :].min() > 225


def test_incomplete_data(office: DomainImages, home: DomainImages, folder: Path, trust: Trust) -> None:
    files = office_files()
    del files["dslr/images/mug/frame_0001.jpg"]
    write_files(folder, files)
    assert failure(office, folder) == (
        f"{folder}: office31 has {3 * 31 * EACH} training and 0 test samples, found {3 * 31 * EACH - 1} and 0; "
        "put the complete data there"
    )
    (folder / "dslr/images/mug/frame_0002.jpg").unlink()
    assert failure(office, folder) == f"{folder}: dslr has no images of mug; put the complete data there"
    (folder / "dslr").rename(folder / "camera")
    assert failure(office, folder) == (
        f"{folder}: has neither {OFFICE} nor a folder 'dslr'; put the complete data there"
    )
    write_zip(folder / HOME, {name: data for name, data in home_files().items() if "Real World" not in name})
    trust(folder)
    assert failure(home, folder) == f"{folder}: Real World has no images of Alarm_Clock; put the complete data there"


@pytest.mark.parametrize("name", ["office31", "officehome", "domainnet"])
def test_real_data(name: str) -> None:
    root = Path(os.environ.get("PFL_DATA", "/nonexistent"))
    dataset = DATASETS.create(name, size=SIZE)
    if not dataset.found(root / name):
        pytest.skip("no real data")
    samples = dataset.load(root / name)
    counts = np.bincount(samples.attributes["domain"].values).tolist()
    assert {"office31": [2817, 498, 795], "officehome": [2427, 4365, 4439, 4357]}.get(name, counts) == counts
