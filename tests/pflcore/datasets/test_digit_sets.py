"""MNIST, SVHN, SynthDigits, USPS, MNIST-M and OrganAMNIST: official files in miniature, whole and damaged."""

from __future__ import annotations

import bz2
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support.digit_files import (
    IDX,
    LABELS,
    TEST,
    TRAIN,
    assert_holds,
    colour_images,
    digit_images,
    idx,
    mnistm_files,
    photographs,
    pixels,
    shrink,
    usps_images,
    usps_values,
    write_matlab,
    write_mnist,
    write_svhn,
    write_synthdigits,
    write_usps_hdf5,
)
from support.official import Hostile, Trust, encoded, failure, trusting, unreachable, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset, mnistm
from pflcore.datasets.organamnist import OrganAMnist
from pflcore.datasets.svhn import Svhn


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def create(name: str, **options: Any) -> Dataset:
    return DATASETS.create(name, **options)


def usps_text(part: int) -> str:
    rows = zip(usps_values(part) * 2.0 - 1, LABELS[part], strict=True)
    return "".join(f"{label + 1} {' '.join(f'{n}:{v:g}' for n, v in enumerate(row, 1))} \n" for row, label in rows)


def write_usps(folder: Path, trust: Trust, **changes: str) -> None:
    for part, name in enumerate(("usps.bz2", "usps.t.bz2")):
        (folder / name).write_bytes(bz2.compress(changes.get(f"part{part}", usps_text(part)).encode()))
    trust(folder)
    (folder / "usps.h5").write_bytes(b"is not looked at")


def write_mnistm(folder: Path, trust: Trust) -> None:
    write_tar(folder / "mnist_m.tar.gz", mnistm_files() | {"mnist_m/._mnist_m_train": b"x"})
    trust(folder)


def compressed_mnist(place: str) -> Callable[[Path, Trust], None]:
    def write(folder: Path, trust: Trust) -> None:
        write_mnist(folder / place)
        trust(folder / place)

    return write


GREY, SMALL, COLOUR = digit_images(28, 28), usps_images(), colour_images()
FORMS: dict[str, tuple[str, Callable[[Path, Trust], object], list[np.ndarray], str]] = {
    **{f"mnist in {p}": ("mnist", compressed_mnist(p), GREY, ", ".join(f"{n}.gz" for n in IDX)) for p in ("", "raw")},
    "mnist unpacked": ("mnist", lambda f, _: write_mnist(f / "MNIST/raw", compressed=False), GREY, ", ".join(IDX)),
    "svhn": ("svhn", write_svhn, COLOUR, "train_32x32.mat, test_32x32.mat"),
    "synthdigits": (
        "synthdigits",
        lambda f, _: write_synthdigits(f),
        COLOUR,
        "synth_train_32x32.mat, synth_test_32x32.mat",
    ),
    "usps as text": ("usps", write_usps, SMALL, "usps.bz2, usps.t.bz2"),
    "usps as HDF5": ("usps", lambda f, _: write_usps_hdf5(f / "usps.h5"), SMALL, "usps.h5"),
    "mnistm": ("mnistm", write_mnistm, COLOUR, "mnist_m.tar.gz"),
    "mnistm unpacked": ("mnistm", lambda f, _: write_files(f, mnistm_files()), COLOUR, "mnist_m"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form(folder: Path, trust: Trust, form: str) -> None:
    name, write, images, source = FORMS[form]
    assert not create(name).found(folder)
    write(folder, trust)
    before = sorted(folder.rglob("*"))
    assert create(name).found(folder)
    assert_holds(create(name).load(folder), images, source)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("svhn", "train_32x32.mat"),
        ("usps", "usps.bz2"),
        ("organamnist", "organamnist.npz"),
        ("synthdigits", "synth_train_32x32.mat"),
        ("mnistm", "mnist_m.tar.gz"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_what_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, named: str, there: bool) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    folder = tmp_path / name
    if there:
        folder.mkdir()
    message = failure(create(name), folder)
    assert message.startswith(f"{folder}: no data here") and f"put {named}" in message and "http" in message


def test_downloads(folder: Path, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    published = {path.name: path for path in write_mnist(folder / "host")}
    trust(folder / "host")

    def retrieve(url: str, known_hash: str, fname: str, path: Path, **_: Any) -> None:
        assert url.endswith(f"/{fname}") and known_hash.startswith("md5:")
        path.mkdir(exist_ok=True)
        (path / fname).write_bytes(published[fname].read_bytes())

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(create("mnist").load(folder / "mnist")) == TRAIN + TEST
    assert sorted(path.name for path in (folder / "mnist").iterdir()) == sorted(published)


@pytest.mark.parametrize(
    ("form", "name"), [("mnist in ", f"{IDX[1]}.gz"), ("svhn", "test_32x32.mat"), ("usps as text", "usps.bz2")]
)
def test_wrong_hashes_and_files_that_are_cut(folder: Path, trust: Trust, form: str, name: str) -> None:
    dataset, write = create(FORMS[form][0]), FORMS[form][1]
    write(folder, trust)
    path = folder / name
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"of another kind"):
        path.write_bytes(data)
        message = failure(dataset, folder)
        assert message.startswith(f"{path}: md5 is ") and "delete it and get it from http" in message
        trust(path)  # even if its hash were right
        assert failure(dataset, folder).startswith(f"{path}: cannot be read (")
        path.write_bytes(whole)
        trust(path)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"train_images": idx(pixels(0, 28, 28))[:-1]}, IDX[0]),
        ({"t10k_images": b"\0\0\x08\3\0\0"}, IDX[2]),
        ({"t10k_labels": b""}, IDX[3]),
        ({"t10k_labels": idx(np.array(LABELS[1], np.uint8))[:-2]}, IDX[3]),
        ({"train_images": idx(pixels(0, 28, 27))}, IDX[0]),
    ],
)
def test_damaged_idx_files(folder: Path, changes: dict[str, bytes], name: str) -> None:
    write_mnist(folder, compressed=False, **changes)
    message = failure(create("mnist"), folder)
    assert message.startswith(f"{folder}/{name}: cannot be read (") and "pfl fetch" in message


def test_wrong_content(folder: Path, trust: Trust) -> None:
    write_mnist(folder, compressed=False, train_labels=idx(np.array([*LABELS[0][:-1], 10], np.uint8)))
    assert failure(create("mnist"), folder) == f"{folder}: row 14: label 10 is outside 0..9"
    images, labels = idx(pixels(0, 28, 28)[1:]), idx(np.array(LABELS[0][1:], np.uint8))
    write_mnist(folder, compressed=False, train_images=images, train_labels=labels)
    assert "15 training and 10 test samples, found 14 and 10" in failure(create("mnist"), folder)
    lines = usps_text(1).splitlines()
    write_usps(folder, trust, part1="\n".join([lines[0], "11 1:0", *lines[2:]]))
    assert failure(create("usps"), folder) == f"{folder}: row 16: label 10 is outside 0..9"


@pytest.mark.parametrize("line", ["1 1:0 2:1.5", "1 1:0 2:nan", "1 0:0", "1 257:0", "1 1:", "six 1:0"])
def test_damaged_lines_of_usps(folder: Path, trust: Trust, line: str) -> None:
    lines = usps_text(1).splitlines()
    write_usps(folder, trust, part1="\n".join([lines[0], line, *lines[2:]]))
    assert failure(create("usps"), folder).startswith(f"{folder}/usps.t.bz2: cannot be read (")


@pytest.mark.parametrize("changes", [{"X": None}, {"y": None}, {"X": np.zeros((32, 32, 3), np.uint8)}])
def test_matlab_files_of_another_content(folder: Path, changes: dict[str, Any]) -> None:
    write_synthdigits(folder)
    write_matlab(folder / "synth_test_32x32.mat", 1, **changes)
    assert failure(create("synthdigits"), folder).startswith(f"{folder}/synth_test_32x32.mat: ")


def test_values_of_usps(folder: Path, trust: Trust) -> None:
    lines = usps_text(0).splitlines()
    write_usps(folder, trust, part0="\n".join(["10 2:1 256:-1", *lines[1:]]))  # what is left out is 0
    samples = create("usps").load(folder)
    assert samples.labels[0] == 9 and samples.inputs[0].reshape(-1)[[0, 1, 2, 254, 255]].tolist() == [
        128,
        255,
        128,
        128,
        0,
    ]
    for name in ("usps.bz2", "usps.t.bz2"):
        (folder / name).unlink()
    write_usps_hdf5(folder / "usps.h5", train_data=usps_values(0) * 2 - 1)
    assert "a pixel is outside" in failure(create("usps"), folder)


def test_further_images_of_svhn(folder: Path, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Svhn(extra=True).expected == (TRAIN + 531_131, TEST)
    monkeypatch.setattr("pflcore.datasets.svhn._EXTRA", TEST)
    write_svhn(folder, trust)
    write_matlab(folder / "extra_32x32.mat", 1)
    trust(folder)
    samples = Svhn(extra=True).load(folder)
    assert samples.train.tolist() == [True] * (TRAIN + TEST) + [False] * TEST
    np.testing.assert_array_equal(samples.inputs[TRAIN : TRAIN + TEST], samples.inputs[TRAIN + TEST :])


# --- MNIST-M -------------------------------------------------------------------------------------------------------

FIRST = "mnist_m_train/00000003.png"
LIST = "mnist_m_test_labels.txt"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        (FIRST, b"no image", "not PNG"),
        (FIRST, encoded(pixels(0, 3, 32, 32)[0], "BMP"), "not PNG"),
        (FIRST, encoded(pixels(0, 3, 28, 28)[0]), "28x28 instead of 32x32 pixels"),
        (LIST, b"00000003.png x\n", "cannot be read"),
        (LIST, b"absent.png 3\n", "has no mnist_m_test/absent.png"),
        (LIST, b"\xff", "cannot be read"),
        (LIST, b"00000003.png 3\n", "found 15 and 1"),
    ],
)
def test_damaged_files_of_mnistm(folder: Path, name: str, data: bytes, reason: str) -> None:
    write_files(folder, mnistm_files() | {f"mnist_m/{name}": data})
    message = failure(create("mnistm"), folder)
    assert message.startswith(f"{folder}/mnist_m") and reason in message


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
    mnistm.blend(digits, np.arange(1, 400), [picture], out, np.random.default_rng(0))
    assert (out[0] == 0).all()
    corners = {(int(image[0, 0, 0]), int(image[1, 0, 0])) for image in out[1:]}
    assert corners == {(top, left) for top in range(3) for left in range(4)}
    top, left = out[1, 0, 0, 0], out[1, 1, 0, 0]
    assert out[1, :, 5, 6].tolist() == [255 - (top + 5), 255 - (left + 6), 5]
    assert out[1, :, 27, 27].tolist() == [top + 27, left + 27, 250]


# --- OrganAMNIST ---------------------------------------------------------------------------------------------------

ORGANS = {"train": [0, 10, 3, 4, 5], "val": [9, 8, 7], "test": [1, 2, 6, 10]}


def organ_arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    made = {f"{split}_images": rng.integers(0, 256, (len(own), 28, 28), np.uint8) for split, own in ORGANS.items()}
    return made | {f"{split}_labels": np.array(own, np.uint8)[:, None] for split, own in ORGANS.items()} | changes


@pytest.fixture
def organs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    assert [sum(counts) for _, counts in OrganAMnist.releases.values()] == [58_850, 58_830]
    sources = {name: (source, (8, 4)) for name, (source, _) in OrganAMnist.releases.items()}
    monkeypatch.setattr(OrganAMnist, "releases", sources)

    def write(content: bytes = b"", **changes: np.ndarray) -> Path:
        path = folder / "organamnist.npz"
        path.write_bytes(content) if content else np.savez(path, **organ_arrays(**changes))
        trusting(monkeypatch, OrganAMnist)(path)
        return path

    return write


def test_organs(folder: Path, organs: Callable[..., Path]) -> None:
    path = organs()
    samples = create("organamnist").load(folder)
    whole = organ_arrays()
    np.testing.assert_array_equal(samples.inputs[:, 0], np.concatenate([whole[f"{split}_images"] for split in ORGANS]))
    assert samples.labels.tolist() == [0, 10, 3, 4, 5, 9, 8, 7, 1, 2, 6, 10]
    assert samples.train.tolist() == [True] * 8 + [False] * 4 and samples.class_names[6] == "liver"
    assert samples.source == "organamnist.npz (v2)" and list(folder.iterdir()) == [path]
    large = create("organamnist", size=224, channels=3).load(folder)
    assert large.shape == (3, 224, 224) and large.std == (0.5, 0.5, 0.5)
    np.testing.assert_array_equal(large.inputs[:, 2], samples.inputs[:, 0])
    path.write_bytes(path.read_bytes() + b"x")
    assert failure(create("organamnist"), folder).startswith(f"{path}: md5 is ")


@pytest.mark.parametrize(
    "changes",
    [
        {"content": b"not an archive"},
        {"val_images": np.zeros((3, 28, 27), np.uint8)},
        {"val_labels": np.zeros((2, 1), np.uint8)},
        {"val_labels": np.array([[0.5], [1], [2]])},
        {"test_labels": np.array([[0], [1], [2], [11]], np.uint8)},
        {"test_labels": np.array([[print], [1], [2], [3]], object)},
    ],
)
def test_damaged_organs(folder: Path, organs: Callable[..., Path], changes: dict[str, Any]) -> None:
    path = organs(**changes)
    assert failure(create("organamnist"), folder).startswith(f"{path}: ")


def test_hostile_organs(folder: Path, organs: Callable[..., Path]) -> None:
    organs(content=pickle.dumps(Hostile(folder / "executed")))
    assert "cannot be read" in failure(create("organamnist"), folder) and not (folder / "executed").exists()
