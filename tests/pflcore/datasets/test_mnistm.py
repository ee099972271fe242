"""MNIST-M: the official files in miniature, and building it from MNIST and photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.digit_files import (
    IDX,
    LABELS,
    TEST,
    TRAIN,
    assert_holds,
    colour_images,
    digit_images,
    mnistm_files,
    photographs,
    shrink,
    write_mnist,
)
from support.official import Trust, failure, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset, mnistm


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("form", ["archive", "folder", "files"])
def test_mnistm(tmp_path: Path, trust: Trust, form: str) -> None:
    folder = tmp_path / "mnistm"
    if form == "archive":
        write_tar(folder / "mnist_m.tar.gz", mnistm_files() | {"mnist_m/._mnist_m_train": b"x"})
        trust(folder / "mnist_m.tar.gz")
    else:
        root = folder if form == "folder" else folder.parent
        write_files(root, mnistm_files())
        if form == "files":
            (root / "mnist_m").rename(folder)
    before = sorted(tmp_path.rglob("*"))
    assert DATASETS.create("mnistm").found(folder)
    samples = DATASETS.create("mnistm").load(folder)
    names = {"archive": "mnist_m.tar.gz", "folder": "mnist_m", "files": "mnistm"}
    assert_holds(samples, colour_images(), names[form])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"00000003.png", "line 1: '00000003.png' is not an image's name and a label 0..9"),
        (b"00000003.png 10", "line 1: '00000003.png 10' is not an image's name and a label 0..9"),
        (b"00000003.png x y", "line 1: '00000003.png x y' is not an image's name and a label 0..9"),
        (b"../secret.png 1", "line 1: '../secret.png 1' is not an image's name and a label 0..9"),
        (b"\xff\xfe 1 2", "line 1: 'ÿþ 1 2' is not an image's name and a label 0..9"),
        (b"00000010.png 1", "lists an image twice; use the official data"),
    ],
)
def test_mnistm_damaged_lists(folder: Path, line: bytes, message: str) -> None:
    files = mnistm_files()
    name = "mnist_m/mnist_m_train_labels.txt"
    files[name] = b"\n".join([line, *files[name].splitlines()[1:]])
    write_files(folder, files)
    assert failure(DATASETS.create("mnistm"), folder) == f"{folder}/mnist_m: mnist_m_train_labels.txt: {message}"


# --- built from MNIST and photographs ------------------------------------------------------------------------------


Built = tuple[Dataset, Path]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """MNIST beside an empty folder for MNIST-M."""
    write_mnist(tmp_path / "mnist", compressed=False)
    (tmp_path / "mnistm").mkdir()
    return DATASETS.create("mnistm", source="built"), tmp_path / "mnistm"


@pytest.mark.parametrize("archive", [True, False])
def test_building_mnistm(built: Built, archive: bool) -> None:
    dataset, folder = built
    assert not dataset.found(folder)
    if archive:
        write_tar(folder / "BSR_bsds500.tgz", photographs())
    else:
        write_files(folder, photographs())
    assert dataset.found(folder) and not DATASETS.create("mnistm").found(folder)
    samples = dataset.load(folder)
    assert samples.shape == dataset.shape == (3, 28, 28)
    digits = np.concatenate(digit_images(28, 28)).astype(int)
    backgrounds = [{200, 40}] * TRAIN + [{130}] * TEST
    chosen = []
    for image, digit, values in zip(samples.inputs, digits, backgrounds, strict=True):
        fits = [value for value in values if (image == np.abs(digit - value)).all()]
        assert len(fits) == 1, "every image is a digit's difference from one photograph of its split"
        chosen += fits
    assert set(chosen[:TRAIN]) == {200, 40}
    assert samples.labels.tolist() == LABELS[0] + LABELS[1]
    assert samples.train.tolist() == [True] * TRAIN + [False] * TEST
    photos = "BSR_bsds500.tgz" if archive else "BSDS500"
    assert samples.source == f"built from {', '.join(IDX)} and {photos} (seed 0)"
    np.testing.assert_array_equal(dataset.load(folder).inputs, samples.inputs)
    other = DATASETS.create("mnistm", source="built", seed=1).load(folder)
    assert (other.inputs != samples.inputs).any()


def test_patches_come_from_everywhere_and_keep_colours() -> None:
    rows, columns = np.mgrid[:30, :31]
    picture = np.stack([rows, columns, np.full_like(rows, 250)]).astype(np.uint8)
    digits = np.zeros((400, 1, 28, 28), np.uint8)
    digits[:, 0, 5, 6] = 255
    out = np.zeros((400, 3, 28, 28), np.uint8)
    mnistm.blend(digits, np.arange(1, 400), [picture], out, np.random.default_rng(0))
    assert (out[0] == 0).all()
    corners = {(int(image[0, 0, 0]), int(image[1, 0, 0])) for image in out[1:]}
    assert corners == {(top, left) for top in range(3) for left in range(4)}
    top, left = out[1, 0, 0, 0], out[1, 1, 0, 0]
    assert out[1, :, 5, 6].tolist() == [255 - (top + 5), 255 - (left + 6), 5]
    assert out[1, :, 27, 27].tolist() == [top + 27, left + 27, 250]
