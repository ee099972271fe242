"""Datasets of digits: MNIST, SVHN, USPS, SynthDigits, MNIST-M and the five together, in miniature and damaged."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import hashlib
import io
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pooch
import pytest
import scipy.io
from PIL import Image

from pflcore.datasets import DATASETS, Dataset, _matlab, digits5, mnistm, usps
from pflcore.datasets._sources import Source
from pflcore.datasets.mnist import Mnist
from pflcore.datasets.mnistm import MnistM
from pflcore.datasets.svhn import Svhn
from pflcore.datasets.synthdigits import SynthDigits
from pflcore.datasets.usps import Usps
from pflcore.errors import UserError
from pflcore.samples import Samples

TRAIN, TEST = 15, 10  # images of every miniature, unless a test says otherwise
LABELS = [n % 10 for n in range(TRAIN)], [(3 * n) % 10 for n in range(TEST)]
DIGITS = tuple("0123456789")


@pytest.fixture(autouse=True)
def miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of the miniatures; nothing is downloaded."""
    for cls in (Mnist, Svhn, Usps, SynthDigits, MnistM):
        monkeypatch.setattr(cls, "counts", (TRAIN, TEST))
    monkeypatch.setattr(MnistM, "photos", (2, 1))
    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: pytest.fail("tried to download"))


Trust = Callable[[Path], None]


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Makes the hash of a file the expected one."""

    def accept(path: Path) -> None:
        def changed(source: Source) -> Source:
            if source.name != path.name:
                return source
            return dataclasses.replace(source, digest=hashlib.new(source.algorithm, path.read_bytes()).hexdigest())

        for cls in (Mnist, Usps):
            monkeypatch.setattr(cls, "sources", tuple(map(changed, cls.sources)))
        monkeypatch.setattr(Svhn, "sources", {name: changed(source) for name, source in Svhn.sources.items()})
        monkeypatch.setattr(MnistM, "archive", changed(MnistM.archive))

    return accept


def failure(dataset: Dataset, folder: Path) -> str:
    """The one line of the error, after which everything in the folder of folders is as it was."""

    def state() -> dict[Path, bytes]:
        return {path: path.read_bytes() if path.is_file() else b"" for path in sorted(folder.parent.rglob("*"))}

    before = state()
    with pytest.raises(UserError) as error:
        dataset.load(folder)
    assert state() == before
    assert "\n" not in str(error.value)
    return str(error.value)


def unreachable(*_: Any, path: Path, **__: Any) -> None:
    Path(path).mkdir(exist_ok=True)
    raise OSError("no route")


def pixels(part: int, *shape: int) -> np.ndarray:
    """The miniature's images: uint8 [TRAIN or TEST, *shape]."""
    rng = np.random.default_rng([part, *shape])
    return rng.integers(0, 256, ((TRAIN, TEST)[part], *shape), np.uint8)


def assert_holds(samples: Samples, images: list[np.ndarray], source: str) -> None:
    np.testing.assert_array_equal(samples.inputs, np.concatenate(images))
    assert samples.labels.tolist() == LABELS[0] + LABELS[1]
    assert samples.train.tolist() == [True] * TRAIN + [False] * TEST
    assert samples.class_names == DIGITS and samples.source == source
    assert samples.inputs.flags.writeable


@pytest.mark.parametrize("name", ["mnist", "svhn", "usps", "organamnist"])
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
    assert (
        message.startswith(f"{folder}: no data here, and http") and "could not be downloaded (OSError); put" in message
    )


@pytest.mark.parametrize(("name", "named"), [("synthdigits", "synth_train_32x32.mat"), ("mnistm", "mnist_m.tar.gz")])
@pytest.mark.parametrize("there", [True, False])
def test_what_a_person_has_to_get_is_named(tmp_path: Path, name: str, named: str, there: bool) -> None:
    folder = tmp_path / name
    if there:
        folder.mkdir()
    dataset = DATASETS.create(name)
    assert not dataset.found(folder)
    message = failure(dataset, folder)
    assert message.startswith(f"{folder}: no data here; get it from http://yaroslav.ganin.net/ and put {named}")


# --- MNIST ---------------------------------------------------------------------------------------------------------

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, compressed: bool = True, **changes: bytes) -> list[Path]:
    """The four files; `changes` by the last letters of a name without its dashes."""
    arrays = [pixels(0, 28, 28), np.array(LABELS[0], np.uint8), pixels(1, 28, 28), np.array(LABELS[1], np.uint8)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, array in zip(IDX, arrays, strict=True):
        data = changes.get("_".join(name.split("-")[:2]), idx(array))
        paths.append(folder / (f"{name}.gz" if compressed else name))
        paths[-1].write_bytes(gzip.compress(data) if compressed else data)
    return paths


def digit_images(*shape: int) -> list[np.ndarray]:
    return [pixels(part, *shape).reshape(-1, 1, *shape) for part in (0, 1)]


@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("compressed", [True, False])
def test_mnist(tmp_path: Path, trust: Trust, place: str, compressed: bool) -> None:
    paths = write_mnist(tmp_path / place, compressed)
    for path in paths:
        trust(path)
    assert DATASETS.create("mnist").found(tmp_path)
    samples = DATASETS.create("mnist").load(tmp_path)
    assert_holds(samples, digit_images(28, 28), ", ".join(path.name for path in paths))
    assert samples.mean == (0.1307,) and samples.std == (0.3081,)


def test_mnist_is_downloaded(tmp_path: Path, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    published = {path.name: path for path in write_mnist(tmp_path / "host")}
    for path in published.values():
        trust(path)

    def retrieve(url: str, known_hash: str, fname: str, path: Path) -> None:
        assert url == f"https://ossci-datasets.s3.amazonaws.com/mnist/{fname}" and known_hash.startswith("md5:")
        path.mkdir(exist_ok=True)
        (path / fname).write_bytes(published[fname].read_bytes())

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(DATASETS.create("mnist").load(tmp_path / "mnist")) == TRAIN + TEST
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(published)


def test_mnist_of_a_wrong_hash(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_mnist(tmp_path, compressed=False)  # does not hide the wrong one
    found = hashlib.md5((tmp_path / f"{IDX[0]}.gz").read_bytes()).hexdigest()
    assert failure(DATASETS.create("mnist"), tmp_path) == (
        f"{tmp_path}/{IDX[0]}.gz: md5 is {found}, expected f68b3c2dcbeaaa9fbdd348bbdeb94873; delete it and get it from "
        f"https://ossci-datasets.s3.amazonaws.com/mnist/{IDX[0]}.gz"
    )


def test_mnist_truncated(tmp_path: Path, trust: Trust) -> None:
    for path in write_mnist(tmp_path):
        trust(path)
    path = tmp_path / f"{IDX[2]}.gz"
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"no gzip"):
        path.write_bytes(data)
        trust(path)
        message = failure(DATASETS.create("mnist"), tmp_path)
        assert message.startswith(f"{path}: n") and message.count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        (
            {"train_images": idx(pixels(0, 28, 28))[:-1]},
            IDX[0],
            "holds 11,759 bytes after its header, which says 11,760; get the official file",
        ),
        (
            {"t10k_images": idx(pixels(1, 28))},
            IDX[2],
            "not an idx file of bytes with 3 dimensions (it begins with 00000802); get the official file",
        ),
        (
            {"t10k_labels": b"\0\0\x0d\1" + bytes(8)},
            IDX[3],
            "not an idx file of bytes with 1 dimension (it begins with 00000d01); get the official file",
        ),
        (
            {"t10k_labels": b""},
            IDX[3],
            "not an idx file of bytes with 1 dimension (it begins with nothing); get the official file",
        ),
        (
            {"t10k_images": b"\0\0\x08\3\0\0"},
            IDX[2],
            "not an idx file of bytes with 3 dimensions (it begins with 00000803); get the official file",
        ),
        ({"train_images": idx(pixels(0, 28, 27))}, IDX[0], "images of 28x27 instead of 28x28; get the official file"),
        (
            {"train_labels": idx(np.zeros(4, np.uint8))},
            IDX[1],
            "4 labels for 15 images; get the official file",
        ),
        (
            {"train_labels": idx(np.array([*LABELS[0][:-1], 10], np.uint8))},
            IDX[1],
            "row 14: label 10 is outside 0..9",
        ),
    ],
)
def test_mnist_damaged(tmp_path: Path, changes: dict[str, bytes], name: str, message: str) -> None:
    write_mnist(tmp_path, compressed=False, **changes)
    assert failure(DATASETS.create("mnist"), tmp_path) == f"{tmp_path}/{name}: {message}"


def test_mnist_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = idx(pixels(0, 28, 28)[1:]), idx(np.array(LABELS[0][1:], np.uint8))
    write_mnist(tmp_path, compressed=False, train_images=images, train_labels=labels)
    assert failure(DATASETS.create("mnist"), tmp_path) == (
        f"{tmp_path}: mnist has 15 training and 10 test samples, found 14 and 10; put the complete data there"
    )
    (tmp_path / IDX[3]).unlink()
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    assert failure(DATASETS.create("mnist"), tmp_path).endswith(
        f"(OSError); put {IDX[3]}.gz into that folder, or the unpacked file"
    )


# --- SVHN and SynthDigits ------------------------------------------------------------------------------------------


def write_matlab(path: Path, part: int, labels: list[int] | None = None, **changes: Any) -> None:
    """As the authors': X [32, 32, 3, n] and y [n, 1]."""
    digits = np.array(LABELS[part] if labels is None else labels, np.uint8)[:, None]
    contents = {"X": pixels(part, 3, 32, 32).transpose(2, 3, 1, 0), "y": digits} | changes
    path.parent.mkdir(exist_ok=True)
    scipy.io.savemat(path, {name: value for name, value in contents.items() if value is not None}, do_compression=True)


def write_svhn(folder: Path, trust: Trust) -> None:
    for part, split in enumerate(("train", "test")):
        write_matlab(folder / f"{split}_32x32.mat", part, [label or 10 for label in LABELS[part]])
        trust(folder / f"{split}_32x32.mat")


def write_synthdigits(folder: Path) -> None:
    for part, split in enumerate(("train", "test")):
        write_matlab(folder / f"synth_{split}_32x32.mat", part)


def colour_images() -> list[np.ndarray]:
    return [pixels(part, 3, 32, 32) for part in (0, 1)]


def test_svhn(tmp_path: Path, trust: Trust) -> None:
    write_svhn(tmp_path, trust)
    assert DATASETS.create("svhn").found(tmp_path)
    samples = DATASETS.create("svhn").load(tmp_path)
    assert_holds(samples, colour_images(), "train_32x32.mat, test_32x32.mat")


def test_svhn_with_extra_images(tmp_path: Path, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = DATASETS.create("svhn", extra=True)
    assert dataset.expected == (TRAIN + 531_131, TEST)
    monkeypatch.setattr("pflcore.datasets.svhn._EXTRA", TEST)
    write_svhn(tmp_path, trust)
    write_matlab(tmp_path / "extra_32x32.mat", 1, [7] * TEST)
    trust(tmp_path / "extra_32x32.mat")
    samples = dataset.load(tmp_path)
    assert samples.labels.tolist() == LABELS[0] + [7] * TEST + LABELS[1]
    np.testing.assert_array_equal(samples.inputs[TRAIN : TRAIN + TEST], pixels(1, 3, 32, 32))
    assert samples.train.tolist() == [True] * (TRAIN + TEST) + [False] * TEST


def test_svhn_of_a_wrong_hash(tmp_path: Path, trust: Trust) -> None:
    write_svhn(tmp_path, trust)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes() + b"x")
    assert failure(DATASETS.create("svhn"), tmp_path).endswith(
        "; delete it and get it from http://ufldl.stanford.edu/housenumbers/test_32x32.mat"
    )


def test_svhn_labels_are_1_to_10(tmp_path: Path, trust: Trust) -> None:
    write_svhn(tmp_path, trust)
    path = tmp_path / "train_32x32.mat"
    write_matlab(path, 0)
    trust(path)
    assert failure(DATASETS.create("svhn"), tmp_path) == f"{path}: row 0: label 0 is outside 1..10"


def test_synthdigits(tmp_path: Path) -> None:
    write_synthdigits(tmp_path)
    assert DATASETS.create("synthdigits").found(tmp_path)
    samples = DATASETS.create("synthdigits").load(tmp_path)
    assert_holds(samples, colour_images(), "synth_train_32x32.mat, synth_test_32x32.mat")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"X": np.zeros((32, 32, 3), np.uint8)},
            "'X' must be uint8 of 32x32x3xn, found uint8 of 32x32x3; get the official file",
        ),
        (
            {"X": np.zeros((3, 32, 32, TEST), np.uint8)},
            "'X' must be uint8 of 32x32x3xn, found uint8 of 3x32x32x10; get the official file",
        ),
        (
            {"X": np.zeros((32, 32, 3, TEST))},
            "'X' must be uint8 of 32x32x3xn, found double of 32x32x3x10; get the official file",
        ),
        ({"X": None}, "'X' must be uint8 of 32x32x3xn, found nothing; get the official file"),
        ({"y": None}, "'y' must be 10 numbers, found nothing; get the official file"),
        ({"y": np.zeros((9, 1))}, "'y' must be 10 numbers, found double of 9x1; get the official file"),
        (
            {"y": np.array([["a"] * TEST], object)},
            "'y' must be 10 numbers, found cell of 1x10; get the official file",
        ),
        ({"y": np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8, 10]])}, "row 9: label 10 is outside 0..9"),
        ({"y": np.array([[0, 1, 2, 0.5, 4, 5, 6, 7, 8, 9]])}, "row 3: label 0.5 is outside 0..9"),
        ({"y": np.array([[0, 1, np.nan, 3, 4, 5, 6, 7, 8, 9]])}, "row 2: label nan is outside 0..9"),
    ],
)
def test_synthdigits_damaged(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_synthdigits(tmp_path)
    path = tmp_path / "synth_test_32x32.mat"
    write_matlab(path, 1, **changes)
    assert failure(DATASETS.create("synthdigits"), tmp_path) == f"{path}: {message}"


def test_synthdigits_truncated(tmp_path: Path) -> None:
    write_synthdigits(tmp_path)
    path = tmp_path / "synth_train_32x32.mat"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    with h5py.File(tmp_path / "v73.mat", "w") as file:
        file["X"] = np.zeros(3)
    hdf5 = (tmp_path / "v73.mat").read_bytes()
    (tmp_path / "v73.mat").unlink()
    path.write_bytes(whole[: len(whole) // 2])
    message = failure(DATASETS.create("synthdigits"), tmp_path)
    assert message.startswith(f"{path}: ") and message.endswith("; get the official file")
    for data in (whole[:100], b"", b"no matrix" * 50, bytes(flipped), hdf5):
        path.write_bytes(data)
        assert failure(DATASETS.create("synthdigits"), tmp_path).startswith(f"{path}: not a readable MATLAB file (")
    path.unlink()
    assert failure(DATASETS.create("synthdigits"), tmp_path) == (
        f"{tmp_path}: synth_train_32x32.mat is missing; put it there"
    )


def test_synthdigits_incomplete(tmp_path: Path) -> None:
    write_synthdigits(tmp_path)
    images = pixels(1, 3, 32, 32)[1:].transpose(2, 3, 1, 0)
    write_matlab(tmp_path / "synth_test_32x32.mat", 1, LABELS[1][1:], X=images)
    assert failure(DATASETS.create("synthdigits"), tmp_path) == (
        f"{tmp_path}: synthdigits has 15 training and 10 test samples, found 15 and 9; put the complete data there"
    )


def test_what_scipy_warns_of_is_refused(tmp_path: Path) -> None:
    import warnings

    with pytest.raises(UserError, match=r"not a readable MATLAB file \(odd\)"), _matlab._one_line(tmp_path):
        warnings.warn("odd", stacklevel=1)


# --- USPS ----------------------------------------------------------------------------------------------------------


def usps_values(part: int) -> np.ndarray:
    """Values 0..1 as the HDF5 file holds them; those of the text are these, times two, minus one."""
    return (pixels(part, 256) // 51 * 51 / 255).astype(np.float32)


def usps_images() -> list[np.ndarray]:
    return [(pixels(part, 256) // 51 * 51).reshape(-1, 1, 16, 16) for part in (0, 1)]


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


def write_usps_hdf5(path: Path, **changes: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        for part, split in enumerate(("train", "test")):
            group = file.create_group(split)
            group["data"] = changes.get(f"{split}_data", usps_values(part))
            group["target"] = changes.get(f"{split}_target", np.array(LABELS[part], np.int32))


def test_usps_texts(tmp_path: Path, trust: Trust) -> None:
    write_usps_text(tmp_path, trust)
    (tmp_path / "usps.h5").write_bytes(b"is not looked at")
    assert DATASETS.create("usps").found(tmp_path)
    assert_holds(DATASETS.create("usps").load(tmp_path), usps_images(), "usps.bz2, usps.t.bz2")


def test_usps_hdf5(tmp_path: Path) -> None:
    write_usps_hdf5(tmp_path / "usps.h5")
    assert DATASETS.create("usps").found(tmp_path)
    assert_holds(DATASETS.create("usps").load(tmp_path), usps_images(), "usps.h5")


def test_usps_of_a_wrong_hash_and_truncated(tmp_path: Path, trust: Trust) -> None:
    write_usps_text(tmp_path, trust)
    path = tmp_path / "usps.t.bz2"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert failure(DATASETS.create("usps"), tmp_path).endswith(
        "delete it and get it from https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/usps.t.bz2"
    )
    for data in (whole[: len(whole) // 2], b"no bzip2", bz2.compress("ä".encode())):
        path.write_bytes(data)
        trust(path)
        assert failure(DATASETS.create("usps"), tmp_path).startswith(f"{path}: not a readable bzip2 text (")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("11 1:0", "row 1: label 11 is outside 1..10"),
        ("0 1:0", "row 1: label 0 is outside 1..10"),
        ("1.5 1:0", "row 1: label 1.5 is outside 1..10"),
        ("1 1:0 2:1.5", "row 1: a pixel is outside of its range; get the official file"),
        ("1 1:0 2:nan", "row 1: a pixel is outside of its range; get the official file"),
        ("1 0:0", "line 2: not a label and index:value pairs (1..256); get the official file"),
        ("1 257:0", "line 2: not a label and index:value pairs (1..256); get the official file"),
        ("1 1:", "line 2: not a label and index:value pairs (1..256); get the official file"),
        ("1 nan:0", "line 2: not a label and index:value pairs (1..256); get the official file"),
        ("six 1:0", "line 2: not a label and index:value pairs (1..256); get the official file"),
        ("", "line 2: not a label and index:value pairs (1..256); get the official file"),
    ],
)
def test_usps_damaged_text(tmp_path: Path, trust: Trust, line: str, message: str) -> None:
    lines = usps_text(1).splitlines()
    write_usps_text(tmp_path, trust, test="\n".join([lines[0], line, *lines[2:]]))
    assert failure(DATASETS.create("usps"), tmp_path) == f"{tmp_path}/usps.t.bz2: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train_data": np.zeros((15, 255), np.float32)},
            "train/data must be floats of (n, 256), found float32 (15, 255)",
        ),
        ({"train_data": np.zeros((15, 256), np.uint8)}, "train/data must be floats of (n, 256), found uint8 (15, 256)"),
        ({"test_target": np.zeros((10, 1), int)}, "test/target must be integers of (10,), found int64 (10, 1)"),
        ({"test_target": np.zeros(10)}, "test/target must be integers of (10,), found float64 (10,)"),
        ({"test_target": np.array([0] * 9 + [-1])}, "test: row 9: label -1 is outside 0..9"),
        (
            {"train_data": usps_values(0) * 2 - 1},
            "train: row 0: a pixel is outside of its range; get the official file",
        ),
        (
            {"train_target": np.array(["a"] * 15, "S1")},
            "not a readable HDF5 file of USPS (train/target holds |S1, not numbers); get it again",
        ),
    ],
)
def test_usps_damaged_hdf5(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    write_usps_hdf5(tmp_path / "usps.h5", **changes)
    assert failure(DATASETS.create("usps"), tmp_path) == f"{tmp_path}/usps.h5: {message}"


def test_usps_hdf5_does_not_reach_other_files(tmp_path: Path) -> None:
    path, other = tmp_path / "usps" / "usps.h5", tmp_path / "other.h5"
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


def test_usps_unreadable_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "usps.h5"
    write_usps_hdf5(path)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"no HDF5"):
        path.write_bytes(data)
        assert failure(DATASETS.create("usps"), tmp_path).startswith(f"{path}: not a readable HDF5 file of USPS (")
    with h5py.File(path, "w") as file:
        file.create_dataset("train/data", (10**12, 256), "f4", chunks=(1, 256))  # takes a few hundred bytes
    assert "train/data has a shape of (1000000000000, 256)" in failure(DATASETS.create("usps"), tmp_path)
    write_usps_hdf5(path, test_data=usps_values(1)[:4], test_target=np.zeros(4, int))
    assert failure(DATASETS.create("usps"), tmp_path) == (
        f"{tmp_path}: usps has 15 training and 10 test samples, found 15 and 4; put the complete data there"
    )


def test_usps_numbers_that_are_left_out_are_zero(tmp_path: Path, trust: Trust) -> None:
    path = tmp_path / "usps.bz2"
    path.write_bytes(bz2.compress(b"10 2:1 256:-1\n"))
    images, labels = usps._read_text(path)
    assert labels.tolist() == [9] and images.shape == (1, 1, 16, 16)
    assert images.reshape(-1)[[0, 1, 2, 254, 255]].tolist() == [128, 255, 128, 128, 0]


# --- MNIST-M -------------------------------------------------------------------------------------------------------


def png(image: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, kind)
    return file.getvalue()


def mnistm_files() -> dict[str, bytes]:
    """The content of the official archive, whose lists are not in the order of the names."""
    files = {}
    for part, split in enumerate(("train", "test")):
        names = [f"{(7 * n + 3) % 15:08d}.png" for n in range((TRAIN, TEST)[part])]
        for name, image in zip(names, pixels(part, 3, 32, 32), strict=True):
            files[f"mnist_m/mnist_m_{split}/{name}"] = png(image)
        lines = [f"{name} {label}\n" for name, label in zip(names, LABELS[part], strict=True)]
        files[f"mnist_m/mnist_m_{split}_labels.txt"] = "".join(lines).encode()
    return files


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


@pytest.mark.parametrize("form", ["archive", "folder", "files"])
def test_mnistm(tmp_path: Path, trust: Trust, form: str) -> None:
    folder = tmp_path / "mnistm"
    if form == "archive":
        write_archive(folder / "mnist_m.tar.gz", mnistm_files() | {"mnist_m/._mnist_m_train": b"x"})
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


def test_mnistm_damaged_archive(tmp_path: Path, trust: Trust) -> None:
    path = tmp_path / "mnist_m.tar.gz"
    write_archive(path, mnistm_files())
    whole = path.read_bytes()
    assert failure(DATASETS.create("mnistm"), tmp_path).endswith(
        "expected 859df31c91afe82e80e5012ba928f279; delete it and get it from http://yaroslav.ganin.net/"
    )
    path.write_bytes(whole[: len(whole) // 2])
    trust(path)
    assert failure(DATASETS.create("mnistm"), tmp_path).startswith(f"{path}: not a readable archive (")
    for evil in ("../mnist_m_train/evil.png", "/tmp/evil-of-pfl"):
        write_archive(path, mnistm_files() | {evil: b"x"})
        trust(path)
        assert f"its member {evil!r} points outside of the archive" in failure(DATASETS.create("mnistm"), tmp_path)
    files = mnistm_files()
    del files["mnist_m/mnist_m_test/00000003.png"]
    write_archive(path, files)
    trust(path)
    assert failure(DATASETS.create("mnistm"), tmp_path) == (
        f"{path}: mnist_m_test/00000003.png is missing; get the official archive again"
    )
    del files["mnist_m/mnist_m_train_labels.txt"]
    write_archive(path, files)
    trust(path)
    assert failure(DATASETS.create("mnistm"), tmp_path) == (
        f"{path}: mnist_m_train_labels.txt is missing; get the official archive again"
    )


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
def test_mnistm_damaged_lists(tmp_path: Path, line: bytes, message: str) -> None:
    files = mnistm_files()
    name = "mnist_m/mnist_m_train_labels.txt"
    files[name] = b"\n".join([line, *files[name].splitlines()[1:]])
    write_files(tmp_path, files)
    assert failure(DATASETS.create("mnistm"), tmp_path) == f"{tmp_path}/mnist_m: mnist_m_train_labels.txt: {message}"


def test_mnistm_damaged_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pflcore.datasets._decode._CHUNK", 4)
    name = "mnist_m_test/00000002.png"
    large = np.zeros((3, 28, 28), np.uint8)
    for data, reason in (
        (b"no image", "not PNG"),
        (png(pixels(0, 3, 32, 32)[0], "BMP"), "not PNG"),
        (png(large), "28x28 instead of 32x32 pixels"),
    ):
        write_files(tmp_path, mnistm_files() | {f"mnist_m/{name}": data})
        assert failure(DATASETS.create("mnistm"), tmp_path) == (
            f"{tmp_path}/mnist_m: {name}: not a readable image ({reason})"
        )
    files = mnistm_files()
    lists = files["mnist_m/mnist_m_test_labels.txt"].splitlines(keepends=True)
    write_files(tmp_path, files | {"mnist_m/mnist_m_test_labels.txt": b"".join(lists[1:])})
    assert failure(DATASETS.create("mnistm"), tmp_path) == (
        f"{tmp_path}/mnist_m: mnistm has 15 training and 10 test samples, found 15 and 9; put the complete data there"
    )


# --- MNIST-M, built ------------------------------------------------------------------------------------------------

PHOTOS = "BSR/BSDS500/data/images"


def photo(value: int) -> bytes:
    """One colour, so that a patch is known wherever it is cut, and JPEG loses nothing."""
    file = io.BytesIO()
    Image.new("RGB", (60, 40), (value, value, value)).save(file, "JPEG", quality=100)
    return file.getvalue()


def photographs() -> dict[str, bytes]:
    return {
        f"{PHOTOS}/train/100.jpg": photo(200),
        f"{PHOTOS}/train/99.jpg": photo(40),
        f"{PHOTOS}/test/7.jpg": photo(130),
        f"{PHOTOS}/val/1.jpg": b"is not used",
        f"{PHOTOS}/train/Thumbs.db": b"is not an image",
        "BSR/BSDS500/data/groundTruth/train/100.mat": b"is not an image",
    }


@pytest.fixture
def built(tmp_path: Path) -> tuple[Dataset, Path]:
    """MNIST beside an empty folder for MNIST-M."""
    write_mnist(tmp_path / "mnist", compressed=False)
    (tmp_path / "mnistm").mkdir()
    return DATASETS.create("mnistm", source="built"), tmp_path / "mnistm"


Built = tuple[Dataset, Path]


@pytest.mark.parametrize("archive", [True, False])
def test_building_mnistm(built: Built, archive: bool) -> None:
    dataset, folder = built
    assert not dataset.found(folder)
    if archive:
        write_archive(folder / "BSR_bsds500.tgz", photographs())
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


def test_building_mnistm_without_photographs(built: Built) -> None:
    dataset, folder = built
    assert failure(dataset, folder) == (
        f"{folder}: no photographs here; get BSR_bsds500.tgz from "
        "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/resources.html and put it, or what it "
        "unpacks to, there"
    )
    files = photographs()
    del files[f"{PHOTOS}/train/99.jpg"]
    write_files(folder, files)
    assert failure(dataset, folder) == (
        f"{folder}/{PHOTOS}: BSDS500 has 2 training and 1 test photographs, found 1 and 1; put the complete data there"
    )


def test_building_mnistm_of_damaged_photographs(built: Built) -> None:
    dataset, folder = built
    path = folder / "BSR_bsds500.tgz"
    small = io.BytesIO()
    Image.new("RGB", (60, 27)).save(small, "JPEG")
    for data, reason in (
        (b"no image", "not JPEG"),
        (png(np.zeros((3, 60, 60), np.uint8)), "not JPEG"),
        (small.getvalue(), "60x27 pixels are not the size of a photograph"),
    ):
        write_archive(path, photographs() | {f"{PHOTOS}/train/99.jpg": data})
        assert failure(dataset, folder) == f"{path}: {PHOTOS}/train/99.jpg: not a readable image ({reason})"
    write_archive(path, photographs() | {f"{PHOTOS}/train/../../evil.jpg": b"x"})
    assert "points outside of the archive" in failure(dataset, folder)
    path.write_bytes(path.read_bytes()[:300])
    assert failure(dataset, folder).startswith(f"{path}: not a readable archive (")


def test_building_mnistm_without_mnist(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, folder = built
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    write_files(folder, photographs())
    for path in (folder.parent / "mnist").iterdir():
        path.unlink()
    assert failure(dataset, folder).startswith(f"{folder.parent / 'mnist'}: no data here, and https://")


# --- Digits-Five ---------------------------------------------------------------------------------------------------

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
    for size, (domain, part) in zip(sizes, dataset.parts.items(), strict=True):
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
    colour = Image.fromarray(pixels(0, 3, 32, 32)[4].transpose(1, 2, 0)).resize((28, 28), Image.Resampling.BILINEAR)
    for domain in (1, 3, *([4] if source == "official" else [])):
        np.testing.assert_array_equal(samples.inputs[domain * EACH + 4], np.asarray(colour).transpose(2, 0, 1))
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


def test_a_pooled_test_set_is_a_fifth_of_every_class() -> None:
    sizes = [1000, 501, 502, 503, 504, 5, 4, 3, 0, 12]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    train = digits5._draw(labels, "SVHN")
    held = np.bincount(labels[~train], minlength=10)
    assert held.sum() == -(-sum(sizes) // 5)
    assert (np.abs(held - np.array(sizes) / 5) < 1).all()
    assert held.tolist() == [200, 100, 100, 101, 101, 1, 1, 1, 0, 2]


def test_digits5_of_another_size(five: Path) -> None:
    dataset = DATASETS.create("digits5", size=32, mnistm="official")
    samples = dataset.load(five)
    assert samples.inputs.shape == (5 * EACH, *dataset.shape) == (5 * EACH, 3, 32, 32)
    np.testing.assert_array_equal(samples.inputs[EACH : 2 * EACH], np.concatenate(colour_images()))


@pytest.mark.parametrize("name", ["mnist", "svhn", "usps", "synthdigits", "mnistm"])
def test_digits5_needs_all_five(five: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    (five.parent / name).rename(five.parent / "elsewhere")
    dataset = DATASETS.create("digits5")
    assert not dataset.found(five)
    message = failure(dataset, five)
    assert message.startswith(f"{five.parent / name}: no ")
    assert "get it from" in message or "could not be downloaded" in message or "get BSR_bsds500.tgz" in message


def test_digits5_asks_for_what_a_person_has_to_get_before_it_downloads(
    five: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("svhn", "synthdigits"):
        (five.parent / name).rename(five.parent / f"no {name}")
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    assert failure(DATASETS.create("digits5"), five).startswith(f"{five.parent / 'synthdigits'}: no data here; get it")


def test_digits5_names_the_damaged_one(five: Path) -> None:
    path = five.parent / "usps" / "usps.h5"
    path.write_bytes(path.read_bytes()[:1000])
    assert failure(DATASETS.create("digits5"), five).startswith(f"{path}: not a readable HDF5 file of USPS (")


# --- real data -----------------------------------------------------------------------------------------------------


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
