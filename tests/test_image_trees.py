"""Sets of domain adaptation and folders of one's own images: their layouts in miniature, whole and damaged."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pooch
import pytest
from PIL import Image

from pflcore.datasets import DATASETS, Dataset, domainnet, office31, officehome, stand_in
from pflcore.datasets._image_trees import DomainImages
from pflcore.errors import UserError

OFFICE = "domain_adaptation_images.tar.gz"
HOME = "OfficeHomeDataset_10072016.zip"
SIZE = 8
EACH = 2  # images of each class in each domain


def encoded(colour: tuple[int, int, int] | np.ndarray, suffix: str = ".jpg") -> bytes:
    """An image of one colour, or the given one, that is not square."""
    file = io.BytesIO()
    pixels = colour if isinstance(colour, np.ndarray) else np.broadcast_to(np.array(colour, np.uint8), (11, 14, 3))
    Image.fromarray(pixels).save(file, "PNG" if suffix == ".png" else "JPEG", quality=95)
    return file.getvalue()


def colour(domain: int, label: int, number: int) -> tuple[int, int, int]:
    return 40 * domain, 3 * label, 100 * number


def office_files() -> dict[str, bytes]:
    return {
        f"{domain}/images/{label}/frame_{number + 1:04}.jpg": encoded(colour(d, c, number))
        for d, domain in enumerate(office31.Office31.domains)
        for c, label in enumerate(office31.Office31.class_names)
        for number in range(EACH)
    }


def home_files() -> dict[str, bytes]:
    return {
        f"OfficeHomeDataset_10072016/{domain}/{label}/{number + 1:05}.jpg": encoded(colour(d, c, number))
        for d, domain in enumerate(officehome.OfficeHome.domains)
        for c, label in enumerate(officehome.OfficeHome.class_names)
        for number in range(EACH)
    } | {"OfficeHomeDataset_10072016/ImageInfo.csv": b"x", "OfficeHomeDataset_10072016/Art/Bed/._00001.jpg": b"x"}


def net_files(classes: tuple[str, ...] = domainnet.DomainNet.class_names) -> dict[str, bytes]:
    """DomainNet with one class that is not among the top ten; quickdraw's images are PNG."""
    files = {}
    for d, domain in enumerate(domainnet.DomainNet.domains):
        suffix = ".png" if domain == "quickdraw" else ".jpg"
        for c, label in enumerate((*classes, "axe") if "axe" not in classes else classes):
            for number in range(EACH):
                name = f"{domain}/{label}/{domain}_{c + 1:03}_{number + 1:06}{suffix}"
                files[name] = encoded(colour(d, c % 80, number), suffix)
    return files


def write_tar(path: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_zip(path: Path, contents: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def write_net_zips(folder: Path, contents: dict[str, bytes]) -> None:
    for domain in domainnet.DomainNet.domains:
        part = {name: data for name, data in contents.items() if name.startswith(f"{domain}/")}
        write_zip(folder / f"{domain}.zip", part)


def write_folder(root: Path, contents: dict[str, bytes]) -> None:
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def failure(dataset: Dataset, folder: Path) -> str:
    """The message of the error; whatever is in the folder stays as it is."""

    def state() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.parent.rglob("*"))}

    before = state()
    with pytest.raises(UserError) as error:
        dataset.load(folder)
    assert state() == before
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a dataset, in the folder of all data; nothing is downloaded."""
    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: pytest.fail("tried to download"))
    monkeypatch.setattr(office31.Office31, "counts", (3 * 31 * EACH, 0))
    monkeypatch.setattr(officehome.OfficeHome, "counts", (4 * 65 * EACH, 0))
    (tmp_path / "data" / "here").mkdir(parents=True)
    return tmp_path / "data" / "here"


Trust = Callable[[Path], None]


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Makes the hash of every archive in a folder the expected one."""

    def accept(folder: Path) -> None:
        for cls in (office31.Office31, officehome.OfficeHome, domainnet.DomainNet):
            archives = []
            for source, domains in cls.archives:
                if (folder / source.name).is_file():
                    digest = hashlib.new(source.algorithm, (folder / source.name).read_bytes()).hexdigest()
                    source = dataclasses.replace(source, digest=digest)
                archives.append((source, domains))
            monkeypatch.setattr(cls, "archives", tuple(archives))

    return accept


def assert_complete(dataset: DomainImages, folder: Path, source: str) -> None:
    """Every image is at its place: colours, label, domain and shape."""
    samples = dataset.load(folder)
    domains, classes = len(dataset.domains), len(dataset.class_names)
    domain, label, number = (axis.ravel() for axis in np.indices((domains, classes, EACH)))
    assert samples.labels.tolist() == label.tolist()
    assert samples.attributes["domain"].values.tolist() == domain.tolist()
    assert samples.attributes["domain"].names == dataset.domains
    assert samples.train.all() and samples.shape == dataset.shape == (3, SIZE, SIZE)
    expected = np.stack([40 * domain, 3 * label, 100 * number], 1)
    np.testing.assert_allclose(samples.inputs.mean((2, 3)), expected, atol=4)
    assert samples.source == source and samples.class_names == dataset.class_names
    assert samples.inputs.tobytes() == dataset.load(folder).inputs.tobytes()


# --- Office-31 and Office-Home ---------------------------------------------------------------------------------------


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
    assert_complete(office, folder, OFFICE)
    assert [path.name for path in folder.iterdir()] == [OFFICE]


@pytest.mark.parametrize("inside", [".", "domain_adaptation_images"])
def test_office_31_unpacked(office: DomainImages, folder: Path, inside: str) -> None:
    write_folder(folder / inside, office_files())
    assert office.found(folder)
    assert_complete(office, folder, "folder amazon, folder dslr, folder webcam")


def test_office_home_from_its_archive(home: DomainImages, folder: Path, trust: Trust) -> None:
    write_zip(folder / HOME, dict(reversed(home_files().items())))
    trust(folder)
    assert_complete(home, folder, HOME)


def test_office_home_unpacked(home: DomainImages, folder: Path) -> None:
    write_folder(folder, home_files())
    assert_complete(home, folder, "folder Art, folder Clipart, folder Product, folder Real World")


def test_images_are_scaled_as_a_whole(office: DomainImages, folder: Path) -> None:
    files = office_files()
    halves = np.zeros((60, 100, 3), np.uint8)
    halves[:, 50:] = 255
    files["amazon/images/back_pack/frame_0001.jpg"] = encoded(halves)
    write_folder(folder, files)
    first = office.load(folder).inputs[0]
    assert first[:, :, : SIZE // 2 - 1].max() < 30 and first[:, :, SIZE // 2 + 1 :].min() > 225


def test_nothing_there(office: DomainImages, home: DomainImages, folder: Path) -> None:
    net = domainnet.DomainNet()
    for place in (folder, folder.parent / "absent"):
        assert not office.found(place) and not home.found(place) and not net.found(place)
        assert failure(office, place) == (
            f"{place}: no data here; get it from https://faculty.cc.gatech.edu/~judy/domainadapt/ and put "
            "domain_adaptation_images.tar.gz, or the folders amazon, dslr, webcam, there"
        )
        assert failure(home, place) == (
            f"{place}: no data here; get it from https://www.hemanthdv.org/officeHomeDataset.html and put "
            "OfficeHomeDataset_10072016.zip, or the folders Art, Clipart, Product, Real World, there"
        )
        assert failure(net, place).startswith(f"{place}: no data here; get it from https://ai.bu.edu/M3SDA/ and put")


def test_wrong_hashes(office: DomainImages, home: DomainImages, folder: Path) -> None:
    write_tar(folder / OFFICE, office_files())
    found = hashlib.md5((folder / OFFICE).read_bytes()).hexdigest()
    assert failure(office, folder) == (
        f"{folder / OFFICE}: md5 is {found}, expected 1b536d114869a5a8aa4580b89e9758fb; delete it and get it from "
        "https://faculty.cc.gatech.edu/~judy/domainadapt/"
    )
    write_zip(folder / HOME, home_files())
    assert "expected b1c14819770c4448fd5b6d931031c91c; delete it and get it from" in failure(home, folder)


def test_truncated_archives(office: DomainImages, home: DomainImages, folder: Path, trust: Trust) -> None:
    for dataset, name in ((office, OFFICE), (home, HOME)):
        path = folder / name
        write_tar(path, office_files()) if name == OFFICE else write_zip(path, home_files())
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        assert "delete it and get it from" in failure(dataset, folder)
        trust(folder)  # even if its hash were right
        message = failure(dataset, folder)  # a tar that is cut between two members ends there without complaint
        assert message.startswith((f"{path}: not a readable archive (", f"{folder}: dslr has no images of"))
        path.unlink()


@pytest.mark.parametrize("name", ["../evil.jpg", "/tmp/evil-of-pfl.jpg", "amazon/images/../../../evil.jpg"])
def test_members_that_point_outside(
    office: DomainImages, home: DomainImages, folder: Path, trust: Trust, name: str
) -> None:
    write_tar(folder / OFFICE, {**office_files(), name: b"x"})
    write_zip(folder / HOME, {**home_files(), name: b"x"})
    trust(folder)
    for dataset, path in ((office, folder / OFFICE), (home, folder / HOME)):
        assert failure(dataset, folder) == (
            f"{path}: its member {name!r} points outside of the archive; get it from its official source"
        )
    assert not Path("/tmp/evil-of-pfl.jpg").exists()


def test_incomplete_data(office: DomainImages, home: DomainImages, folder: Path, trust: Trust) -> None:
    files = office_files()
    del files["dslr/images/mug/frame_0001.jpg"]
    write_folder(folder, files)
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


def test_an_unreadable_image_is_named(office: DomainImages, home: DomainImages, folder: Path, trust: Trust) -> None:
    files = office_files()
    name = "webcam/images/monitor/frame_0002.jpg"
    files[name] = files[name][:200]
    write_folder(folder, files)
    assert failure(office, folder).startswith(f"{folder / name}: not a readable image (")
    write_tar(folder / OFFICE, files)
    name = "OfficeHomeDataset_10072016/Real World/Bed/00002.jpg"
    write_zip(folder / HOME, {**home_files(), name: b"not an image"})
    trust(folder)
    assert failure(office, folder).startswith(f"{folder / OFFICE}/webcam/images/monitor/frame_0002.jpg: not a readable")
    assert failure(home, folder).startswith(f"{folder / HOME}/{name}: not a readable image (not PNG or")


# --- DomainNet -------------------------------------------------------------------------------------------------------


def write_lists(folder: Path, names: list[str], *, test: Callable[[str], bool]) -> None:
    """The official lists, with class numbers that mean nothing here."""
    for domain in domainnet.DomainNet.domains:
        for split in ("train", "test"):
            chosen = [n for n in names if n.startswith(f"{domain}/") and test(n) == (split == "test")]
            (folder / f"{domain}_{split}.txt").write_text("".join(f"{name} 7\n" for name in chosen))


@pytest.fixture
def net() -> domainnet.DomainNet:
    return domainnet.DomainNet(size=SIZE)


@pytest.mark.parametrize("zipped", [True, False])
def test_domainnet_without_lists(net: domainnet.DomainNet, folder: Path, trust: Trust, zipped: bool) -> None:
    write_net_zips(folder, net_files()) if zipped else write_folder(folder, net_files())
    trust(folder)
    names = [f"{domain}.zip" if zipped else f"folder {domain}" for domain in net.domains]
    assert_complete(net, folder, ", ".join(names))


def test_domainnet_with_lists_and_domains_of_both_kinds(net: domainnet.DomainNet, folder: Path, trust: Trust) -> None:
    files = net_files()
    write_net_zips(folder, files)
    (folder / "real.zip").unlink()
    write_folder(folder, {name: data for name, data in files.items() if name.startswith("real/")})
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


def test_domainnet_with_all_classes(folder: Path) -> None:
    every = domainnet.DomainNet(size=SIZE, classes_used="all")
    tiny = encoded((9, 9, 9))
    write_folder(folder, {f"{d}/{label}/1.jpg": tiny for d in every.domains for label in every.class_names})
    samples = every.load(folder)
    assert samples.classes == 345 and np.bincount(samples.labels).tolist() == [6] * 345


def test_faulty_lists(net: domainnet.DomainNet, folder: Path) -> None:
    files = net_files()
    write_folder(folder, files)
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


def test_faulty_domainnet(net: domainnet.DomainNet, folder: Path, trust: Trust) -> None:
    files = net_files()
    write_net_zips(folder, files)
    assert failure(net, folder).endswith(
        "expected cd0d8f2d77a4e181449b78ed62bccf1e; delete it and get it from "
        "http://csr.bu.edu/ftp/visda/2019/multi-source/groundtruth/clipart.zip"
    )
    trust(folder)
    (folder / "sketch.zip").rename(folder / "other.zip")
    assert failure(net, folder) == (
        f"{folder}: has neither sketch.zip nor a folder 'sketch'; put the complete data there"
    )
    broken = dict.fromkeys([name for name in files if name.startswith("sketch/")], b"GIF89a")
    write_zip(folder / "sketch.zip", broken)
    trust(folder)
    assert failure(net, folder).startswith(f"{folder / 'sketch.zip'}/sketch/bird/sketch_001_000001.jpg: not a readable")
    write_zip(folder / "sketch.zip", {"sketch/../../bird.jpg": b"x"})
    trust(folder)
    assert "points outside of the archive" in failure(net, folder)
    (folder / "sketch.zip").write_bytes(b"PK not a zip")
    trust(folder)
    assert failure(net, folder).startswith(f"{folder / 'sketch.zip'}: not a readable archive (")


# --- a folder of one's own -------------------------------------------------------------------------------------------


def own(**options: object) -> Dataset:
    return DATASETS.create("image_folder", **{"size": SIZE, **options})


def test_a_folder_of_classes(folder: Path) -> None:
    write_folder(
        folder,
        {
            "rose/b.PNG": encoded((200, 0, 0), ".png"),
            "rose/a.jpeg": encoded((100, 0, 0)),
            "daisy/x.png": encoded((0, 200, 0), ".png"),
            "daisy/.DS_Store": b"x",
            "daisy/Thumbs.db": b"x",
            ".git/x": b"x",
        },
    )
    assert own().found(folder)
    samples = own(mean=(0.1, 0.2, 0.3), std=(0.4,)).load(folder)
    assert samples.class_names == ("daisy", "rose") and samples.labels.tolist() == [0, 1, 1]
    np.testing.assert_allclose(samples.inputs.mean((2, 3)), [[0, 200, 0], [100, 0, 0], [200, 0, 0]], atol=4)
    assert samples.train.all() and not samples.attributes and samples.source == "images in image_folder/"
    assert (samples.mean, samples.std) == ((0.1, 0.2, 0.3), (0.4, 0.4, 0.4))
    grey = own(channels=1).load(folder)
    assert grey.shape == (1, SIZE, SIZE) and grey.mean == (0.5,)


def test_a_folder_of_splits_elsewhere(folder: Path) -> None:
    root = folder.parent / "flowers" / "small"
    write_folder(root, {f"{s}/{c}/1.png": encoded((0, 0, 0), ".png") for s in ("train", "test") for c in "ab"})
    write_folder(root, {"train/a/2.png": encoded((0, 0, 0), ".png")})
    dataset = own(path="flowers/small", layout="split/class")
    assert dataset.found(folder) and not own(path="flowers/large").found(folder)
    samples = dataset.load(folder)
    assert samples.train.tolist() == [False, False, True, True, True]
    assert samples.labels.tolist() == [0, 1, 0, 0, 1] and samples.source == "images in flowers/small/"
    assert not samples.attributes


def test_a_folder_of_domains(folder: Path) -> None:
    files = {"photo/cat/1.png": 10, "photo/dog/1.png": 20, "art/dog/1.png": 30, "art/emu/1.png": 40}
    write_folder(folder, {name: encoded((grey,) * 3, ".png") for name, grey in files.items()})
    dataset = own(layout="domain/class")
    samples = dataset.load(folder)
    assert samples.class_names == ("cat", "dog", "emu") and samples.labels.tolist() == [1, 2, 0, 1]
    assert samples.attributes["domain"].names == ("art", "photo")
    assert samples.attributes["domain"].values.tolist() == [0, 0, 1, 1]
    assert samples.inputs[:, 0, 0, 0].tolist() == [30, 40, 10, 20]
    assert samples.train.all()
    assert "domain" in stand_in(dataset, 20, 10).attributes and not stand_in(own(), 20, 10).attributes


def test_faulty_folders(folder: Path) -> None:
    absent = folder.parent / "absent"
    for place in (folder, absent):
        assert failure(own(), place) == (
            f"{place}: no data here; put images there as <class>/<image>, or set the option 'path'"
        )
    assert failure(own(path="absent", layout="split/class"), folder) == (
        f"{absent}: no data here; put images there as <split>/<class>/<image>, or set the option 'path'"
    )
    good = encoded((1, 2, 3))
    write_folder(folder, {f"{s}/{c}/{n}.jpg": good for s in ("train", "test") for c in "ab" for n in range(3)})
    split = own(layout="split/class")
    assert failure(own(), folder) == (
        f"{folder}/test/a: an image is expected here, as the layout is <class>/<image>; set 'layout'"
    )
    write_folder(folder, {"train/c/1.jpg": good, "test/d/1.jpg": good})
    assert failure(split, folder) == (
        f"{folder}: training and test set need the same classes, but train has no d and test has no c"
    )
    (folder / "test/d").rename(folder / "test/c")
    assert len(split.load(folder)) == 14
    (folder / "train/b/1.jpg").write_bytes(good[:100])
    assert failure(split, folder).startswith(f"{folder}/train/b/1.jpg: not a readable image (")
    (folder / "train/b/1.jpg").rename(folder / "train/b/1.heic")
    assert failure(split, folder).startswith(f"{folder}/train/b/1.heic: not an image by its name; move it away, or use")
    (folder / "train/b/1.heic").rename(folder / "train/1.jpg")
    assert failure(split, folder) == (
        f"{folder}/train/1.jpg: a folder is expected here, as the layout is <split>/<class>/<image>; move it away"
    )
    (folder / "train/1.jpg").unlink()
    (folder / "train/e").mkdir()
    assert failure(split, folder) == f"{folder}/train/e: has no images; fill it or remove it"
    (folder / "train/e").rename(folder / "val")
    assert failure(split, folder) == (
        f"{folder}: has the folders test, train, val, but the layout needs train and test alone"
    )
    assert failure(own(layout="domain/class"), folder) == (
        f"{folder}/val: is empty, but the layout is <domain>/<class>/<image>; fill it or remove it"
    )
    (folder / "val").rename(folder / "a\nb")
    assert "has characters that cannot be printed" in failure(split, folder)


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b", "C:/x", "a\\b", "a\0b"])
@pytest.mark.parametrize("name", ["image_folder", "image_table"])
def test_a_path_stays_in_the_data_folder(name: str, path: str) -> None:
    with pytest.raises(UserError) as error:
        DATASETS.create(name, path=path)
    assert str(error.value) == (
        f"{name}.path = {path!r} must be a folder below the data folder, such as 'flowers' or 'flowers/small'"
    )


def test_options_of_own_images() -> None:
    with pytest.raises(UserError) as error:
        own(mean=(0.5, 0.5))
    assert str(error.value) == ("image_folder.mean = [0.5, 0.5] must be one number, or one for each of the 3 channels")
    with pytest.raises(UserError):
        own(mean=())
    with pytest.raises(UserError):
        own(std=(0.0,))
    with pytest.raises(UserError):
        own(channels=2)
    with pytest.raises(UserError):
        own(layout="class/split")


# --- the real data, where there is some ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["office31", "officehome", "domainnet"])
def test_real_data(name: str) -> None:
    root = Path(os.environ.get("PFL_DATA", "/nonexistent"))
    dataset = DATASETS.create(name, size=SIZE)
    if not dataset.found(root / name):
        pytest.skip("no real data")
    samples = dataset.load(root / name)
    counts = np.bincount(samples.attributes["domain"].values).tolist()
    assert {"office31": [2817, 498, 795], "officehome": [2427, 4365, 4439, 4357]}.get(name, counts) == counts
