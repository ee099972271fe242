"""CIFAR-100: the official archives in miniature, its coarse classes, and damage."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pooch
import pytest
from support.cifar_files import (
    COARSE,
    FINE,
    PIXELS100,
    assert_complete100,
    binary100,
    members100,
    pickled,
    python100,
    shrink,
)
from support.official import Trust, failure, unreachable, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset, stand_in
from pflcore.datasets.cifar100 import Cifar100
from pflcore.errors import UserError


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return shrink(monkeypatch)


@pytest.fixture
def cifar100() -> Dataset:
    return DATASETS.create("cifar100")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


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


@pytest.mark.parametrize("normalise", ["cifar", "half"])
def test_cifar100_stand_ins_have_the_coarse_class_of_their_class(normalise: str) -> None:
    dataset = DATASETS.create("cifar100", normalise=normalise)
    samples = stand_in(dataset, 200, 100)
    coarse = samples.attributes["coarse"]
    assert coarse.values.tolist() == [Cifar100.coarse_of[label] for label in samples.labels]
    assert coarse.names == Cifar100.attributes["coarse"]
    assert (samples.mean, samples.std) == dataset.normalisation


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


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("python/train", python100(0, fine=[*FINE[0][:-1], 100]), "row 7: label 100 is outside 0..99"),
        ("python/train", python100(0, coarse=[20, *COARSE[0][1:]]), "row 0: label 20 is outside 0..19"),
        ("python/train", python100(0, fine=FINE[0][1:]), "cannot be read ("),
        (
            "python/test",
            pickled({b"data": PIXELS100[1], b"fine_labels": FINE[1]}),
            "has no coarse_labels; ",
        ),
        (
            "python/test",
            pickled({b"data": PIXELS100[1][:, 1:].copy()}),
            "has no coarse_labels; ",
        ),
        (
            "python/test",
            python100(1)[:-9],
            "cannot be read (",
        ),
        ("binary/test.bin", binary100(1)[:-1], "cannot be read ("),
        ("binary/test.bin", binary100(1, fine=[100, *FINE[1][1:]]), "row 0: label 100 is outside 0..99"),
        ("binary/test.bin", binary100(1, coarse=[16, 20, 19, 13]), "row 1: label 20 is outside 0..19"),
    ],
)
def test_cifar100_damaged_batches(cifar100: Dataset, folder: Path, name: str, data: bytes, message: str) -> None:
    write_files(folder, members100(name.startswith("python")) | {f"cifar-100-{name}": data})
    assert failure(cifar100, folder).startswith(f"{folder}/cifar-100-{name}: {message}")


@pytest.mark.parametrize("python", [True, False])
def test_cifar100_damaged_archives(cifar100: Dataset, trust: Trust, folder: Path, python: bool) -> None:
    path = folder / ("cifar-100-python.tar.gz" if python else "cifar-100-binary.tar.gz")
    write_tar(path, members100(python))
    whole = path.read_bytes()
    assert f"{Cifar100.archives[0 if python else 1][0].digest}; delete it" in failure(cifar100, folder)
    path.write_bytes(whole[: len(whole) // 2])
    trust(path)  # even if its hash were right
    assert failure(cifar100, folder).startswith(f"{path}: cannot be read (")
    first, *_ = [name for name in members100(python) if "train" in name]
    write_tar(path, {name: data for name, data in members100(python).items() if name != first})
    trust(path)
    assert failure(cifar100, folder) == f"{path}: train is missing; get or unpack the official archive again"
    write_tar(path, members100(python) | {"../evil": b"x"})
    trust(path)
    assert "its member '../evil' points outside of the archive" in failure(cifar100, folder)


def test_cifar100_incomplete_data(cifar100: Dataset, folder: Path) -> None:
    (folder / "cifar-100-python").mkdir()
    assert failure(cifar100, folder) == (
        f"{folder}/cifar-100-python: train is missing; get or unpack the official archive again"
    )
    (folder / "cifar-100-python").rmdir()
    write_files(folder, members100(False) | {"cifar-100-binary/train.bin": binary100(0)[3074:]})
    assert failure(cifar100, folder) == (
        f"{folder}/cifar-100-binary: cifar100 has 8 training and 4 test samples, found 7 and 4; "
        "put the complete data there"
    )


def test_cifar100_absent_and_without_network(cifar100: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    absent = folder / "cifar100"
    assert failure(cifar100, absent).startswith(
        f"{absent}: no data here, and https://www.cs.toronto.edu/~kriz/cifar-100-"
    )
    assert list(folder.iterdir()) == []


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
