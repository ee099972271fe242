"""CIFAR-10 and CIFAR-100: official archives and Parquet exports in miniature, and pickles that are refused."""

from __future__ import annotations

import dataclasses
import pickle
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
    images,
    members,
    members100,
    pickled,
    python100,
    python_batch,
    shrink,
)
from support.official import Hostile, Trust, encoded, failure, plain, unreachable, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset, stand_in
from pflcore.datasets._files import load_pickle
from pflcore.errors import UserError

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PIXELS, LABELS = images(0)
SETS = {
    "cifar10": (members, "cifar-10-python.tar.gz", "cifar-10-batches-py", "data_batch_3", assert_complete),
    "cifar100": (members100, "cifar-100-python.tar.gz", "cifar-100-python", "train", assert_complete100),
}


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def create(name: str = "cifar10", **options: Any) -> Dataset:
    return DATASETS.create(name, **options)


@pytest.mark.parametrize("name", SETS)
def test_the_archive_and_what_it_unpacks_to(folder: Path, trust: Trust, name: str) -> None:
    files, archive, unpacked, batch, assert_whole = SETS[name]
    write_files(folder, files())
    assert create(name).found(folder)
    assert_whole(create(name), folder, unpacked)
    write_tar(folder / archive, {"evil": b"x", **files()})
    assert f"{folder / archive}: sha256 is " in failure(create(name), folder)  # though the folder is right
    trust(folder / archive)
    assert_whole(create(name), folder, archive)
    assert {path.name for path in folder.iterdir()} == {archive, unpacked}
    write_tar(folder / archive, {member: data for member, data in files().items() if not member.endswith(batch)})
    trust(folder / archive)
    assert failure(create(name), folder).startswith(f"{folder / archive}: {batch} is missing")


def test_what_to_put_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    message = failure(create(), folder)
    assert message.startswith(f"{folder}: no data here") and message.endswith("folder, or cifar-10-batches-py/")
    (folder / "train.parquet").touch()
    assert "`source: parquet`" in failure(create(), folder)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (python_batch(PIXELS[:, :-1].copy(), LABELS), "cannot be read ("),
        (pickled({b"labels": LABELS}), "has no data; "),
        (python_batch(PIXELS, LABELS[:-1]), "cannot be read ("),
        (pickled({b"data": PIXELS}), "has no labels; "),
        (python_batch(PIXELS, [0, 0, 10, 0]), "row 2: label 10 is outside 0..9"),
        (python_batch(PIXELS, [0, 0.5, 1, 0]), "cannot be read ("),  # type: ignore[list-item]
        (b"", "cannot be read ("),
        (b"\x80\x02}q", "cannot be read ("),
        (python_batch(PIXELS, LABELS)[:900], "cannot be read ("),
    ],
)
def test_wrong_batches(folder: Path, batch: bytes, message: str) -> None:
    write_files(folder, members() | {"cifar-10-batches-py/data_batch_4": batch})
    assert failure(create(), folder).startswith(f"{folder}/cifar-10-batches-py/data_batch_4: {message}")


def test_incomplete_data(folder: Path) -> None:
    write_files(folder, members() | {"cifar-10-batches-py/test_batch": python_batch(PIXELS[:3], LABELS[:3])})
    assert "20 training and 4 test samples, found 20 and 3" in failure(create(), folder)


def test_classes_that_are_in_no_such_coarse_class(folder: Path) -> None:
    write_files(folder, members100() | {"cifar-100-python/test": python100(1, coarse=[16, 18, 19, 19])})
    message = failure(create("cifar100"), folder)
    assert all(word in message for word in ("sample 11", "worm", "non-insect_invertebrates", "vehicles_2"))


def test_options_of_cifar100(folder: Path) -> None:
    write_files(folder, members100())
    samples = create("cifar100", size=224, normalise="half").load(folder)
    assert samples.shape == (3, 224, 224) and samples.inputs.shape == (12, 3, 32, 32)
    assert samples.mean == samples.std == (0.5, 0.5, 0.5)
    generated = stand_in(create("cifar100"), 200, 100)
    coarse = dict(zip(FINE[0] + FINE[1], COARSE[0] + COARSE[1], strict=True))
    for label, value in zip(generated.labels, generated.attributes["coarse"].values, strict=True):
        assert coarse.get(label, value) == value


# --- pickles -------------------------------------------------------------------------------------------------------


def test_batches_pickled_by_current_numpy(folder: Path) -> None:
    batches = {
        name: dict(zip(("data", "labels"), images(number), strict=True)) for number, name in enumerate(members())
    }
    write_files(folder, {name: pickle.dumps(batch, 3) for name, batch in batches.items()})
    assert_complete(create(), folder, "cifar-10-batches-py")
    column_major = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert load_pickle(pickled({b"data": column_major}), "here")["data"].tolist() == column_major.tolist()


@pytest.mark.parametrize("name", SETS)
def test_a_hostile_pickle_is_refused_and_not_run(folder: Path, name: str) -> None:
    files, _, unpacked, batch, _ = SETS[name]
    target = folder / "executed"
    write_files(folder, files() | {f"{unpacked}/{batch}": pickle.dumps({"data": Hostile(target)}, 2)})
    message = failure(create(name), folder)
    assert message.startswith(f"{folder}/{unpacked}/{batch}: ") and "posix.system" in message and not target.exists()


@pytest.mark.parametrize(
    ("value", "named"),
    [(eval, "builtins.eval"), (np.load, "numpy.load"), (dataclasses.replace, "dataclasses.replace")],
)
def test_only_arrays_are_rebuilt(value: object, named: str) -> None:
    with pytest.raises(UserError, match=rf"^here: cannot be read \(refused: the pickle asks for {named}\)"):
        load_pickle(pickle.dumps({"data": value}, 4), "here")


# --- Parquet exports -----------------------------------------------------------------------------------------------


def write_parquet(path: Path, data: Sequence[bytes | None], **labels: list[int]) -> None:
    column = pa.array([{"bytes": item, "path": None} for item in data], IMAGE)
    pq.write_table(pa.table({"img": column, **labels}), path)


def png(row: np.ndarray, kind: str = "PNG") -> bytes:
    return encoded(row.reshape(3, 32, 32), kind)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_an_export(folder: Path, kind: str) -> None:
    export = create(source="parquet")
    assert "no train*.parquet" in failure(export, folder)
    for name, numbers in (("train-0", (0, 1, 2)), ("train-1", (3, 4)), ("test-0", (5,))):
        data = [png(row, kind) for number in numbers for row in images(number)[0]]
        labels = [label for number in numbers for label in images(number)[1]]
        write_parquet(folder / f"{name}.parquet", data, label=labels)
    source = f"train-0.parquet, train-1.parquet, test-0.parquet ({kind} images)"
    if kind == "PNG":
        assert_complete(export, folder, source)
    assert export.load(folder).source == source
    (folder / "train-1.parquet").unlink()
    assert "found 12 and 4" in failure(export, folder)
    (folder / "test-0.parquet").unlink()
    assert "no test*.parquet" in failure(export, folder)


def test_an_export_of_cifar100(folder: Path) -> None:
    export = create("cifar100", source="parquet")
    for part, split in enumerate(SPLITS):
        pictures = [png(row) for row in PIXELS100[part]]
        write_parquet(folder / f"{split}-0.parquet", pictures, fine_label=FINE[part], coarse_label=COARSE[part])
    assert_complete100(export, folder, "train-0.parquet, test-0.parquet (PNG images)")
    write_parquet(folder / "test-0.parquet", pictures, fine_label=FINE[1], coarse_label=[16, 18, 19, 20])
    assert failure(export, folder) == f"{folder}/test-0.parquet: row 3: label 20 is outside 0..19"


GOOD = png(PIXELS[0])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"no image", "not PNG or JPEG"),
        (plain((0, 0, 0), "GIF", (32, 32)), "not PNG or JPEG"),
        (plain((0, 0, 0), "PNG", (33, 32)), "33x32 instead of 32x32 pixels"),
        (GOOD[: len(GOOD) // 2], ""),
    ],
)
def test_an_unreadable_image_of_an_export(folder: Path, bad: bytes, reason: str) -> None:
    write_parquet(folder / "train-0.parquet", [*[GOOD] * 7, bad, GOOD, bad], label=[0] * 10)
    message = failure(create(source="parquet"), folder)
    assert message.startswith(f"{folder}/train-0.parquet: row 7: not a readable image ({reason}")
