"""Office-31, Office-Home and DomainNet: archives, folders and lists in miniature, whole and damaged."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.official import SIZE, Files, Hostile, failure, offline, plain, trust, write_files, write_tar, write_zip

from pflcore.datasets import DATASETS
from pflcore.datasets.domain_images import DomainImages, Office31, OfficeHome
from pflcore.datasets.domainnet import DomainNet
from pflcore.errors import UserError

EACH = 2  # images of each class in each domain
HOME = "OfficeHomeDataset_10072016"
INSIDE = {Office31: "{}/images", OfficeHome: f"{HOME}/{{}}", DomainNet: "{}"}
STRAY = {
    Office31: ("amazon/label.txt", "other/images/bike/frame.jpg", "amazon/images/cat/frame.jpg"),
    OfficeHome: (f"{HOME}/ImageInfo.csv", f"{HOME}/Art/Bed/._00001.jpg"),
    DomainNet: ("sketch/axe/1.jpg",),
}
SETS: list[type[DomainImages]] = [Office31, OfficeHome, DomainNet]


def colour(domain: Any, label: Any, number: Any) -> tuple[Any, Any, Any]:
    """By which an image is recognised."""
    return 40 * domain, 3 * label, 100 * number


def files_of(cls: type[DomainImages]) -> Files:
    files = {
        f"{INSIDE[cls].format(domain)}/{label}/{number}.jpg": plain(colour(d, c, number))
        for d, domain in enumerate(cls.domains)
        for c, label in enumerate(cls.class_names)
        for number in range(EACH)
    }
    return files | dict.fromkeys(STRAY[cls], b"x")


def write_archives(cls: type[DomainImages], folder: Path, files: Files) -> list[str]:
    """Write the published archives, whose members are in an order that nobody chose; return their names."""
    for source, domains, _ in cls.archives:
        own = {n: data for n, data in reversed(files.items()) if len(cls.archives) == 1 or n.startswith(domains)}
        (write_zip if source.name.endswith("zip") else write_tar)(folder / source.name, own)
    return [source.name for source, _, _ in cls.archives]


def assert_every_image(dataset: DomainImages, folder: Path, source: str) -> None:
    samples = dataset.load(folder)
    shape = len(dataset.domains), len(dataset.class_names), EACH
    domain, label, number = (axis.ravel() for axis in np.indices(shape))
    assert samples.labels.tolist() == label.tolist()
    assert samples.attributes["domain"].values.tolist() == domain.tolist()
    assert samples.attributes["domain"].names == dataset.domains
    assert samples.train.all() and samples.shape == dataset.shape == (3, SIZE, SIZE)
    np.testing.assert_allclose(samples.inputs.mean((2, 3)), np.stack(colour(domain, label, number), 1), atol=4)
    assert samples.source == source


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    offline(monkeypatch)
    for cls in (Office31, OfficeHome):
        monkeypatch.setattr(cls, "counts", (len(cls.domains) * len(cls.class_names) * EACH, 0))
    (tmp_path / "data" / "here").mkdir(parents=True)
    return tmp_path / "data" / "here"


def test_official_facts() -> None:
    assert Office31.counts == (2817 + 498 + 795, 0) and OfficeHome.counts == (2427 + 4365 + 4439 + 4357, 0)
    everything = DomainNet(classes_used="all")
    assert (Office31().classes, OfficeHome().classes, everything.classes) == (31, 65, 345)
    assert set(DomainNet().class_names) < set(everything.class_names)
    assert DomainNet(lists="fedbn", first=105).about == (630, 4_573)
    for dataset in (*(cls() for cls in SETS), everything):
        assert list(dataset.class_names) == sorted(set(dataset.class_names))
    for options, option in (({"lists": "fedbn", "classes_used": "all"}, "classes_used"), ({"first": 105}, "lists")):
        with pytest.raises(UserError, match=rf"^domainnet\..*set {option}: "):
            DATASETS.create("domainnet", **options)


@pytest.mark.parametrize("cls", SETS)
def test_archives(folder: Path, monkeypatch: pytest.MonkeyPatch, cls: type[DomainImages]) -> None:
    dataset, files = cls(size=SIZE), files_of(cls)
    assert not dataset.found(folder)
    assert "get it from http" in failure(dataset, folder) and cls.archives[0].source.name in failure(dataset, folder)
    names = write_archives(cls, folder, files)
    message = failure(dataset, folder)
    assert ": md5 is " in message and cls.archives[0].source.digest in message
    trust(monkeypatch)
    assert dataset.found(folder)
    assert_every_image(dataset, folder, ", ".join(names))
    last, path = max(n for n in files if cls.domains[-1] in n and n not in STRAY[cls]), folder / names[-1]
    write_archives(cls, folder, files | {last: b"GIF89a"})
    assert failure(dataset, folder).startswith(f"{path}/{last}: not a readable image (")


@pytest.mark.parametrize(
    ("cls", "place"), [*((cls, "") for cls in SETS), (Office31, "domain_adaptation_images"), (OfficeHome, "flat")]
)
def test_what_archives_unpack_to(folder: Path, cls: type[DomainImages], place: str) -> None:
    files = files_of(cls)
    if place == "flat":
        files, place = {name.removeprefix(f"{HOME}/"): data for name, data in files.items()}, ""
    write_files(folder / place, files)
    dataset = cls(size=SIZE)
    assert_every_image(dataset, folder, ", ".join(f"folder {domain}" for domain in cls.domains))
    if cls is Office31 and not place:
        (folder / "dslr/images/mug/0.jpg").unlink()
        assert f"found {3 * 31 * EACH - 1} and 0" in failure(dataset, folder)
        (folder / "dslr/images/mug/1.jpg").unlink()
        assert "dslr has no images of mug" in failure(dataset, folder)
        (folder / "dslr").rename(folder / "camera")
        assert f"{folder}: has no dslr/" in failure(dataset, folder)


@pytest.mark.parametrize(
    ("cls", "name"), [(Office31, "../evil.jpg"), (OfficeHome, "/tmp/evil.jpg"), (DomainNet, "a/../..")]
)
def test_members_that_point_outside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cls: type[DomainImages], name: str
) -> None:
    source = cls.archives[0].source
    write_files(folder, files_of(cls))
    (write_zip if source.name.endswith("zip") else write_tar)(folder / source.name, {**files_of(cls), name: b"x"})
    trust(monkeypatch)
    message = failure(cls(size=SIZE), folder)
    assert message.startswith(f"{folder / source.name}: ") and f"{name!r} points outside of the archive" in message


def write_lists(folder: Path, fedbn: bool, kind: Any = list, **changes: Any) -> DomainNet:
    """The first image of each class for testing, the second for training, of classes in another order."""
    write_files(folder, files_of(DomainNet))
    files: Files = {}
    for domain in DomainNet.domains:
        for split, number in (("test", 0), ("train", 1)):
            labels = [*DomainNet.class_names[5:], *DomainNet.class_names[:5]]
            paths = [f"{domain}/{label}/{number}.jpg" for label in labels]
            paths = [path for path in paths if path != "real/bird/1.jpg"]
            paths, labels = changes.get(f"{domain}_{split}", (paths, [path.split("/")[1] for path in paths]))
            text = "".join(f"{path} 7\n" for path in paths).encode()  # with numbers that mean nothing here
            pickled = pickle.dumps((kind([f"DomainNet/{path}" for path in paths]), kind(labels)), 4)
            files[f"{domain}_{split}.{'pkl' if fedbn else 'txt'}"] = pickled if fedbn else text
    files |= changes.get("files", {})
    write_zip(folder / "domainnet_dataset.zip", files) if fedbn else write_files(folder, files)
    return DomainNet(size=SIZE, lists="fedbn" if fedbn else "official")


@pytest.mark.parametrize(("fedbn", "kind"), [(False, list), (True, list), (True, np.array)])
def test_lists_say_what_is_used_and_for_what(folder: Path, fedbn: bool, kind: Any) -> None:
    samples = write_lists(folder, fedbn, kind=kind).load(folder)
    assert samples.source.endswith("FedBN's lists" if fedbn else "official lists")
    assert len(samples) == 119 and samples.train.sum() == 59
    blue = np.rint(samples.inputs[:, 2].mean((1, 2)) / 100)  # the number of an image
    np.testing.assert_array_equal(blue, samples.train)
    assert np.bincount(samples.labels).tolist() == [11, *[12] * 9]
    assert np.bincount(samples.attributes["domain"].values).tolist() == [20, 20, 20, 20, 19, 20]
    if fedbn:
        few = DomainNet(size=SIZE, lists="fedbn", first=4).load(folder)
        mine = few.train & (few.attributes["domain"].values == 3)
        assert sorted(few.labels[mine]) == [5, 6, 7, 8]


def test_faulty_lists(folder: Path) -> None:
    for fedbn, paths, labels, problem in (
        (True, ["real/tiger/0.jpg"], ["zebra"], "the paths are not of the classes beside them"),
        (True, ["sketch/bird/0.jpg"], ["bird"], "'sketch/bird/0.jpg' is not '<domain>/<class>/<image>'"),
        (True, ["real/bird/9.jpg"], ["bird"], "real/bird/9.jpg is listed but missing"),
        (False, ["real/x.jpg"], [], "'real/x.jpg' is not '<domain>/<class>/<image>'"),
        (False, ["real/tiger/1.jpg"], [], "real/tiger/1.jpg is listed twice"),
    ):
        assert problem in failure(write_lists(folder, fedbn, real_test=(paths, labels)), folder)


def test_lists_that_are_missing_or_damaged(folder: Path) -> None:
    net = write_lists(folder, fedbn=False)
    (folder / "real_test.txt").write_bytes(b"\xff\xfe\x00")
    assert failure(net, folder).startswith(f"{folder}/real_test.txt: cannot be read (")
    (folder / "real" / "real_test.txt").write_bytes((folder / "sketch_test.txt").read_bytes())  # is none of them
    (folder / "real_test.txt").unlink()
    assert failure(net, folder).startswith(f"{folder}: real_test.txt is missing")
    target = folder / "executed"
    assert "domainnet_dataset.zip: is missing" in failure(DomainNet(size=SIZE, lists="fedbn"), folder)
    fedbn = write_lists(folder, fedbn=True, files={"real_train.pkl": pickle.dumps(Hostile(target))})
    assert "posix.system" in failure(fedbn, folder) and not target.exists()
