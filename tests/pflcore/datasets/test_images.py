"""Folders and tables of one's own images, and sets of domains: classes, splits, domains, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
    write_tar,
    write_zip,
)

from pflcore.datasets import DATASETS, Dataset, domainnet, office31, officehome, stand_in
from pflcore.datasets._image_trees import DomainImages
from pflcore.errors import UserError

# --- image folder ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a dataset, in the folder of all data; nothing is downloaded."""
    no_downloads(monkeypatch)
    (tmp_path / "data" / "here").mkdir(parents=True)
    return tmp_path / "data" / "here"


def own(**options: object) -> Dataset:
    return DATASETS.create("image_folder", **{"size": SIZE, **options})


def test_a_folder_of_classes(folder: Path) -> None:
    write_files(
        folder,
        {
            "rose/b.PNG": plain((200, 0, 0), "PNG"),
            "rose/a.jpeg": plain((100, 0, 0)),
            "daisy/x.png": plain((0, 200, 0), "PNG"),
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
    write_files(root, {f"{s}/{c}/1.png": plain((0, 0, 0), "PNG") for s in ("train", "test") for c in "ab"})
    write_files(root, {"train/a/2.png": plain((0, 0, 0), "PNG")})
    dataset = own(path="flowers/small", layout="split/class")
    assert dataset.found(folder) and not own(path="flowers/large").found(folder)
    samples = dataset.load(folder)
    assert samples.train.tolist() == [False, False, True, True, True]
    assert samples.labels.tolist() == [0, 1, 0, 0, 1] and samples.source == "images in flowers/small/"
    assert not samples.attributes


def test_a_folder_of_domains(folder: Path) -> None:
    files = {"photo/cat/1.png": 10, "photo/dog/1.png": 20, "art/dog/1.png": 30, "art/emu/1.png": 40}
    write_files(folder, {name: plain((grey,) * 3, "PNG") for name, grey in files.items()})
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
    good = plain((1, 2, 3))
    write_files(folder, {f"{s}/{c}/{n}.jpg": good for s in ("train", "test") for c in "ab" for n in range(3)})
    split = own(layout="split/class")
    assert failure(own(), folder) == (
        f"{folder}/test/a: an image is expected here, as the layout is <class>/<image>; set 'layout'"
    )
    write_files(folder, {"train/c/1.jpg": good, "test/d/1.jpg": good})
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


# --- image table -----------------------------------------------------------------------------------------------------


def grey(value: int) -> bytes:
    return plain((value,) * 3, "PNG")


def write(path: Path, greys: list[int], names: list[str] | None = None, struct: bool = True, **columns: Any) -> None:
    """A table as exports lay it out: a struct of bytes and path, other columns, names of classes in the metadata."""
    data = [grey(value) for value in greys]
    images = pa.array([{"bytes": image, "path": None} for image in data] if struct else data)
    table = pa.table({"image": images, **columns})
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=2)


def own_table(**options: Any) -> Dataset:
    return DATASETS.create("image_table", **{"size": SIZE, **options})


@pytest.fixture
def table_folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "image_table").mkdir(parents=True)
    return tmp_path / "data" / "image_table"


def test_an_export_with_names(table_folder: Path) -> None:
    names = ["cat", "dog", "emu"]
    write(table_folder / "train-00000-of-00002.parquet", [10, 20, 30], names, label=[2, 0, 0])
    write(table_folder / "train-00001-of-00002.parquet", [40, 50], names, label=pa.array([1, 2], pa.uint8()))
    write(table_folder / "test-00000-of-00001.parquet", [60], names, label=[1])
    assert own_table().found(table_folder)
    samples = own_table().load(table_folder)
    assert samples.inputs.shape == (6, 3, SIZE, SIZE)
    assert samples.inputs[:, 1, 3, 3].tolist() == [10, 20, 30, 40, 50, 60]
    assert samples.labels.tolist() == [2, 0, 0, 1, 2, 1] and samples.class_names == ("cat", "dog", "emu")
    assert samples.train.tolist() == [True] * 5 + [False] and not samples.attributes
    assert samples.source == (
        "train-00000-of-00002.parquet, train-00001-of-00002.parquet, test-00000-of-00001.parquet (PNG images)"
    )
    assert samples.inputs.tobytes() == own_table().load(table_folder).inputs.tobytes()


def test_texts_and_domains_elsewhere(table_folder: Path) -> None:
    root = table_folder.parent / "pets" / "v1"
    root.mkdir(parents=True)
    kinds = pa.array(["dog", "cat", "dog"]).dictionary_encode()
    write(root / "train.parquet", [10, 20, 30], struct=False, kind=kinds, place=["b", "a", "b"])
    dataset = own_table(path="pets/v1", label="kind", domain="place", channels=1, mean=(0.2,))
    assert dataset.found(table_folder) and not own_table().found(table_folder)
    samples = dataset.load(table_folder)
    assert samples.class_names == ("cat", "dog") and samples.labels.tolist() == [1, 0, 1] and samples.train.all()
    assert samples.attributes["domain"].names == ("a", "b")
    assert samples.attributes["domain"].values.tolist() == [1, 0, 1]
    assert samples.inputs[:, 0, 0, 0].tolist() == [10, 20, 30] and samples.shape == (1, SIZE, SIZE)
    assert samples.mean == (0.2,) and samples.std == (0.5,)
    assert "domain" in stand_in(dataset, 20, 10).attributes
    write(root / "test.parquet", [40, 50], struct=False, kind=["cat", "cat"], place=["c", "a"])
    assert dataset.load(table_folder).train.tolist() == [True] * 3 + [False] * 2
    assert dataset.load(table_folder).attributes["domain"].names == ("a", "b", "c")
    write(root / "test.parquet", [40], struct=False, kind=["emu"], place=["a"])
    assert failure(dataset, table_folder) == f"{root}: the test files have labels without a training image: emu"


def test_integers_without_names(table_folder: Path) -> None:
    path = table_folder / "train.parquet"
    write(path, [1, 2, 3], label=[1, 0, 2])
    samples = own_table().load(table_folder)
    assert samples.class_names == ("0", "1", "2") and samples.labels.tolist() == [1, 0, 2]
    for labels, lacking in (([1, 2, 3], 0), ([0, 1, 3], 2), ([0, 1, 2**60], 2)):
        write(path, [1, 2, 3], label=labels)
        assert failure(own_table(), table_folder) == (
            f"{folder}: integer labels must be 0, 1, 2 and so on, but no image has label {lacking}"
        )
    write(path, [1, 2, 3], label=[0, 1, -1])
    assert failure(own_table(), table_folder) == f"{path}: row 2: label -1 is outside 0..1"
    write(path, [1, 2], ["a"], label=[0, 1])
    assert failure(own_table(), table_folder) == f"{path}: row 1: label 1 is outside 0..0"
    write(path, [1, 2], ["a"], label=pa.array([0, 2**64 - 1], pa.uint64()))
    assert failure(own_table(), table_folder) == f"{path}: row 1: label {2**62} is outside 0..0"


def test_other_columns(table_folder: Path) -> None:
    path = table_folder / "train.parquet"
    write(path, [1, 2], label=[0.5, 1.5])
    has = "image: struct<bytes: binary, path: null>, label: double"
    assert failure(own_table(), table_folder) == f"{path}: needs a column 'label' of integers or text, has {has}"
    assert (
        failure(own_table(label="class"), table_folder)
        == f"{path}: needs a column 'class' of integers or text, has {has}"
    )
    assert failure(own_table(image="img"), table_folder) == (
        f"{path}: needs a column 'img' of binary or struct<bytes: binary>, has {has}"
    )
    assert failure(own_table(image="label"), table_folder).startswith(
        f"{path}: needs a column 'label' of binary or struct"
    )
    write(path, [1, 2], label=[0, 1])
    assert failure(own_table(domain="place"), table_folder).startswith(
        f"{path}: needs a column 'place' of integers or text, has "
    )
    write(path, [1, 2, 3], label=[0, None, None])
    assert failure(own_table(), table_folder) == f"{path}: column 'label' holds 2 nulls"
    write(path, [1, 2], label=[0, 1], place=["a", None])
    assert failure(own_table(domain="place"), table_folder) == f"{path}: column 'place' holds 1 nulls"
    write(path, [1, 2], ["a", "a"], label=[0, 1])
    assert failure(own_table(), table_folder) == (
        f"{path}: the metadata's names for column 'label' are not distinct texts; export it again"
    )
    write(path, [], label=pa.array([], pa.int64()), struct=False)
    assert failure(own_table(image="image"), table_folder).startswith(
        f"{path}: needs a column 'image' of binary or struct"
    )
    pq.write_table(pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}), path)
    assert failure(own_table(), table_folder) == f"{path}: holds no images; remove it or export it again"


def test_a_real_export_where_there_is_some() -> None:
    root = Path(os.environ.get("PFL_DATA", "/nonexistent"))
    dataset = DATASETS.create("image_table", path="cifar10", image="img", size=8)
    if not dataset.found(root / "image_table"):
        pytest.skip("no real data")
    samples = dataset.load(root / "image_table")
    assert (samples.train.sum(), len(samples)) == (50_000, 60_000)
    assert samples.class_names[3] == "cat" and np.bincount(samples.labels).tolist() == [6000] * 10


# --- office ----------------------------------------------------------------------------------------------------------


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
def office_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_office_31_from_its_archive(office: DomainImages, office_folder: Path, trust: Trust) -> None:
    stray = ("amazon/label.txt", "other/images/bike/frame_0001.jpg", "amazon/masks/bike/frame_0001.jpg")
    # The order of an archive is nobody's choice.
    write_tar(office_folder / OFFICE, dict(reversed(office_files().items())) | dict.fromkeys(stray, b"x"))
    trust(office_folder)
    assert office.found(office_folder)
    assert_every_image(office, office_folder, OFFICE)
    assert [path.name for path in office_folder.iterdir()] == [OFFICE]


@pytest.mark.parametrize("inside", [".", "domain_adaptation_images"])
def test_office_31_unpacked(office: DomainImages, office_folder: Path, inside: str) -> None:
    write_files(office_folder / inside, office_files())
    assert office.found(office_folder)
    assert_every_image(office, office_folder, "folder amazon, folder dslr, folder webcam")


def test_office_home_from_its_archive(home: DomainImages, office_folder: Path, trust: Trust) -> None:
    write_zip(office_folder / HOME, dict(reversed(home_files().items())))
    trust(office_folder)
    assert_every_image(home, office_folder, HOME)


def test_office_home_unpacked(home: DomainImages, office_folder: Path) -> None:
    write_files(office_folder, home_files())
    assert_every_image(home, office_folder, "folder Art, folder Clipart, folder Product, folder Real World")


@pytest.mark.parametrize("name", ["office31", "officehome", "domainnet"])
def test_real_data(name: str) -> None:
    root = Path(os.environ.get("PFL_DATA", "/nonexistent"))
    dataset = DATASETS.create(name, size=SIZE)
    if not dataset.found(root / name):
        pytest.skip("no real data")
    samples = dataset.load(root / name)
    counts = np.bincount(samples.attributes["domain"].values).tolist()
    assert {"office31": [2817, 498, 795], "officehome": [2427, 4365, 4439, 4357]}.get(name, counts) == counts


# --- domainnet -------------------------------------------------------------------------------------------------------


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
def net_trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return trusting(monkeypatch, domainnet.DomainNet)


@pytest.fixture
def net() -> domainnet.DomainNet:
    return domainnet.DomainNet(size=SIZE)


@pytest.mark.parametrize("zipped", [True, False])
def test_domainnet_without_lists(net: domainnet.DomainNet, folder: Path, net_trust: Trust, zipped: bool) -> None:
    write_net_zips(folder, net_files()) if zipped else write_files(folder, net_files())
    net_trust(folder)
    names = [f"{domain}.zip" if zipped else f"folder {domain}" for domain in net.domains]
    assert_every_image(net, folder, ", ".join(names))


def test_domainnet_with_lists_and_domains_of_both_kinds(
    net: domainnet.DomainNet, folder: Path, net_trust: Trust
) -> None:
    files = net_files()
    write_net_zips(folder, files)
    (folder / "real.zip").unlink()
    write_files(folder, {name: data for name, data in files.items() if name.startswith("real/")})
    net_trust(folder)
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
