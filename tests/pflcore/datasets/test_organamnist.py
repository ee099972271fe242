"""OrganAMNIST: its npz file in miniature, whole and damaged."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support import official
from support.official import Hostile, Trust

from pflcore.datasets import DATASETS, Dataset, stand_in
from pflcore.datasets.organamnist import OrganAMnist
from pflcore.errors import UserError

SIZES = {"train": 5, "val": 3, "test": 4}
LABELS = {"train": [0, 10, 3, 4, 5], "val": [9, 8, 7], "test": [1, 2, 6, 10]}
NAME = "organamnist.npz"
Arrays = dict[str, np.ndarray]


def arrays(**changes: np.ndarray) -> Arrays:
    """The six arrays of the official file."""
    rng = np.random.default_rng(3)
    made: Arrays = {}
    for split, count in SIZES.items():
        made[f"{split}_images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        made[f"{split}_labels"] = np.array(LABELS[split], np.uint8)[:, None]
    return made | changes


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Makes the hash of a file the one of release v2, and its counts those of the miniature."""

    def accept(path: Path) -> None:
        release = OrganAMnist.releases["v2"]
        source = dataclasses.replace(release.source, digest=hashlib.md5(path.read_bytes()).hexdigest())
        changed = dataclasses.replace(release, source=source, counts=(8, 4))
        monkeypatch.setattr(OrganAMnist, "releases", OrganAMnist.releases | {"v2": changed})

    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: pytest.fail("tried to download"))
    return accept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def create(**options: Any) -> Dataset:
    return DATASETS.create("organamnist", **options)


def failure(folder: Path, **options: Any) -> str:
    return official.failure(create(**options), folder)


def test_values_labels_and_splits(trust: Trust, folder: Path) -> None:
    path, whole = folder / NAME, arrays()
    np.savez(path, **whole)
    assert create().found(folder)
    trust(path)
    samples = create().load(folder)
    pixels = np.concatenate([whole[f"{split}_images"] for split in SIZES])
    np.testing.assert_array_equal(samples.inputs, pixels[:, None])
    assert samples.labels.tolist() == [0, 10, 3, 4, 5, 9, 8, 7, 1, 2, 6, 10]
    assert samples.train.tolist() == [True] * 8 + [False] * 4
    assert samples.class_names[6] == "liver" and samples.class_names[10] == "spleen"
    assert samples.source == "organamnist.npz (v2)" and samples.mean == samples.std == (0.5,)
    assert list(folder.iterdir()) == [path]


def test_options(trust: Trust, folder: Path) -> None:
    np.savez(folder / NAME, **arrays())
    trust(folder / NAME)
    dataset = create(size=224, channels=3)
    samples = dataset.load(folder)
    assert samples.inputs.shape == (12, 3, 28, 28), "the pixels are kept as they are; batches are scaled up"
    assert samples.shape == dataset.shape == (3, 224, 224) and samples.std == (0.5, 0.5, 0.5)
    np.testing.assert_array_equal(samples.inputs[:, 0], samples.inputs[:, 2])
    np.testing.assert_array_equal(samples.inputs[:, :1], create().load(folder).inputs)
    assert stand_in(create(channels=3), 22, 11).shape == (3, 28, 28)
    for options in ({"size": 14}, {"channels": 2}, {"release": "v1"}):
        with pytest.raises(UserError, match="must be"):
            create(**options)


def test_sizes_of_the_releases() -> None:
    assert create().expected == create().counts == (34_581 + 6_491, 17_778) and sum(create().counts) == 58_850
    assert sum(create(release="v3").expected) == 58_830


def test_the_other_release_is_recognised(trust: Trust, folder: Path) -> None:
    path = folder / NAME
    np.savez(path, **arrays())
    trust(path)
    assert failure(folder, release="v3") == (
        f"{path}: is release v2; set release to v2, or delete it and get v3 from "
        "https://zenodo.org/records/10519652/files/organamnist.npz"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"val_images": np.zeros((3, 28, 27), np.uint8)},
            "val_images must be uint8 of (n, 28, 28), found uint8 (3, 28, 27)",
        ),
        (
            {"test_images": np.zeros((4, 28, 28), np.float32)},
            "test_images must be uint8 of (n, 28, 28), found float32 (4, 28, 28)",
        ),
        ({"train_labels": np.zeros(5, np.uint8)}, "train_labels must be integers of (5, 1), found uint8 (5,)"),
        ({"train_labels": np.zeros((4, 1), np.uint8)}, "train_labels must be integers of (5, 1), found uint8 (4, 1)"),
        ({"test_labels": np.array([[0], [1], [11], [2]], np.uint8)}, "test: row 2: label 11 is outside 0..10"),
        (
            {name: value[:1] for name, value in arrays().items() if name.startswith("val")},
            "organamnist has 8 training and 4 test samples, found 6 and 4; put the complete data there",
        ),
    ],
)
def test_wrong_arrays(trust: Trust, folder: Path, changes: Arrays, message: str) -> None:
    np.savez(folder / NAME, **arrays(**changes))
    trust(folder / NAME)
    assert failure(folder) == f"{folder / NAME}: {message}"


def test_pickled_objects_are_refused_and_not_run(trust: Trust, folder: Path) -> None:
    target, path = folder / "executed", folder / NAME
    objects = np.empty(5, object)
    objects[:] = [Hostile(target)] * 5
    np.savez(path, **arrays(train_labels=objects))
    trust(path)
    assert failure(folder) == (
        f"{path}: not a readable OrganAMNIST file (Object arrays cannot be loaded when allow_pickle=False); "
        "delete it and get it again"
    )
    path.write_bytes(pickle.dumps(Hostile(target)))
    trust(path)
    assert failure(folder).startswith(f"{path}: not a readable OrganAMNIST file (")
    assert not target.exists()


def test_real_data_where_there_is_some() -> None:
    root = os.environ.get("PFL_DATA")
    if root and create().found(Path(root) / "organamnist"):
        samples = create().load(Path(root) / "organamnist")
        assert set(samples.labels.tolist()) == set(range(11)) and samples.train.sum() == 41_072
