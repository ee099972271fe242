"""MNIST, SVHN, SynthDigits, USPS, MNIST-M and their union: official files in miniature, whole and damaged."""

from __future__ import annotations

import bz2
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pooch
import pytest
from PIL import Image
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
from support.official import Files, Trust, failure, unreachable, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset, digits5
from pflcore.errors import UserError

# --- mnist -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("compressed", [True, False])
def test_mnist(folder: Path, trust: Trust, place: str, compressed: bool) -> None:
    paths = write_mnist(folder / place, compressed)
    for path in paths:
        trust(path)
    assert DATASETS.create("mnist").found(folder)
    samples = DATASETS.create("mnist").load(folder)
    assert_holds(samples, digit_images(28, 28), ", ".join(path.name for path in paths))
    assert samples.mean == (0.1307,) and samples.std == (0.3081,)


SHAPED = "not an idx file of bytes with {} (it begins with {})"


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        (
            {"train_images": idx(pixels(0, 28, 28))[:-1]},
            IDX[0],
            "holds 11,759 bytes after its header, which says 11,760",
        ),
        ({"t10k_images": idx(pixels(1, 28))}, IDX[2], SHAPED.format("3 dimensions", "00000802")),
        ({"t10k_images": b"\0\0\x08\3\0\0"}, IDX[2], SHAPED.format("3 dimensions", "00000803")),
        ({"t10k_labels": b"\0\0\x0d\1" + bytes(8)}, IDX[3], SHAPED.format("1 dimension", "00000d01")),
        ({"t10k_labels": b""}, IDX[3], SHAPED.format("1 dimension", "nothing")),
        ({"train_images": idx(pixels(0, 28, 27))}, IDX[0], "images of 28x27 instead of 28x28"),
        ({"train_labels": idx(np.zeros(4, np.uint8))}, IDX[1], "4 labels for 15 images"),
    ],
)
def test_mnist_damaged(folder: Path, changes: Files, name: str, message: str) -> None:
    write_mnist(folder, compressed=False, **changes)
    assert failure(DATASETS.create("mnist"), folder) == f"{folder}/{name}: {message}; get the official file"


# --- svhn ------------------------------------------------------------------------------------------------------------


def test_svhn(folder: Path, trust: Trust) -> None:
    write_svhn(folder, trust)
    assert DATASETS.create("svhn").found(folder)
    samples = DATASETS.create("svhn").load(folder)
    assert_holds(samples, colour_images(), "train_32x32.mat, test_32x32.mat")


def test_svhn_labels_are_1_to_10(folder: Path, trust: Trust) -> None:
    write_svhn(folder, trust)
    path = folder / "train_32x32.mat"
    write_matlab(path, 0)
    trust(path)
    assert failure(DATASETS.create("svhn"), folder) == f"{path}: row 0: label 0 is outside 1..10"


def test_synthdigits(folder: Path) -> None:
    write_synthdigits(folder)
    assert DATASETS.create("synthdigits").found(folder)
    samples = DATASETS.create("synthdigits").load(folder)
    assert_holds(samples, colour_images(), "synth_train_32x32.mat, synth_test_32x32.mat")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "'X' must be uint8 of 32x32x3xn, found uint8 of 32x32x3"),
        ({"X": np.zeros((3, 32, 32, TEST), np.uint8)}, "'X' must be uint8 of 32x32x3xn, found uint8 of 3x32x32x10"),
        ({"X": np.zeros((32, 32, 3, TEST))}, "'X' must be uint8 of 32x32x3xn, found double of 32x32x3x10"),
        ({"X": None}, "'X' must be uint8 of 32x32x3xn, found nothing"),
        ({"y": None}, "'y' must be 10 numbers, found nothing"),
        ({"y": np.zeros((9, 1))}, "'y' must be 10 numbers, found double of 9x1"),
        ({"y": np.array([["a"] * TEST], object)}, "'y' must be 10 numbers, found cell of 1x10"),
    ],
)
def test_synthdigits_damaged(folder: Path, changes: dict[str, Any], message: str) -> None:
    write_synthdigits(folder)
    path = folder / "synth_test_32x32.mat"
    write_matlab(path, 1, **changes)
    assert failure(DATASETS.create("synthdigits"), folder) == f"{path}: {message}; get the official file"


# --- usps ------------------------------------------------------------------------------------------------------------


def usps_text(part: int) -> str:
    lines = []
    for values, label in zip(usps_values(part) * 2.0 - 1, LABELS[part], strict=True):
        lines.append(f"{label + 1} " + " ".join(f"{n}:{value:g}" for n, value in enumerate(values, 1)) + " \n")
    return "".join(lines)


USPS_TEXTS = ("usps.bz2", "usps.t.bz2")


def write_usps_text(folder: Path, trust: Trust, **changes: str) -> None:
    folder.mkdir(exist_ok=True)
    for part, name in enumerate(USPS_TEXTS):
        text = changes.get(("train", "test")[part], usps_text(part))
        (folder / name).write_bytes(bz2.compress(text.encode()))
        trust(folder / name)


def test_usps_texts(folder: Path, trust: Trust) -> None:
    write_usps_text(folder, trust)
    (folder / "usps.h5").write_bytes(b"is not looked at")
    assert DATASETS.create("usps").found(folder)
    assert_holds(DATASETS.create("usps").load(folder), usps_images(), "usps.bz2, usps.t.bz2")


def test_usps_hdf5(folder: Path) -> None:
    write_usps_hdf5(folder / "usps.h5")
    assert DATASETS.create("usps").found(folder)
    assert_holds(DATASETS.create("usps").load(folder), usps_images(), "usps.h5")


PAIRS = "line 2: not a label and index:value pairs (1..256); get the official file"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("11 1:0", "row 1: label 11 is outside 1..10"),
        ("0 1:0", "row 1: label 0 is outside 1..10"),
        ("1.5 1:0", "row 1: label 1.5 is outside 1..10"),
        ("1 1:0 2:1.5", "row 1: a pixel is outside of its range; get the official file"),
        ("1 1:0 2:nan", "row 1: a pixel is outside of its range; get the official file"),
        *((line, PAIRS) for line in ("1 0:0", "1 257:0", "1 1:", "1 nan:0", "six 1:0", "")),
    ],
)
def test_usps_damaged_text(folder: Path, trust: Trust, line: str, message: str) -> None:
    lines = usps_text(1).splitlines()
    write_usps_text(folder, trust, test="\n".join([lines[0], line, *lines[2:]]))
    assert failure(DATASETS.create("usps"), folder) == f"{folder}/usps.t.bz2: {message}"


def test_usps_hdf5_does_not_reach_other_files(folder: Path) -> None:
    path, other = folder / "usps" / "usps.h5", folder / "other.h5"
    write_usps_hdf5(other)
    write_usps_hdf5(path)

    def refused(change: Callable[[h5py.File], None], name: str) -> None:
        write_usps_hdf5(path)
        with h5py.File(path, "a") as file:
            change(file)
        assert failure(DATASETS.create("usps"), path.parent) == (
            f"{path}: not a readable HDF5 file of USPS ({name} is not an array in it); get it again"
        )

    def external_link(file: h5py.File) -> None:
        del file["test/data"]
        file["test/data"] = h5py.ExternalLink(str(other), "test/data")

    def external_group(file: h5py.File) -> None:
        del file["train"]
        file["train"] = h5py.ExternalLink(str(other), "train")

    def external_storage(file: h5py.File) -> None:
        del file["test/data"]
        file["test"].create_dataset("data", (10, 256), "f4", external=[(str(other), 0, 10 * 256 * 4)])

    def virtual(file: h5py.File) -> None:
        del file["test/data"]
        layout = h5py.VirtualLayout((10, 256), "f4")
        layout[:] = h5py.VirtualSource(str(other), "test/data", (10, 256))
        file["test"].create_virtual_dataset("data", layout)

    refused(external_link, "test/data")
    refused(external_group, "train/data")
    refused(external_storage, "test/data")
    refused(virtual, "test/data")


# --- mnistm ----------------------------------------------------------------------------------------------------------


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


# --- digits5 ---------------------------------------------------------------------------------------------------------


DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")
EACH = TRAIN + TEST


@pytest.fixture
def five(tmp_path: Path, trust: Trust) -> Path:
    """The folders of the five datasets, and the one of their union, which is not there."""
    write_mnist(tmp_path / "mnist", compressed=False)
    write_svhn(tmp_path / "svhn", trust)
    write_usps_hdf5(tmp_path / "usps" / "usps.h5")
    write_synthdigits(tmp_path / "synthdigits")
    write_files(tmp_path / "mnistm", mnistm_files() | photographs())
    return tmp_path / "digits5"


def test_digits5_has_the_sizes_of_fedbn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    sizes = [(56_000, 14_000), (79_431, 19_858), (7_438, 1_860), (391_162, 97_791), (56_000, 14_000)]
    dataset = DATASETS.create("digits5")
    for size, (domain, part) in zip(sizes, dataset.domains.items(), strict=True):
        whole = sum(part.expected)
        assert (whole - digits5._fifth(whole), digits5._fifth(whole)) == size, domain
    assert dataset.expected == dataset.counts == tuple(map(sum, zip(*sizes, strict=True)))
    assert DATASETS.create("digits5", split="official").expected == (
        60_000 + 73_257 + 7_291 + 479_400 + 60_000,
        10_000 + 26_032 + 2_007 + 9_553 + 10_000,
    )


@pytest.mark.parametrize("source", ["built", "official"])
def test_digits5_official_split(five: Path, source: str) -> None:
    dataset = DATASETS.create("digits5", split="official", mnistm=source)
    assert dataset.found(five)
    samples = dataset.load(five)
    assert not five.exists()
    assert samples.attributes["domain"].names == DOMAINS
    assert samples.attributes["domain"].values.tolist() == [n for n in range(5) for _ in range(EACH)]
    assert samples.labels.tolist() == (LABELS[0] + LABELS[1]) * 5
    assert samples.train.tolist() == ([True] * TRAIN + [False] * TEST) * 5
    assert samples.shape == dataset.shape == (3, 28, 28) and samples.mean == samples.std == (0.5, 0.5, 0.5)
    grey = np.concatenate(digit_images(28, 28))
    np.testing.assert_array_equal(samples.inputs[:EACH], np.repeat(grey, 3, axis=1))
    scaled = Image.fromarray(pixels(0, 3, 32, 32)[4].transpose(1, 2, 0)).resize((28, 28), Image.Resampling.BILINEAR)
    for domain in (1, 3, *([4] if source == "official" else [])):
        np.testing.assert_array_equal(samples.inputs[domain * EACH + 4], np.asarray(scaled).transpose(2, 0, 1))
    small = Image.fromarray(usps_images()[1][2, 0]).resize((28, 28), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(samples.inputs[2 * EACH + TRAIN + 2], np.stack([np.asarray(small)] * 3))
    assert samples.source.startswith("MNIST: train-images-idx3-ubyte, ")
    assert "; SVHN: train_32x32.mat, test_32x32.mat; USPS: usps.h5; SynthDigits: synth" in samples.source
    assert samples.source.endswith("MNIST-M: mnist_m" if source == "official" else "and BSDS500 (seed 0)")


def test_digits5_pooled_split(five: Path) -> None:
    samples = DATASETS.create("digits5").load(five)
    official = DATASETS.create("digits5", split="official").load(five)
    np.testing.assert_array_equal(samples.inputs, official.inputs)
    np.testing.assert_array_equal(samples.labels, official.labels)
    domains = samples.attributes["domain"].values
    tests = [~samples.train[domains == domain] for domain in range(5)]
    assert [int(test.sum()) for test in tests] == [5] * 5
    labels = samples.labels[:EACH]
    for test in tests:
        held = np.bincount(labels[test], minlength=10)
        assert held.max() <= 1, "each class has two or three images, so none gives two to the test set"
    assert len({tuple(np.flatnonzero(test)) for test in tests}) > 1, "every domain has a draw of its own"
    np.testing.assert_array_equal(DATASETS.create("digits5", size=32).load(five).train, samples.train)


def test_digits5_of_two_domains_has_their_samples_and_needs_no_others(five: Path) -> None:
    whole = DATASETS.create("digits5").load(five)
    for name in ("mnist", "svhn", "synthdigits"):
        (five.parent / name).rename(five.parent / f"no {name}")
    write_mnist(five.parent / "mnist", compressed=False)  # MNIST-M is made of it
    dataset = DATASETS.create("digits5", domain_list=("MNIST-M", "USPS"))
    assert dataset.found(five) and {part.what.split(",")[0] for part in dataset.parts(five)} == {"MNIST-M", "USPS"}
    samples = dataset.load(five)
    assert samples.attributes["domain"].names == dataset.attributes["domain"] == ("MNIST-M", "USPS")
    assert samples.attributes["domain"].values.tolist() == [0] * EACH + [1] * EACH
    rows = np.r_[4 * EACH : 5 * EACH, 2 * EACH : 3 * EACH]
    np.testing.assert_array_equal(samples.inputs, whole.inputs[rows])
    np.testing.assert_array_equal(samples.labels, whole.labels[rows])
    np.testing.assert_array_equal(samples.train, whole.train[rows])
    assert DATASETS.create("digits5").attributes["domain"] == DOMAINS


@pytest.mark.parametrize("names", [(), ("USPS", "USPS"), ("USPS", "usps")])
def test_domains_are_distinct_and_known(names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="domain_list"):
        DATASETS.create("digits5", domain_list=names)


def test_a_pooled_test_set_is_a_fifth_of_every_class() -> None:
    sizes = [1000, 501, 502, 503, 504, 5, 4, 3, 0, 12]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    train = digits5._draw(labels, "SVHN")
    held = np.bincount(labels[~train], minlength=10)
    assert held.sum() == -(-sum(sizes) // 5)
    assert (np.abs(held - np.array(sizes) / 5) < 1).all()
    assert held.tolist() == [200, 100, 100, 101, 101, 1, 1, 1, 0, 2]


# --- the five by themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "svhn", "usps"])
@pytest.mark.parametrize("there", [True, False])
def test_what_can_be_downloaded_but_is_not_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, there: bool
) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    folder = tmp_path / name
    if there:
        folder.mkdir()
    dataset = DATASETS.create(name)
    assert not dataset.found(folder)
    message = failure(dataset, folder)
    assert message.startswith(f"{folder}: no data here, and http")
    assert "could not be downloaded (OSError); put" in message


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", (0.1307,), (0.3081,)),
        ("usps", (0.2545,), (0.3846,)),
        ("svhn", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        ("synthdigits", None, None),
        ("mnistm", None, None),
    ],
)
def test_real_data_where_there_is_some(
    monkeypatch: pytest.MonkeyPatch, name: str, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> None:
    monkeypatch.undo()
    root = os.environ.get("PFL_DATA")
    dataset = DATASETS.create(name)
    if root and dataset.found(Path(root) / name):
        samples = dataset.load(Path(root) / name)
        assert (np.bincount(samples.labels[samples.train]) > samples.train.sum() / 20).all()
        if mean and std:
            inputs = samples.inputs[samples.train]
            np.testing.assert_allclose(inputs.mean((0, 2, 3)) / 255, mean, atol=1e-4)
            np.testing.assert_allclose(inputs.std((0, 2, 3)) / 255, std, atol=1e-4)
