"""MNIST, SVHN, SynthDigits, USPS, MNIST-M and OrganAMNIST: official files in miniature."""

from __future__ import annotations

import bz2
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.digit_files import (
    COLOUR,
    GREY,
    IDX,
    LABELS,
    SMALL,
    TEST,
    TRAIN,
    mnistm_files,
    photographs,
    shrink,
    usps_values,
    write_matlab,
    write_mnist,
    write_svhn,
    write_synthdigits,
    write_usps_hdf5,
)  # fmt: skip
from support.official import Hostile, failure, trust, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset, digits5
from pflcore.datasets.small_images import OrganAMnist


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def create(name: str, **options: Any) -> Dataset:
    return DATASETS.create(name, **options)


def usps_text(part: int) -> str:
    rows = zip(usps_values(part) * 2.0 - 1, LABELS[part], strict=True)
    return "".join(f"{label + 1} {' '.join(f'{n}:{v:g}' for n, v in enumerate(row, 1))} \n" for row, label in rows)


def write_usps(folder: Path, *texts: str) -> None:
    for name, text in zip(("usps.bz2", "usps.t.bz2"), texts or (usps_text(0), usps_text(1)), strict=True):
        (folder / name).write_bytes(bz2.compress(text.encode()))
    (folder / "usps.h5").write_bytes(b"is not looked at")


def write_mnistm(folder: Path) -> None:
    write_tar(folder / "mnist_m.tar.gz", mnistm_files() | {"mnist_m/._mnist_m_train": b"x"})


# The dataset, what writes it, its images, what a report calls it, and the file whose hash is checked, if any.
FORMS: list[tuple[str, Callable[[Path], object], list[np.ndarray], str, str]] = [
    ("mnist", write_mnist, GREY, ", ".join(f"{name}.gz" for name in IDX), f"{IDX[0]}.gz"),
    ("mnist", lambda f: write_mnist(f / "raw"), GREY, ", ".join(f"{name}.gz" for name in IDX), f"raw/{IDX[0]}.gz"),
    ("mnist", lambda f: write_mnist(f / "MNIST/raw", compressed=False), GREY, ", ".join(IDX), ""),
    ("svhn", write_svhn, COLOUR, "train_32x32.mat, test_32x32.mat", "train_32x32.mat"),
    ("synthdigits", write_synthdigits, COLOUR, "synth_train_32x32.mat, synth_test_32x32.mat", ""),
    ("usps", write_usps, SMALL, "usps.bz2, usps.t.bz2", "usps.bz2"),
    ("usps", lambda f: write_usps_hdf5(f / "usps.h5"), SMALL, "usps.h5", ""),
    ("mnistm", write_mnistm, COLOUR, "mnist_m.tar.gz", "mnist_m.tar.gz"),
    ("mnistm", lambda f: write_files(f, mnistm_files()), COLOUR, "mnist_m", ""),
]


@pytest.mark.parametrize(("name", "write", "images", "source", "hashed"), FORMS)
def test_every_form(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    write: Callable[[Path], object],
    images: list[np.ndarray],
    source: str,
    hashed: str,
) -> None:
    dataset = create(name)
    for place in (folder, folder / "absent"):
        assert not dataset.found(place)
        message = failure(dataset, place)
        assert message.startswith(f"{place}: no data here") and "put " in message and "http" in message
    write(folder)
    if hashed:
        assert failure(dataset, folder).startswith(f"{folder / hashed}: md5 is ")
        trust(monkeypatch)
    before = sorted(folder.rglob("*"))
    assert dataset.found(folder)
    samples = dataset.load(folder)
    np.testing.assert_array_equal(samples.inputs, np.concatenate(images))
    assert samples.labels.tolist() == LABELS[0] + LABELS[1] and samples.class_names == tuple("0123456789")
    assert samples.train.tolist() == [True] * TRAIN + [False] * TEST and samples.source == source
    assert samples.inputs.flags.writeable and sorted(folder.rglob("*")) == before
    if hashed:  # even if its hash were right
        (folder / hashed).write_bytes((folder / hashed).read_bytes()[:300])
        assert failure(dataset, folder).startswith(f"{folder / hashed}: cannot be read (")


def test_lines_of_usps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch)
    train, test = (usps_text(part).splitlines() for part in (0, 1))
    write_usps(folder, "\n".join(["10 2:1 256:-1", *train[1:]]), "\n".join(test))  # what is left out is 0
    samples = create("usps").load(folder)
    assert samples.labels[0] == 9
    assert samples.inputs[0].reshape(-1)[[0, 1, 2, 254, 255]].tolist() == [128, 255, 128, 128, 0]
    for line in ("1 1:0 2:1.5", "1 1:0 2:nan", "1 257:0", "six 1:0"):
        write_usps(folder, "\n".join(train), "\n".join([test[0], line, *test[2:]]))
        assert failure(create("usps"), folder).startswith(f"{folder}/usps.t.bz2: cannot be read (")


def test_further_images_of_svhn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert create("svhn", extra=True).expected == (TRAIN + 531_131, TEST)
    monkeypatch.setattr("pflcore.datasets.small_images._EXTRA", TEST)
    trust(monkeypatch)
    write_svhn(folder)
    write_matlab(folder / "extra_32x32.mat", 1)
    samples = create("svhn", extra=True).load(folder)
    assert samples.train.tolist() == [True] * (TRAIN + TEST) + [False] * TEST
    np.testing.assert_array_equal(samples.inputs[TRAIN : TRAIN + TEST], samples.inputs[TRAIN + TEST :])


@pytest.mark.parametrize("archive", [True, False])
def test_building_mnistm(tmp_path: Path, archive: bool) -> None:
    write_mnist(tmp_path / "mnist", compressed=False)
    dataset, folder = create("mnistm", source="built"), tmp_path / "mnistm"
    assert not dataset.found(folder) and "get BSR_bsds500.tgz" in failure(dataset, folder)
    write_tar(folder / "BSR_bsds500.tgz", photographs()) if archive else write_files(folder, photographs())
    assert dataset.found(folder) and not create("mnistm").found(folder)
    samples = dataset.load(folder)
    assert samples.shape == dataset.shape == (3, 28, 28)
    chosen = []
    backgrounds = [{200, 40}] * TRAIN + [{130}] * TEST
    for image, digit, values in zip(samples.inputs, np.concatenate(GREY).astype(int), backgrounds, strict=True):
        fits = [value for value in values if (image == np.abs(digit - value)).all()]
        assert len(fits) == 1, "every image is a digit's difference from one photograph of its split"
        chosen += fits
    assert set(chosen[:TRAIN]) == {200, 40} and samples.labels.tolist() == LABELS[0] + LABELS[1]
    assert samples.source == f"built from {', '.join(IDX)} and {'BSR_bsds500.tgz' if archive else 'BSDS500'} (seed 0)"
    assert (create("mnistm", source="built", seed=1).load(folder).inputs != samples.inputs).any()


def test_patches_come_from_everywhere_and_keep_colours() -> None:
    rows, columns = np.mgrid[:30, :31]
    picture = np.stack([rows, columns, np.full_like(rows, 250)]).astype(np.uint8)
    digits = np.zeros((400, 1, 28, 28), np.uint8)
    digits[:, 0, 5, 6] = 255
    out = np.zeros((400, 3, 28, 28), np.uint8)
    digits5.blend(digits, np.arange(1, 400), [picture], out, np.random.default_rng(0))
    assert (out[0] == 0).all()
    corners = {(int(image[0, 0, 0]), int(image[1, 0, 0])) for image in out[1:]}
    assert corners == {(top, left) for top in range(3) for left in range(4)}
    top, left = out[1, 0, 0, 0], out[1, 1, 0, 0]
    assert out[1, :, 5, 6].tolist() == [255 - (top + 5), 255 - (left + 6), 5]
    assert out[1, :, 27, 27].tolist() == [top + 27, left + 27, 250]


# --- OrganAMNIST ---------------------------------------------------------------------------------------------------

ORGANS = {"train": [0, 10, 3, 4, 5], "val": [9, 8, 7], "test": [1, 2, 6, 10]}


def write_organs(folder: Path, **changes: np.ndarray) -> Path:
    rng = np.random.default_rng(3)
    made = {f"{split}_images": rng.integers(0, 256, (len(own), 28, 28), np.uint8) for split, own in ORGANS.items()}
    labels = {f"{split}_labels": np.array(own, np.uint8)[:, None] for split, own in ORGANS.items()}
    np.savez(folder / "organamnist.npz", **made, **labels | changes)
    return folder / "organamnist.npz"


def test_organs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [sum(counts) for _, counts in OrganAMnist.releases.values()] == [58_850, 58_830]
    monkeypatch.setattr(
        OrganAMnist, "releases", {name: (one, (8, 4)) for name, (one, _) in OrganAMnist.releases.items()}
    )
    path = write_organs(folder)
    assert failure(create("organamnist"), folder).startswith(f"{path}: md5 is ")
    trust(monkeypatch)
    samples = create("organamnist").load(folder)
    with np.load(path) as whole:
        images = np.concatenate([whole[f"{split}_images"] for split in ORGANS])
    np.testing.assert_array_equal(samples.inputs[:, 0], images)
    assert samples.labels.tolist() == [0, 10, 3, 4, 5, 9, 8, 7, 1, 2, 6, 10]
    assert samples.train.tolist() == [True] * 8 + [False] * 4 and samples.class_names[6] == "liver"
    assert samples.source == "organamnist.npz (v2)" and list(folder.iterdir()) == [path]
    large = create("organamnist", size=224, channels=3).load(folder)
    assert large.shape == (3, 224, 224) and large.std == (0.5, 0.5, 0.5)
    np.testing.assert_array_equal(large.inputs[:, 2], samples.inputs[:, 0])
    for values in ([[0.5], [1], [2]], [[0], [1], [11]], [[print], [1], [2]]):
        write_organs(folder, val_labels=np.array(values))
        assert failure(create("organamnist"), folder).startswith(f"{path}: ")
    path.write_bytes(pickle.dumps(Hostile(folder / "executed")))
    assert "cannot be read" in failure(create("organamnist"), folder) and not (folder / "executed").exists()
