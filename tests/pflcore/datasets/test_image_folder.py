"""Folders of one's own images: classes, splits and domains, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.official import SIZE, failure, no_downloads, plain, write_files

from pflcore.datasets import DATASETS, Dataset, stand_in
from pflcore.errors import UserError


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
