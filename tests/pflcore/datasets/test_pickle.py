"""Pickled batches of CIFAR: only arrays are rebuilt, and nothing is run."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from support.cifar_files import members, members100, pickled, shrink
from support.official import Files, Hostile, Trust, failure, write_files

from pflcore.datasets import DATASETS
from pflcore.datasets._pickle import load_batch
from pflcore.errors import UserError


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


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
