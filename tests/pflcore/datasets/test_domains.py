"""Office-31, Office-Home and DomainNet: archives, folders and lists in miniature, whole and damaged."""

import pickle

import numpy as np
import pytest
from support.mistakes import refuses
from support.official import SIZE, Hostile, failure, offline, plain, trust, write_files, write_tar, write_zip

from pflcore.datasets import DATASETS
from pflcore.datasets.domain_images import Office31, OfficeHome
from pflcore.datasets.domainnet import DomainNet

EACH = 2  # images of each class in each domain
HOME = "OfficeHomeDataset_10072016"
# Where images lie, and what is none of the dataset's.
LAYOUT = {
    Office31: ("{}/images", ("amazon/label.txt", "other/images/bike/frame.jpg", "amazon/images/cat/frame.jpg")),
    OfficeHome: (f"{HOME}/{{}}", (f"{HOME}/ImageInfo.csv", f"{HOME}/Art/Bed/._00001.jpg")),
    DomainNet: ("{}", ("sketch/axe/1.jpg",)),
}


def files_of(cls):
    """All images, each recognised by its colour."""
    inside, stray = LAYOUT[cls]
    files = dict.fromkeys(stray, b"x")
    for d, c, number in np.ndindex(len(cls.domains), len(cls.class_names), EACH):
        path = f"{inside.format(cls.domains[d])}/{cls.class_names[c]}/{number}.jpg"
        files[path] = plain((40 * d, 3 * c, 100 * number))
    return files


def assert_every_image(dataset, folder, source):
    samples = dataset.load(folder)
    domain, label, number = np.indices((len(dataset.domains), len(dataset.class_names), EACH)).reshape(3, -1)
    assert samples.labels.tolist() == label.tolist()
    assert samples.attributes["domain"].values.tolist() == domain.tolist()
    assert samples.attributes["domain"].names == dataset.domains
    assert samples.train.all() and samples.shape == dataset.shape == (3, SIZE, SIZE)
    colours = np.stack([40 * domain, 3 * label, 100 * number], 1)
    np.testing.assert_allclose(samples.inputs.mean((2, 3)), colours, atol=4)
    assert samples.source == source


@pytest.fixture
def folder(tmp_path, monkeypatch):
    offline(monkeypatch)
    for cls in (Office31, OfficeHome):
        monkeypatch.setattr(cls, "counts", (len(cls.domains) * len(cls.class_names) * EACH, 0))
    (tmp_path / "data" / "here").mkdir(parents=True)
    return tmp_path / "data" / "here"


def test_official_facts():
    assert Office31.counts == (2817 + 498 + 795, 0) and OfficeHome.counts == (2427 + 4365 + 4439 + 4357, 0)
    all_classes = DomainNet(classes_used="all")
    assert (Office31().classes, OfficeHome().classes, all_classes.classes) == (31, 65, 345)
    assert set(DomainNet().class_names) < set(all_classes.class_names)
    assert DomainNet(lists="fedbn", first=105).estimated_counts == (630, 4_573)
    for dataset in (Office31(), OfficeHome(), DomainNet(), all_classes):
        assert list(dataset.class_names) == sorted(set(dataset.class_names))
    for options, option in (({"lists": "fedbn", "classes_used": "all"}, "classes_used"), ({"first": 105}, "lists")):
        refuses(rf"^domainnet\..*set {option}: ", DATASETS.create, "domainnet", **options)


@pytest.mark.parametrize("cls", [Office31, OfficeHome, DomainNet])
def test_archives_and_what_they_unpack_to(folder, monkeypatch, cls):
    dataset, files, names = cls(size=SIZE), files_of(cls), [archive.source.name for archive in cls.archives]
    assert "get it from http" in failure(dataset, folder) and f"put {names[0]}" in failure(dataset, folder)
    plain_names = {path.removeprefix(f"{HOME}/"): data for path, data in files.items()}
    for number, unpacked in enumerate((files, plain_names, {f"{cls.unpacked}/{path}": files[path] for path in files})):
        if cls is not OfficeHome or number < 2:
            write_files(folder.parent / str(number), unpacked)
            source = ", ".join(f"folder {domain}" for domain in cls.domains)
            assert_every_image(dataset, folder.parent / str(number), source)
    assert not dataset.available(folder)
    for source, domains, _ in cls.archives:
        start = "" if len(names) == 1 else domains
        write = write_zip if source.name.endswith("zip") else write_tar
        write(folder / source.name, {path: files[path] for path in reversed(files) if path.startswith(start)})
    message = failure(dataset, folder)
    assert ": md5 is " in message and cls.archives[0].source.digest in message
    trust(monkeypatch)
    assert dataset.available(folder)
    assert_every_image(dataset, folder, ", ".join(names))
    # What is incomplete.
    for name in names:
        (folder / name).unlink()
    write_files(folder, files)
    place, word = folder / LAYOUT[cls][0].format(cls.domains[-1]), cls.class_names[-1]
    (place / word / "0.jpg").unlink()
    if cls is not DomainNet:
        assert f"found {len(cls.domains) * len(cls.class_names) * EACH - 1} and 0" in failure(dataset, folder)
    (place / word / "1.jpg").unlink()
    assert f"{cls.domains[-1]} has no images of {word}" in failure(dataset, folder)
    (place.parent if cls is Office31 else place).rename(folder / "elsewhere")
    message = failure(dataset, folder)
    assert message.startswith(f"{folder}: has no ") and f"{cls.domains[-1]}/" in message


def write_lists(folder, fedbn, kind=list, real_test=None, **extra):
    """Write lists: the first image of each class is for testing, the second for training, in another order."""
    names, files = [*DomainNet.class_names[5:], *DomainNet.class_names[:5]], {}
    for domain in DomainNet.domains:
        for split, number in (("test", 0), ("train", 1)):
            labels = [label for label in names if (domain, label, number) != ("real", "bird", 1)]
            paths = [f"{domain}/{label}/{number}.jpg" for label in labels]
            if real_test and (domain, split) == ("real", "test"):
                paths, labels = real_test
            text = "".join(f"{path} 7\n" for path in paths).encode()  # with numbers that mean nothing here
            pickled = pickle.dumps((kind([f"DomainNet/{path}" for path in paths]), kind(labels)), 4)
            files[f"{domain}_{split}.{'pkl' if fedbn else 'txt'}"] = pickled if fedbn else text
    files |= extra
    write_zip(folder / "domainnet_dataset.zip", files) if fedbn else write_files(folder, files)
    return DomainNet(size=SIZE, lists="fedbn" if fedbn else "official")


def test_lists_say_what_is_used_and_for_what(folder):
    write_files(folder, files_of(DomainNet))
    for fedbn, kind in ((True, list), (True, np.array), (False, list)):
        samples = write_lists(folder, fedbn, kind).load(folder)
        assert samples.source.endswith("FedBN's lists" if fedbn else "official lists")
        assert len(samples) == 119 and samples.train.sum() == 59
        blue = np.rint(samples.inputs[:, 2].mean((1, 2)) / 100)  # the number of an image
        np.testing.assert_array_equal(blue, samples.train)
        assert np.bincount(samples.labels).tolist() == [11, *[12] * 9]
        assert np.bincount(samples.attributes["domain"].values).tolist() == [20, 20, 20, 20, 19, 20]
    limited = DomainNet(size=SIZE, lists="fedbn", first=4).load(folder)
    assert sorted(limited.labels[limited.train & (limited.attributes["domain"].values == 3)]) == [5, 6, 7, 8]


def test_faulty_lists(folder):
    write_files(folder, files_of(DomainNet))
    assert "domainnet_dataset.zip: is missing" in failure(DomainNet(size=SIZE, lists="fedbn"), folder)
    for fedbn, paths, labels, problem in (
        (True, ["real/tiger/0.jpg"], ["zebra"], "the paths are not of the classes beside them"),
        (True, ["sketch/bird/0.jpg"], ["bird"], "'sketch/bird/0.jpg' is not '<domain>/<class>/<image>'"),
        (True, ["real/bird/9.jpg"], ["bird"], "real/bird/9.jpg is listed but missing"),
        (False, ["real/x.jpg"], [], "'real/x.jpg' is not '<domain>/<class>/<image>'"),
        (False, ["real/tiger/1.jpg"], [], "real/tiger/1.jpg is listed twice"),
    ):
        assert problem in failure(write_lists(folder, fedbn, real_test=(paths, labels)), folder)
    evil = write_lists(folder, True, **{"real_train.pkl": pickle.dumps(Hostile(folder / "executed"))})
    assert "posix.system" in failure(evil, folder) and not (folder / "executed").exists()
    net = write_lists(folder, False, **{"real_test.txt": b"\xff\xfe\x00"})
    assert failure(net, folder).startswith(f"{folder}/real_test.txt: cannot be read (")
    (folder / "real_test.txt").rename(folder / "real" / "real_test.txt")  # which is none of them
    assert failure(net, folder).startswith(f"{folder}: real_test.txt is missing")
