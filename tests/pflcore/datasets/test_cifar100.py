"""CIFAR-100: the official archives in miniature, its coarse classes, and damage."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.cifar_files import (
    COARSE,
    FINE,
    assert_complete100,
    binary100,
    members100,
    python100,
    shrink,
)
from support.official import Trust, failure, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset
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
