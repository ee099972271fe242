"""Parquet files of one's own images: exports in miniature, whole and damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.official import SIZE, failure, plain

from pflcore.datasets import DATASETS, Dataset, stand_in


def grey(value: int) -> bytes:
    return plain((value,) * 3, "PNG")


def write(path: Path, greys: list[int], names: list[str] | None = None, struct: bool = True, **columns: Any) -> None:
    """A table as exports lay it out: a struct of bytes and path, other columns, names of classes in the metadata."""
    data = [grey(value) for value in greys]
    images = pa.array([{"bytes": image, "path": None} for image in data] if struct else data)
    table = pa.table({"image": images, **columns})
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=2)


def own(**options: Any) -> Dataset:
    return DATASETS.create("image_table", **{"size": SIZE, **options})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "image_table").mkdir(parents=True)
    return tmp_path / "data" / "image_table"


def test_an_export_with_names(folder: Path) -> None:
    names = ["cat", "dog", "emu"]
    write(folder / "train-00000-of-00002.parquet", [10, 20, 30], names, label=[2, 0, 0])
    write(folder / "train-00001-of-00002.parquet", [40, 50], names, label=pa.array([1, 2], pa.uint8()))
    write(folder / "test-00000-of-00001.parquet", [60], names, label=[1])
    assert own().found(folder)
    samples = own().load(folder)
    assert samples.inputs.shape == (6, 3, SIZE, SIZE)
    assert samples.inputs[:, 1, 3, 3].tolist() == [10, 20, 30, 40, 50, 60]
    assert samples.labels.tolist() == [2, 0, 0, 1, 2, 1] and samples.class_names == ("cat", "dog", "emu")
    assert samples.train.tolist() == [True] * 5 + [False] and not samples.attributes
    assert samples.source == (
        "train-00000-of-00002.parquet, train-00001-of-00002.parquet, test-00000-of-00001.parquet (PNG images)"
    )
    assert samples.inputs.tobytes() == own().load(folder).inputs.tobytes()


def test_texts_and_domains_elsewhere(folder: Path) -> None:
    root = folder.parent / "pets" / "v1"
    root.mkdir(parents=True)
    kinds = pa.array(["dog", "cat", "dog"]).dictionary_encode()
    write(root / "train.parquet", [10, 20, 30], struct=False, kind=kinds, place=["b", "a", "b"])
    dataset = own(path="pets/v1", label="kind", domain="place", channels=1, mean=(0.2,))
    assert dataset.found(folder) and not own().found(folder)
    samples = dataset.load(folder)
    assert samples.class_names == ("cat", "dog") and samples.labels.tolist() == [1, 0, 1] and samples.train.all()
    assert samples.attributes["domain"].names == ("a", "b")
    assert samples.attributes["domain"].values.tolist() == [1, 0, 1]
    assert samples.inputs[:, 0, 0, 0].tolist() == [10, 20, 30] and samples.shape == (1, SIZE, SIZE)
    assert samples.mean == (0.2,) and samples.std == (0.5,)
    assert "domain" in stand_in(dataset, 20, 10).attributes
    write(root / "test.parquet", [40, 50], struct=False, kind=["cat", "cat"], place=["c", "a"])
    assert dataset.load(folder).train.tolist() == [True] * 3 + [False] * 2
    assert dataset.load(folder).attributes["domain"].names == ("a", "b", "c")
    write(root / "test.parquet", [40], struct=False, kind=["emu"], place=["a"])
    assert failure(dataset, folder) == f"{root}: the test files have labels without a training image: emu"


def test_integers_without_names(folder: Path) -> None:
    path = folder / "train.parquet"
    write(path, [1, 2, 3], label=[1, 0, 2])
    samples = own().load(folder)
    assert samples.class_names == ("0", "1", "2") and samples.labels.tolist() == [1, 0, 2]
    for labels, lacking in (([1, 2, 3], 0), ([0, 1, 3], 2), ([0, 1, 2**60], 2)):
        write(path, [1, 2, 3], label=labels)
        assert failure(own(), folder) == (
            f"{folder}: integer labels must be 0, 1, 2 and so on, but no image has label {lacking}"
        )
    write(path, [1, 2, 3], label=[0, 1, -1])
    assert failure(own(), folder) == f"{path}: row 2: label -1 is outside 0..1"
    write(path, [1, 2], ["a"], label=[0, 1])
    assert failure(own(), folder) == f"{path}: row 1: label 1 is outside 0..0"
    write(path, [1, 2], ["a"], label=pa.array([0, 2**64 - 1], pa.uint64()))
    assert failure(own(), folder) == f"{path}: row 1: label {2**62} is outside 0..0"


def test_other_columns(folder: Path) -> None:
    path = folder / "train.parquet"
    write(path, [1, 2], label=[0.5, 1.5])
    has = "image: struct<bytes: binary, path: null>, label: double"
    assert failure(own(), folder) == f"{path}: needs a column 'label' of integers or text, has {has}"
    assert failure(own(label="class"), folder) == f"{path}: needs a column 'class' of integers or text, has {has}"
    assert failure(own(image="img"), folder) == (
        f"{path}: needs a column 'img' of binary or struct<bytes: binary>, has {has}"
    )
    assert failure(own(image="label"), folder).startswith(f"{path}: needs a column 'label' of binary or struct")
    write(path, [1, 2], label=[0, 1])
    assert failure(own(domain="place"), folder).startswith(f"{path}: needs a column 'place' of integers or text, has ")
    write(path, [1, 2, 3], label=[0, None, None])
    assert failure(own(), folder) == f"{path}: column 'label' holds 2 nulls"
    write(path, [1, 2], label=[0, 1], place=["a", None])
    assert failure(own(domain="place"), folder) == f"{path}: column 'place' holds 1 nulls"
    write(path, [1, 2], ["a", "a"], label=[0, 1])
    assert failure(own(), folder) == (
        f"{path}: the metadata's names for column 'label' are not distinct texts; export it again"
    )
    write(path, [], label=pa.array([], pa.int64()), struct=False)
    assert failure(own(image="image"), folder).startswith(f"{path}: needs a column 'image' of binary or struct")
    pq.write_table(pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}), path)
    assert failure(own(), folder) == f"{path}: holds no images; remove it or export it again"


def test_files_that_do_not_fit_each_other(folder: Path) -> None:
    write(folder / "train.parquet", [1, 2], ["a", "b"], label=[0, 1])
    other = folder / "test.parquet"
    for names, label in ((["b", "a"], [0]), (None, [0]), (None, ["a"])):
        write(other, [1], names, label=label)
        assert failure(own(), folder) == f"{other}: its labels are of another kind than those of train.parquet"


def test_a_real_export_where_there_is_some() -> None:
    root = Path(os.environ.get("PFL_DATA", "/nonexistent"))
    dataset = DATASETS.create("image_table", path="cifar10", image="img", size=8)
    if not dataset.found(root / "image_table"):
        pytest.skip("no real data")
    samples = dataset.load(root / "image_table")
    assert (samples.train.sum(), len(samples)) == (50_000, 60_000)
    assert samples.class_names[3] == "cat" and np.bincount(samples.labels).tolist() == [6000] * 10
