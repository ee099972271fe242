"""CIFAR-10 and CIFAR-100: official archives, pickles and Parquet exports in miniature, whole and damaged."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.cifar_files import (
    COARSE,
    FINE,
    PIXELS100,
    SPLITS,
    assert_complete,
    assert_complete100,
    binary100,
    binary_batch,
    images,
    members,
    members100,
    pickled,
    python100,
    python_batch,
    shrink,
)
from support.official import Files, Hostile, Trust, encoded, failure, plain, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset
from pflcore.datasets._pickle import load_batch
from pflcore.datasets.cifar10 import Cifar10
from pflcore.datasets.cifar100 import Cifar100
from pflcore.errors import UserError

# --- cifar -----------------------------------------------------------------------------------------------------------


PYTHON, BINARY = "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"
PIXELS, LABELS = images(0)


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def cifar() -> Dataset:
    return DATASETS.create("cifar10")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("python", [True, False])
def test_official_archives(cifar: Dataset, trust: Trust, folder: Path, python: bool) -> None:
    path = folder / (PYTHON if python else BINARY)
    write_tar(path, members(python))
    trust(path)
    assert_complete(cifar, folder, path.name)
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("python", [True, False])
def test_official_folders(cifar: Dataset, folder: Path, python: bool) -> None:
    write_files(folder, members(python))
    assert_complete(cifar, folder, "cifar-10-batches-py" if python else "cifar-10-batches-bin")


def test_a_wrong_hash_is_refused_though_a_folder_is_there(cifar: Dataset, folder: Path) -> None:
    write_tar(folder / PYTHON, members(True))
    write_files(folder, members(True))
    found = hashlib.sha256((folder / PYTHON).read_bytes()).hexdigest()
    assert failure(cifar, folder) == (
        f"{folder / PYTHON}: sha256 is {found}, expected "
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce; delete it and get it from "
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    )


@pytest.mark.parametrize("name", ["../evil-of-pfl", "/tmp/evil-of-pfl", "cifar-10-batches-py/../../evil-of-pfl"])
def test_members_that_point_outside_are_refused(cifar: Dataset, trust: Trust, folder: Path, name: str) -> None:
    path = folder / PYTHON
    write_tar(path, {name: b"x", **members(True)})
    trust(path)
    assert failure(cifar, folder) == (
        f"{path}: its member {name!r} points outside of the archive; get it from its official source"
    )
    assert sorted(folder.parent.rglob("*")) == [folder, path] and not Path("/tmp/evil-of-pfl").exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            python_batch(PIXELS[:, :-1].copy(), LABELS),
            "'data' must be a uint8 array of (n, 3072), found an array of (4, 3071)",
        ),
        (pickled({b"labels": LABELS}), "'data' must be a uint8 array of (n, 3072), found a NoneType"),
        (python_batch(PIXELS, LABELS[:-1]), "'labels' must be a list of 4 integers, found 3 of them"),
        (pickled({b"data": PIXELS}), "'labels' must be a list of 4 integers, found a NoneType"),
        (python_batch(PIXELS, [0, 0, 10, 0]), "row 2: label 10 is outside 0..9"),
        (python_batch(PIXELS, [0, -1, 0, 0]), "row 1: label -1 is outside 0..9"),
        (python_batch(PIXELS, [0, 0, 0, True]), "row 3: label True is outside 0..9"),
        (python_batch(PIXELS, [2**80, 0, 0, 0]), f"row 0: label {2**80} is outside 0..9"),
    ],
)
def test_wrong_python_batches(cifar: Dataset, folder: Path, batch: bytes, message: str) -> None:
    write_files(folder, members(True) | {"cifar-10-batches-py/data_batch_4": batch})
    assert failure(cifar, folder) == f"{folder}/cifar-10-batches-py/data_batch_4: {message}"


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (binary_batch(PIXELS, LABELS)[:-1], "12291 bytes are not a multiple of the 3073 of one image"),
        (binary_batch(PIXELS, [0, 0, 0, 200]), "row 3: label 200 is outside 0..9"),
    ],
)
def test_wrong_binary_batches(cifar: Dataset, folder: Path, batch: bytes, message: str) -> None:
    write_files(folder, members(False) | {"cifar-10-batches-bin/test_batch.bin": batch})
    assert failure(cifar, folder) == f"{folder}/cifar-10-batches-bin/test_batch.bin: {message}"


def test_an_incomplete_folder_is_refused(cifar: Dataset, folder: Path) -> None:
    contents = members(True)
    write_files(folder, contents | {"cifar-10-batches-py/test_batch": python_batch(PIXELS[:3], LABELS[:3])})
    assert failure(cifar, folder) == (
        f"{folder}/cifar-10-batches-py: cifar10 has 20 training and 4 test samples, found 20 and 3; "
        "put the complete data there"
    )
    (folder / "cifar-10-batches-py" / "data_batch_5").unlink()
    assert failure(cifar, folder) == (
        f"{folder}/cifar-10-batches-py: data_batch_5 is missing; unpack the official archive again"
    )


def test_an_empty_folder_is_downloaded_to(
    cifar: Dataset, trust: Trust, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(folder / PYTHON, members(True))
    trust(folder / PYTHON)

    def retrieve(url: str, known_hash: str, fname: str, path: Path, **_: Any) -> None:
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
        assert known_hash == f"sha256:{Cifar10.layouts[0].archive.digest}"
        path.mkdir(exist_ok=True)
        shutil.copy(folder / PYTHON, path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert_complete(cifar, folder / "raw", PYTHON)


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError("no route"), "OSError"), (ValueError("bad"), "what it sent has a wrong hash")]
)
def test_a_failed_download_says_what_to_put_where(
    cifar: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def retrieve(*_: Any, path: Path, **__: Any) -> None:
        path.mkdir(exist_ok=True)
        raise error

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    folder = tmp_path / "raw"
    assert failure(cifar, folder) == (
        f"{folder}: no data here, and https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz could not be downloaded "
        f"({reason}); put cifar-10-python.tar.gz into that folder, or cifar-10-binary.tar.gz or cifar-10-batches-py/ "
        "or cifar-10-batches-bin/"
    )
    folder.mkdir(exist_ok=True)
    (folder / "train.parquet").touch()
    assert failure(cifar, folder).endswith("; or have the Parquet files that are there read, with `source: parquet`")


def test_real_data_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    root = os.environ.get("PFL_DATA")
    if root and list((Path(root) / "cifar10").glob("train*.parquet")):
        samples = DATASETS.create("cifar10", source="parquet").load(Path(root) / "cifar10")
        assert np.bincount(samples.labels[samples.train]).tolist() == [5000] * 10
        assert np.bincount(samples.labels[~samples.train]).tolist() == [1000] * 10
        means = samples.inputs[samples.train].mean((0, 2, 3)) / 255
        np.testing.assert_allclose(means, samples.mean, atol=0.001)


# --- cifar100 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cifar100() -> Dataset:
    return DATASETS.create("cifar100")


def test_cifar100_knows_the_coarse_class_of_every_class() -> None:
    assert np.bincount(Cifar100.coarse_of).tolist() == [5] * 20 and len(Cifar100.attributes["coarse"]) == 20
    by_hand = dict(zip(FINE[0] + FINE[1], COARSE[0] + COARSE[1], strict=True))
    assert {fine: Cifar100.coarse_of[fine] for fine in by_hand} == by_hand
    assert list(Cifar100.class_names) == sorted(Cifar100.class_names) and len(Cifar100.class_names) == 100


@pytest.mark.parametrize("python", [True, False])
def test_cifar100_official_archives(cifar100: Dataset, trust: Trust, folder: Path, python: bool) -> None:
    path = folder / ("cifar-100-python.tar.gz" if python else "cifar-100-binary.tar.gz")
    write_tar(path, members100(python))
    assert cifar100.found(folder)
    trust(path)
    assert_complete100(cifar100, folder, path.name)
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("python", [True, False])
def test_cifar100_official_folders(cifar100: Dataset, folder: Path, python: bool) -> None:
    write_files(folder, members100(python))
    assert cifar100.found(folder)
    assert_complete100(cifar100, folder, "cifar-100-python" if python else "cifar-100-binary")


def test_cifar100_options(cifar100: Dataset, folder: Path) -> None:
    write_files(folder, members100(False))
    large = DATASETS.create("cifar100", size=224, normalise="half")
    samples = large.load(folder)
    assert samples.inputs.shape == (12, 3, 32, 32), "the pixels are kept as they are; batches are scaled up"
    assert samples.size == 224 and samples.shape == large.shape == (3, 224, 224)
    assert samples.mean == samples.std == (0.5, 0.5, 0.5)
    with pytest.raises(UserError, match=r"cifar100\.size = 16 must be at least 32"):
        DATASETS.create("cifar100", size=16)
    with pytest.raises(UserError, match="must be one of 'cifar', 'half'"):
        DATASETS.create("cifar100", normalise="imagenet")


@pytest.mark.parametrize("python", [True, False])
def test_cifar100_files_that_contradict_the_coarse_classes_are_refused(
    cifar100: Dataset, folder: Path, python: bool
) -> None:
    contents = members100(python)
    wrong = [16, 18, 18, 13]
    name = "cifar-100-python/test" if python else "cifar-100-binary/test.bin"
    contents[name] = python100(1, coarse=wrong) if python else binary100(1, coarse=wrong)
    write_files(folder, contents)
    assert failure(cifar100, folder) == (
        f"{folder / name.partition('/')[0]}: sample 10: streetcar is in coarse class vehicles_2, not in vehicles_1; "
        "use the official data"
    )


def test_real_cifar100_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    root = os.environ.get("PFL_DATA")
    if root and DATASETS.create("cifar100").found(Path(root) / "cifar100"):
        exported = any((Path(root) / "cifar100").glob("train*.parquet"))
        samples = DATASETS.create("cifar100", source="parquet" if exported else "official").load(
            Path(root) / "cifar100"
        )
        assert np.bincount(samples.labels[samples.train]).tolist() == [500] * 100
        assert np.bincount(samples.labels[~samples.train]).tolist() == [100] * 100


# --- image export ----------------------------------------------------------------------------------------------------


IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture
def export() -> Dataset:
    return DATASETS.create("cifar10", source="parquet")


def encode(row: np.ndarray, kind: str = "PNG") -> bytes:
    return encoded(row.reshape(3, 32, 32), kind)


def write_parquet(path: Path, data: Sequence[bytes | None], **labels: list[int]) -> None:
    column = pa.array([{"bytes": item, "path": None} for item in data], IMAGE)
    pq.write_table(pa.table({"img": column, **labels}), path)


def write_parquet100(path: Path, part: int, coarse: list[int] | None = None, data: list[bytes] | None = None) -> None:
    images = data or [encode(row) for row in PIXELS100[part]]
    write_parquet(path, images, fine_label=FINE[part], coarse_label=COARSE[part] if coarse is None else coarse)


def write_export(folder: Path, kind: str = "PNG") -> None:
    """The training images in two files, the test images in one."""
    for split, name, numbers in (("train", "0", (0, 1, 2)), ("train", "1", (3, 4)), ("test", "0", (5,))):
        data = [encode(row, kind) for number in numbers for row in images(number)[0]]
        labels = [label for number in numbers for label in images(number)[1]]
        write_parquet(folder / f"{split}-{name}.parquet", data, label=labels)


def test_parquet_export(export: Dataset, folder: Path) -> None:
    write_export(folder)
    assert_complete(export, folder, "train-0.parquet, train-1.parquet, test-0.parquet (PNG images)")


def test_an_unreadable_image_is_named(export: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pflcore.datasets._decode._CHUNK", 3)
    good = encode(images(0)[0][0])
    path = folder / "train-0.parquet"
    for bad, reason in (
        (b"no image", "not PNG or JPEG"),
        (plain((0, 0, 0), "GIF", (32, 32)), "not PNG or JPEG"),
        (None, "it is null"),
        (plain((0, 0, 0), "PNG", (33, 32)), "33x32 instead of 32x32 pixels"),
    ):
        write_parquet(path, [*[good] * 7, bad, good, bad], label=[0] * 10)
        assert failure(export, folder) == f"{path}: row 7: not a readable image ({reason})"
    write_parquet(path, [good, good[: len(good) // 2], good], label=[0] * 3)
    assert failure(export, folder).startswith(f"{path}: row 1: not a readable image (")


def test_cifar100_parquet_export(folder: Path) -> None:
    export100 = DATASETS.create("cifar100", source="parquet")
    for part, split in enumerate(SPLITS):
        write_parquet100(folder / f"{split}-0.parquet", part)
    assert_complete100(export100, folder, "train-0.parquet, test-0.parquet (PNG images)")


# --- pickle ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "files", "batch"),
    [
        ("cifar10", members(True), "cifar-10-batches-py/data_batch_2"),
        ("cifar100", members100(True), "cifar-100-python/train"),
    ],
    ids=["cifar10", "cifar100"],
)
def test_a_hostile_pickle_is_refused_and_not_run(folder: Path, name: str, files: Files, batch: str) -> None:
    target = folder / "executed"
    write_files(folder, files | {batch: pickle.dumps({"data": Hostile(target)}, 2)})
    assert failure(DATASETS.create(name), folder) == (
        f"{folder / batch}: refused: the pickle asks for posix.system; use the official file"
    )
    assert not target.exists()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (eval, "builtins.eval"),
        (np.load, "numpy.load"),
        (np.float64(1), "numpy._core.multiarray.scalar"),
        (dataclasses.replace, "dataclasses.replace"),
    ],
)
def test_only_arrays_are_rebuilt(value: object, named: str) -> None:
    with pytest.raises(UserError) as error:
        load_batch(pickle.dumps({"data": value}, 4), "here")
    assert str(error.value) == f"here: refused: the pickle asks for {named}; use the official file"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a readable CIFAR batch (pickle exhausted before seeing STOP); get the file again"),
        (b"\x80\x02}q", "not a readable CIFAR batch (not enough data in stream to read uint1); get the file again"),
        (pickle.dumps([1]), "holds a list, not the dict of a CIFAR batch"),
        (
            pickled({b"data": np.array([object])}).replace(b"c__builtin__\nobject\n", b"N"),
            "not a readable CIFAR batch (an array of type b'O8' instead of uint8); get the file again",
        ),
        (
            pickled({b"data": np.zeros(3)}),
            "not a readable CIFAR batch (an array of type b'f8' instead of uint8); get the file again",
        ),
        (
            # Room for 2**31 objects would be made before the first is remembered.
            b"\x80\x04}r\xff\xff\xff\x7f.",
            "not a readable CIFAR batch (it claims to remember 2,147,483,647 objects); get the file again",
        ),
        (
            # The stand-in for numpy.ndarray itself as the object whose state is set.
            b"\x80\x02cnumpy\nndarray\nN}U\x0c__setstate__K\x01s\x86b.",
            "not a readable CIFAR batch (_Array.__setstate__() missing 1 required positional argument: "
            "'state'); get the file again",
        ),
    ],
)
def test_damaged_pickles(data: bytes, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_batch(data, "here")
    assert str(error.value) == f"here: {message}"
