"""Pickled batches of CIFAR: only arrays are rebuilt, and nothing is run."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from support.cifar_files import assert_complete, images, members, members100, pickled, shrink
from support.official import Files, Hostile, Trust, failure, write_files

from pflcore.datasets import DATASETS
from pflcore.datasets._files import load_pickle
from pflcore.errors import UserError


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_batches_pickled_by_current_numpy(folder: Path) -> None:
    files = {
        name: pickle.dumps({"labels": images(number)[1], "data": images(number)[0]}, 3)
        for number, name in enumerate(members(True))
    }
    assert all(b"multiarray" in data for data in files.values())
    write_files(folder, files)
    assert_complete(DATASETS.create("cifar10"), folder, "cifar-10-batches-py")


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
    assert failure(DATASETS.create(name), folder).startswith(
        f"{folder / batch}: cannot be read (refused: the pickle asks for posix.system)"
    )
    assert not target.exists()


@pytest.mark.parametrize(
    ("value", "named"),
    [(eval, "builtins.eval"), (np.load, "numpy.load"), (dataclasses.replace, "dataclasses.replace")],
)
def test_only_arrays_are_rebuilt(value: object, named: str) -> None:
    with pytest.raises(UserError) as error:
        load_pickle(pickle.dumps({"data": value}, 4), "here")
    assert str(error.value).startswith(f"here: cannot be read (refused: the pickle asks for {named}); ")


@pytest.mark.parametrize("data", [b"", b"\x80\x02}q", b"\x80\x02cnumpy\nndarray\nN}U\x0c__setstate__K\x01s\x86b."])
def test_damaged_pickles(data: bytes) -> None:
    with pytest.raises(UserError, match=r"^here: cannot be read \("):
        load_pickle(data, "here")


def test_column_major_arrays_are_read_in_their_order() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert load_pickle(pickled({b"data": array}), "here")["data"].tolist() == array.tolist()
