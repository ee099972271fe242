"""CIFAR: its official layouts and Parquet exports in miniature, whole and damaged."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pooch
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pflcore.datasets import DATASETS, Dataset, cifar10, stand_in
from pflcore.datasets._pickle import load_batch
from pflcore.errors import UserError
from pflcore.sample_files import read_samples, write_samples

PER_BATCH = 4
PYTHON, BINARY = "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


# --- CIFAR-10: miniature files of the official layouts -------------------------------------------------------------


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes bytes and str as Python 2 wrote its strings."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def pickled(value: object) -> bytes:
    """As the official batches: protocol 2, Python 2 strings, the module names of NumPy 1."""
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


Images = tuple[np.ndarray, list[int]]


def images(number: int) -> Images:
    """Pixels uint8 [n, 3072] and labels of one miniature batch."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (PER_BATCH, 3072), np.uint8), rng.integers(0, 10, PER_BATCH).tolist()


def python_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    return pickled({b"batch_label": b"a batch", b"labels": labels, b"data": pixels, b"filenames": [b"x.png"]})


def binary_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    return np.concatenate([np.array(labels, np.uint8)[:, None], pixels], 1).tobytes()


def members(python: bool) -> dict[str, bytes]:
    """Archive members by name."""
    encode, folder, suffix = (
        (python_batch, "cifar-10-batches-py", "") if python else (binary_batch, "cifar-10-batches-bin", ".bin")
    )
    return {f"{folder}/{name}{suffix}": encode(*images(number)) for number, name in enumerate(NAMES)}


def write_archive(path: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_folder(root: Path, contents: dict[str, bytes]) -> None:
    for name, data in contents.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """CIFAR-10 with the size of the miniature files."""
    monkeypatch.setattr(cifar10.Cifar10, "counts", (5 * PER_BATCH, PER_BATCH))
    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: pytest.fail("tried to download"))
    return DATASETS.create("cifar10")


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes the hash of an archive the expected one."""

    def accept(path: Path) -> None:
        layouts = []
        for layout in cifar10.LAYOUTS:
            archive = layout.archive
            if archive.name == path.name:
                digest = hashlib.new(archive.algorithm, path.read_bytes()).hexdigest()
                layout = dataclasses.replace(layout, archive=dataclasses.replace(archive, digest=digest))
            layouts.append(layout)
        monkeypatch.setattr(cifar10, "LAYOUTS", tuple(layouts))

    return accept


Trust = Callable[[Path], None]


def assert_complete(dataset: Dataset, folder: Path, source: str) -> None:
    samples = dataset.load(folder)
    pixels = np.concatenate([images(number)[0] for number in range(6)]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(samples.inputs, pixels)
    assert samples.labels.tolist() == [label for number in range(6) for label in images(number)[1]]
    assert samples.train.tolist() == [True] * 5 * PER_BATCH + [False] * PER_BATCH
    assert samples.source == source and samples.class_names[3] == "cat"
    assert samples.inputs.flags.writeable


def failure(dataset: Dataset, folder: Path) -> str:
    before = sorted(folder.rglob("*")), sorted(folder.parent.iterdir())
    with pytest.raises(UserError) as error:
        dataset.load(folder)
    assert (sorted(folder.rglob("*")), sorted(folder.parent.iterdir())) == before
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("python", [True, False])
def test_official_archives(cifar: Dataset, trust: Trust, tmp_path: Path, python: bool) -> None:
    path = tmp_path / (PYTHON if python else BINARY)
    write_archive(path, members(python))
    trust(path)
    assert_complete(cifar, tmp_path, path.name)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("python", [True, False])
def test_official_folders(cifar: Dataset, tmp_path: Path, python: bool) -> None:
    write_folder(tmp_path, members(python))
    assert_complete(cifar, tmp_path, "cifar-10-batches-py" if python else "cifar-10-batches-bin")


def test_batches_pickled_by_current_numpy(cifar: Dataset, tmp_path: Path) -> None:
    contents = {
        name: pickle.dumps({"labels": images(number)[1], "data": images(number)[0]}, 3)
        for number, name in enumerate(members(True))
    }
    assert all(b"multiarray" in data for data in contents.values())
    write_folder(tmp_path, contents)
    assert_complete(cifar, tmp_path, "cifar-10-batches-py")


def test_a_wrong_hash_is_refused_though_a_folder_is_there(cifar: Dataset, tmp_path: Path) -> None:
    write_archive(tmp_path / PYTHON, members(True))
    write_folder(tmp_path, members(True))
    found = hashlib.sha256((tmp_path / PYTHON).read_bytes()).hexdigest()
    assert failure(cifar, tmp_path) == (
        f"{tmp_path / PYTHON}: sha256 is {found}, expected "
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce; delete it and get it from "
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    )


@pytest.mark.parametrize("python", [True, False])
def test_a_truncated_archive_is_refused(cifar: Dataset, trust: Trust, tmp_path: Path, python: bool) -> None:
    path = tmp_path / (PYTHON if python else BINARY)
    write_archive(path, members(python))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "delete it and get it from" in failure(cifar, tmp_path)
    trust(path)  # even if its hash were right
    assert failure(cifar, tmp_path).startswith(f"{path}: not a readable archive (")


def test_an_archive_without_a_batch_is_refused(cifar: Dataset, trust: Trust, tmp_path: Path) -> None:
    contents = members(True)
    del contents["cifar-10-batches-py/data_batch_3"]
    write_archive(tmp_path / PYTHON, contents)
    trust(tmp_path / PYTHON)
    assert failure(cifar, tmp_path) == f"{tmp_path / PYTHON}: has no member cifar-10-batches-py/data_batch_3"


def test_stray_members_are_passed_over_and_nothing_is_written(cifar: Dataset, trust: Trust, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    path = folder / PYTHON
    write_archive(path, {"../evil": b"x", "/tmp/evil-of-pfl": b"x", "data_batch_1": b"x", **members(True)})
    trust(path)
    assert_complete(cifar, folder, PYTHON)
    assert sorted(tmp_path.rglob("*")) == [folder, path] and not Path("/tmp/evil-of-pfl").exists()


class Hostile:
    """A pickle of it runs a command wherever it is loaded without care."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def test_a_hostile_pickle_is_refused_and_not_run(cifar: Dataset, tmp_path: Path) -> None:
    contents = members(True)
    target = tmp_path / "executed"
    contents["cifar-10-batches-py/data_batch_2"] = pickle.dumps({"data": Hostile(target)}, 2)
    write_folder(tmp_path, contents)
    assert failure(cifar, tmp_path) == (
        f"{tmp_path / 'cifar-10-batches-py' / 'data_batch_2'}: refused: the pickle asks for posix.system; "
        "use the official file"
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
        (b"", "here: not a readable CIFAR batch (EOFError: Ran out of input)"),
        (b"\x80\x02}q", "here: not a readable CIFAR batch (UnpicklingError: pickle data was truncated)"),
        (pickle.dumps([1]), "here: holds a list, not the dict of a CIFAR batch"),
        (
            pickled({b"data": np.array([object])}).replace(b"c__builtin__\nobject\n", b"N"),
            "here: not a readable CIFAR batch (ValueError: an array of type b'O8' instead of uint8)",
        ),
        (
            pickled({b"data": np.zeros(3)}),
            "here: not a readable CIFAR batch (ValueError: an array of type b'f8' instead of uint8)",
        ),
        (
            # The stand-in for numpy.ndarray itself as the object whose state is set.
            b"\x80\x02cnumpy\nndarray\nN}U\x0c__setstate__K\x01s\x86b.",
            "here: not a readable CIFAR batch (TypeError: _Array.__setstate__() missing 1 required positional "
            "argument: 'state')",
        ),
    ],
)
def test_damaged_pickles(data: bytes, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_batch(data, "here")
    assert str(error.value) == message


def test_column_major_arrays_are_read_in_their_order() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert load_batch(pickled({b"data": array}), "here")["data"].tolist() == array.tolist()


PIXELS, LABELS = images(0)


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
def test_wrong_python_batches(cifar: Dataset, tmp_path: Path, batch: bytes, message: str) -> None:
    write_folder(tmp_path, members(True) | {"cifar-10-batches-py/data_batch_4": batch})
    assert failure(cifar, tmp_path) == f"{tmp_path}/cifar-10-batches-py/data_batch_4: {message}"


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (binary_batch(PIXELS, LABELS)[:-1], "12291 bytes are not a multiple of the 3073 of one image"),
        (binary_batch(PIXELS, [0, 0, 0, 200]), "row 3: label 200 is outside 0..9"),
    ],
)
def test_wrong_binary_batches(cifar: Dataset, tmp_path: Path, batch: bytes, message: str) -> None:
    write_folder(tmp_path, members(False) | {"cifar-10-batches-bin/test_batch.bin": batch})
    assert failure(cifar, tmp_path) == f"{tmp_path}/cifar-10-batches-bin/test_batch.bin: {message}"


def test_an_incomplete_folder_is_refused(cifar: Dataset, tmp_path: Path) -> None:
    contents = members(True)
    write_folder(tmp_path, contents | {"cifar-10-batches-py/test_batch": python_batch(PIXELS[:3], LABELS[:3])})
    assert failure(cifar, tmp_path) == (
        f"{tmp_path}/cifar-10-batches-py: cifar10 has 20 training and 4 test images, found 20 and 3; "
        "put the complete data there"
    )
    (tmp_path / "cifar-10-batches-py" / "data_batch_5").unlink()
    assert failure(cifar, tmp_path) == (
        f"{tmp_path}/cifar-10-batches-py: data_batch_5 is missing; unpack the official archive again"
    )


def test_an_empty_folder_is_downloaded_to(
    cifar: Dataset, trust: Trust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / PYTHON, members(True))
    trust(tmp_path / PYTHON)

    def retrieve(url: str, known_hash: str, fname: str, path: Path) -> None:
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
        assert known_hash == f"sha256:{cifar10.LAYOUTS[0].archive.digest}"
        path.mkdir()
        shutil.copy(tmp_path / PYTHON, path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert_complete(cifar, tmp_path / "raw", PYTHON)


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError("no route"), "OSError"), (ValueError("bad"), "what it sent has a wrong hash")]
)
def test_a_failed_download_says_what_to_put_where(
    cifar: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def retrieve(*_: Any, path: Path, **__: Any) -> None:
        path.mkdir()
        raise error

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    folder = tmp_path / "raw"
    assert failure(cifar, folder) == (
        f"{folder}: no data here, and https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz could not be downloaded "
        f"({reason}); put cifar-10-python.tar.gz into that folder, or cifar-10-binary.tar.gz or cifar-10-batches-py/ "
        "or cifar-10-batches-bin/"
    )


# --- CIFAR-10: Parquet ---------------------------------------------------------------------------------------------


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.reshape(3, 32, 32).transpose(1, 2, 0)).save(file, kind)
    return file.getvalue()


IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_parquet(path: Path, data: list[bytes | None], labels: list[int]) -> None:
    column = pa.array([{"bytes": item, "path": None} for item in data], IMAGE)
    pq.write_table(pa.table({"img": column, "label": pa.array(labels)}), path)


def write_export(folder: Path, kind: str = "PNG") -> None:
    """The training images in two files, the test images in one."""
    for split, name, numbers in (("train", "0", (0, 1, 2)), ("train", "1", (3, 4)), ("test", "0", (5,))):
        data = [encode(row, kind) for number in numbers for row in images(number)[0]]
        labels = [label for number in numbers for label in images(number)[1]]
        write_parquet(folder / f"{split}-{name}.parquet", data, labels)


@pytest.fixture
def export(cifar: Dataset) -> Dataset:
    return DATASETS.create("cifar10", source="parquet")


def test_parquet_export(export: Dataset, tmp_path: Path) -> None:
    write_export(tmp_path)
    assert_complete(export, tmp_path, "train-0.parquet, train-1.parquet, test-0.parquet (PNG images)")


def test_parquet_export_of_jpeg(export: Dataset, tmp_path: Path) -> None:
    write_export(tmp_path, "JPEG")
    samples = export.load(tmp_path)
    assert samples.source.endswith("(JPEG images)") and len(samples) == 24


def test_parquet_of_an_empty_folder(export: Dataset, tmp_path: Path) -> None:
    assert failure(export, tmp_path) == (
        f"{tmp_path}: no train*.parquet; put the files of a Parquet export of CIFAR-10 there"
    )
    write_export(tmp_path)
    (tmp_path / "test-0.parquet").unlink()
    assert failure(export, tmp_path) == (
        f"{tmp_path}: no test*.parquet; put the files of a Parquet export of CIFAR-10 there"
    )


def test_an_unreadable_image_is_named(export: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pflcore.datasets._image_tables._CHUNK", 3)
    good = encode(PIXELS[0])
    large = io.BytesIO()
    Image.new("RGB", (33, 32)).save(large, "PNG")
    gif = io.BytesIO()
    Image.new("RGB", (32, 32)).save(gif, "GIF")
    path = tmp_path / "train-0.parquet"
    for bad, reason in (
        (b"no image", "neither PNG nor JPEG"),
        (gif.getvalue(), "neither PNG nor JPEG"),
        (None, "it is null"),
        (large.getvalue(), "33x32 instead of 32x32 pixels"),
    ):
        write_parquet(path, [*[good] * 7, bad, good, bad], [0] * 10)
        assert failure(export, tmp_path) == f"{path}: row 7: not a readable image ({reason})"
    write_parquet(path, [good, good[: len(good) // 2], good], [0] * 3)
    assert failure(export, tmp_path).startswith(f"{path}: row 1: not a readable image (")


def test_parquet_of_another_layout(export: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    good = encode(PIXELS[0])
    write_parquet(path, [good, good], [3, 10])
    assert failure(export, tmp_path) == f"{path}: row 1: label 10 is outside 0..9"
    pq.write_table(pa.table({"img": pa.array([b"x"]), "label": pa.array([0])}), path)
    assert failure(export, tmp_path) == (
        f"{path}: needs a column 'img' of struct<bytes: binary>, has img: binary, label: int64"
    )
    pq.write_table(pa.table({"img": pa.array([{"bytes": good}])}), path)
    assert failure(export, tmp_path) == (f"{path}: needs a column 'label' of integers, has img: struct<bytes: binary>")
    pq.write_table(pa.table({"other": pa.array([0])}), path)
    assert failure(export, tmp_path) == (f"{path}: needs a column 'img' of struct<bytes: binary>, has other: int64")
    path.write_bytes(b"not Parquet")
    assert failure(export, tmp_path).startswith(f"{path}: not a readable Parquet file (")


def test_an_incomplete_export_is_refused(export: Dataset, tmp_path: Path) -> None:
    write_export(tmp_path)
    (tmp_path / "train-1.parquet").unlink()
    assert failure(export, tmp_path) == (
        f"{tmp_path}: cifar10 has 20 training and 4 test images, found 12 and 4; put the complete data there"
    )


def test_real_data_where_there_is_some() -> None:
    root = os.environ.get("PFL_DATA")
    if root and list((Path(root) / "cifar10").glob("train*.parquet")):
        samples = DATASETS.create("cifar10", source="parquet").load(Path(root) / "cifar10")
        assert np.bincount(samples.labels[samples.train]).tolist() == [5000] * 10
        assert np.bincount(samples.labels[~samples.train]).tolist() == [1000] * 10
        means = samples.inputs[samples.train].mean((0, 2, 3)) / 255
        np.testing.assert_allclose(means, samples.mean, atol=0.001)
