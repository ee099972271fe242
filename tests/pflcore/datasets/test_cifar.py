"""CIFAR-10 and CIFAR-100: official archives and Parquet exports in miniature, and pickles that are refused."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.cifar_files import (
    COARSE,
    FINE,
    PER_BATCH,
    PIXELS100,
    images,
    members,
    members100,
    python100,
    shrink,
)
from support.official import Hostile, encoded, failure, plain, trust, write_files, write_tar

from pflcore.datasets import DATASETS, Dataset, stand_in
from pflcore.datasets._files import load_pickle
from pflcore.errors import UserError

SETS = {"cifar10": (members, "cifar-10-batches-py"), "cifar100": (members100, "cifar-100-python")}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def create(name: str = "cifar10", **options: Any) -> Dataset:
    return DATASETS.create(name, **options)


def assert_complete(dataset: Dataset, folder: Path, source: str) -> None:
    samples = dataset.load(folder)
    assert samples.source == source and samples.inputs.flags.writeable
    if dataset.name == "cifar10":
        pixels = np.concatenate([images(number)[0] for number in range(6)])
        assert samples.labels.tolist() == [label for number in range(6) for label in images(number)[1]]
        assert samples.train.tolist() == [True] * 5 * PER_BATCH + [False] * PER_BATCH
        assert samples.class_names[3] == "cat"
    else:
        pixels = np.concatenate(PIXELS100)
        assert samples.labels.tolist() == FINE[0] + FINE[1]
        assert samples.attributes["coarse"].values.tolist() == COARSE[0] + COARSE[1]
        assert samples.train.tolist() == [True] * 8 + [False] * 4
        assert samples.class_names[23] == "cloud" and samples.class_names[99] == "worm"
        assert samples.attributes["coarse"].names[10] == "large_natural_outdoor_scenes"
    np.testing.assert_array_equal(samples.inputs, pixels.reshape(-1, 3, 32, 32))


@pytest.mark.parametrize("name", SETS)
def test_the_archive_and_what_it_unpacks_to(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    files, unpacked = SETS[name]
    archive = create(name).files[0]
    message = failure(create(name), folder)
    assert message.startswith(f"{folder}: no data here") and f"put {archive} into that folder, or " in message
    write_files(folder, files())
    assert create(name).found(folder)
    assert_complete(create(name), folder, unpacked)
    write_tar(folder / archive, {"evil": b"x", **files()})
    assert f"{folder / archive}: sha256 is " in failure(create(name), folder)  # though the folder is right
    trust(monkeypatch)
    assert_complete(create(name), folder, archive)
    assert {path.name for path in folder.iterdir()} == {archive, unpacked}
    write_tar(folder / archive, dict([*files().items()][:-1]))
    assert failure(create(name), folder).startswith(f"{folder / archive}: test")


def test_cifar100s_coarse_classes_and_options(folder: Path) -> None:
    write_files(folder, members100())
    samples = create("cifar100", size=224, normalise="half").load(folder)
    assert samples.shape == (3, 224, 224) and samples.inputs.shape == (12, 3, 32, 32)
    assert samples.mean == samples.std == (0.5, 0.5, 0.5)
    write_files(folder, members100() | {"cifar-100-python/train": python100(0, [3, *COARSE[0][1:]])})
    where = f"{folder}/cifar-100-python"
    assert failure(create("cifar100"), folder).startswith(f"{where}: row 0: apple is in fruit_and_vegetables, not in ")
    generated = stand_in(create("cifar100"), 200, 100)
    coarse = dict(zip(FINE[0] + FINE[1], COARSE[0] + COARSE[1], strict=True))
    for label, value in zip(generated.labels, generated.attributes["coarse"].values, strict=True):
        assert coarse.get(label, value) == value


@pytest.mark.parametrize("name", SETS)
def test_a_hostile_pickle_is_refused_and_not_run(folder: Path, name: str) -> None:
    files, target = SETS[name][0], folder / "executed"
    batch = max(files())
    write_files(folder, files() | {batch: pickle.dumps({"data": Hostile(target)}, 2)})
    message = failure(create(name), folder)
    assert message.startswith(f"{folder}/{batch}: ") and "posix.system" in message and not target.exists()


@pytest.mark.parametrize("value", [eval, np.load, dataclasses.replace])
def test_only_arrays_are_rebuilt(value: Any) -> None:
    named = f"{value.__module__}.{value.__name__}"
    with pytest.raises(UserError, match=rf"^here: cannot be read \(refused: the pickle asks for {named}\)"):
        load_pickle(pickle.dumps({"data": value}, 4), "here")


def write_parquet(path: Path, rows: Sequence[np.ndarray], kind: str = "PNG", **labels: list[int]) -> list[bytes]:
    data = [encoded(row.reshape(3, 32, 32), kind) for row in rows]
    pq.write_table(pa.table({"img": pa.array([{"bytes": item, "path": None} for item in data]), **labels}), path)
    return data


def test_exports(folder: Path) -> None:
    export = create(source="parquet")
    assert "no train*.parquet" in failure(export, folder)
    for kind in ("JPEG", "PNG"):
        for name, numbers in (("train-0", (0, 1, 2)), ("train-1", (3, 4)), ("test-0", (5,))):
            rows, labels = zip(*(images(number) for number in numbers), strict=True)
            write_parquet(folder / f"{name}.parquet", np.concatenate(rows), kind, label=np.concatenate(labels).tolist())
        assert export.load(folder).source == f"train-0.parquet, train-1.parquet, test-0.parquet ({kind} images)"
    assert_complete(export, folder, "train-0.parquet, train-1.parquet, test-0.parquet (PNG images)")
    (folder / "test-0.parquet").unlink()
    assert "no test*.parquet" in failure(export, folder)


def test_an_export_of_cifar100(folder: Path) -> None:
    export = create("cifar100", source="parquet")
    for part, split in enumerate(("train", "test")):
        write_parquet(folder / f"{split}-0.parquet", PIXELS100[part], fine_label=FINE[part], coarse_label=COARSE[part])
    assert_complete(export, folder, "train-0.parquet, test-0.parquet (PNG images)")
    write_parquet(folder / "test-0.parquet", PIXELS100[1], fine_label=FINE[1], coarse_label=[16, 18, 19, 20])
    assert failure(export, folder) == f"{folder}: coarse: row 11: label 20 is outside 0..19"
    write_parquet(folder / "test-0.parquet", PIXELS100[1], fine_label=FINE[1], coarse_label=[16, 18, 19, 14])
    disagree = "row 11: worm is in non-insect_invertebrates, not in people; use the official data"
    assert failure(export, folder) == f"{folder}: {disagree}"
    small = pa.table({"img": [plain((0, 0, 0), "PNG", (33, 32))] * 4, "fine_label": FINE[1], "coarse_label": COARSE[1]})
    pq.write_table(small, folder / "test-0.parquet")
    assert failure(export, folder).endswith("row 0: not a readable image (33x32 instead of 32x32 pixels)")
