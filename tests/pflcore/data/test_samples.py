"""The artifacts dataset/2 and partition/2 and what their readers refuse."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pflcore.artifacts import read_table, write_table
from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import read_assignment, write_assignment
from pflcore.data.noise import Noise
from pflcore.data.sample_files import read_facts, read_samples, write_samples
from pflcore.data.samples import Attribute, Boxes, Samples
from pflcore.errors import UserError


def make_samples(n: int = 12) -> Samples:
    rng = np.random.default_rng(0)
    return Samples(
        inputs=rng.integers(0, 256, (n, 3, 4, 5), np.uint8),
        labels=np.arange(n) % 3,
        train=np.arange(n) % 4 != 0,
        name="toy",
        class_names=("a", "b", "c"),
        mean=(0.1, 0.2, 0.3),
        std=(1.0, 2.0, 3.0),
        source="made here",
    )


def make_assignment() -> Assignment:
    owners = np.array([0, 0, 2, 2, -1, 2, 0, 0, 2, 2, 0, 2])
    train = make_samples().train
    return Assignment.from_owners(owners, [train, ~train], 3, "toy", 7)


BOXES = Boxes(
    np.array([0, 2, 0, 1, *[0] * 8]),
    np.array([2, 0, 1]),
    np.array([[0.0, 0.0, 1.0, 0.5], [0.25, 0.5, 0.75, 1.0], [0.1, 0.2, 0.3, 0.4]], np.float32),
    np.array([False, True, False]),
)
MORE = {"attributes": {"domain": Attribute(np.arange(12) % 2, ("Art", "Real World"))}, "boxes": BOXES, "size": 8}


@pytest.mark.parametrize("more", [{}, MORE])
def test_samples_round_trip_byte_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    samples = dataclasses.replace(make_samples(), **more)
    write_samples(tmp_path / "a.parquet", samples)
    for again in (read_samples(tmp_path / "a.parquet"), read_facts(tmp_path / "a.parquet")):
        for field in dataclasses.fields(Samples):
            if field.name not in ("inputs", "attributes", "boxes"):
                np.testing.assert_array_equal(getattr(again, field.name), getattr(samples, field.name))
        assert again.shape == ((3, 8, 8) if more else (3, 4, 5)) and again.classes == 3 and len(again) == 12
        for name, attribute in samples.attributes.items():
            assert again.attributes[name].names == attribute.names
            np.testing.assert_array_equal(again.attributes[name].values, attribute.values)
        for part in dataclasses.fields(Boxes) if more else ():
            np.testing.assert_array_equal(getattr(again.boxes, part.name), getattr(samples.boxes, part.name))
    assert not again.inputs.any()
    whole = read_samples(tmp_path / "a.parquet")
    np.testing.assert_array_equal(whole.inputs, samples.inputs)
    assert whole.inputs.flags.writeable and whole.labels.flags.writeable
    write_samples(tmp_path / "b.parquet", whole)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    monkeypatch.setattr("pflcore.data.sample_files._GROUP", 5 * 60)  # in pieces
    write_samples(tmp_path / "c.parquet", samples)
    assert pq.read_metadata(tmp_path / "c.parquet").num_row_groups == 3
    np.testing.assert_array_equal(read_samples(tmp_path / "c.parquet").inputs, samples.inputs)


def test_the_columns_are_those_of_the_schema_and_texts_are_samples_too(tmp_path: Path) -> None:
    write_samples(tmp_path / "a.parquet", make_samples())
    table, meta = read_table(tmp_path / "a.parquet", "dataset/2")
    assert table.schema.field("input").type == pa.binary(60) and table.schema.field("label").type == pa.int64()
    assert table["split"].to_pylist()[:2] == ["test", "train"] and meta["shape"] == [3, 4, 5] and meta["size"] is None
    texts = np.random.default_rng(0).integers(0, 3, (12, 6), np.uint8)
    samples = dataclasses.replace(make_samples(), inputs=texts, labels=texts[:, -1].astype(np.int64), mean=(), std=())
    assert samples.shape == (5,) and not samples.is_images
    write_samples(tmp_path / "a.parquet", samples)
    np.testing.assert_array_equal(read_samples(tmp_path / "a.parquet").inputs, texts)


def test_a_large_dataset_is_decoded_once_and_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, scratch, samples = tmp_path / "data.parquet", tmp_path / "decoded", make_samples(70_000)
    write_samples(path, samples)
    assert not isinstance(read_samples(path, scratch).inputs, np.memmap) and not scratch.exists()
    monkeypatch.setenv("PFL_MEMORY", "0")
    mapped = read_samples(path, scratch)
    assert isinstance(mapped.inputs, np.memmap)
    assert np.array_equal(mapped.inputs, samples.inputs) and np.array_equal(mapped.labels, samples.labels)
    (decoded,) = scratch.iterdir()
    before = decoded.stat().st_mtime_ns
    assert np.array_equal(read_samples(path, scratch).inputs, samples.inputs)
    assert decoded.stat().st_mtime_ns == before
    write_samples(path, dataclasses.replace(samples, inputs=255 - samples.inputs))  # another one under the same name
    assert np.array_equal(read_samples(path, scratch).inputs, 255 - samples.inputs)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"labels": np.arange(11) % 3}, "lengths differ: 12 inputs, 11 labels"),
    ({"labels": np.arange(12) - 1}, "row 0: label -1 is outside 0..2"),
    ({"inputs": np.zeros((12, 4, 5), np.uint8)}, "inputs must be uint8 with 4 dimensions"),
    ({"attributes": {"domain": Attribute(np.arange(12), ("a", "b"))}}, "domain: row 2: label 2"),
    ({"attributes": {"domain": Attribute(np.arange(3), ("a", "b", "c"))}}, "12 train, 3 domain"),
    ({"boxes": dataclasses.replace(BOXES, corners=BOXES.corners[:, ::-1].copy())}, "boxes: object 0: corners"),
    ({"boxes": dataclasses.replace(BOXES, counts=np.ones(12, np.int64))}, "boxes: 12 objects"),
    ({"std": (1.0, 0.0, 1.0)}, "std (1.0, 0.0, 1.0) need one number for each of the 3 channels"),
]


def test_samples_refuse() -> None:
    for change, words in CHANGES:
        with pytest.raises(UserError, match=r"^dataset 'toy': .*" + re.escape(words)):
            dataclasses.replace(make_samples(), **change)


def test_assignment_round_trips_byte_identically(tmp_path: Path) -> None:
    assignment = make_assignment()
    write_assignment(tmp_path / "a.parquet", assignment)
    again = read_assignment(tmp_path / "a.parquet")
    assert (again.scheme, again.seed, again.clients) == ("toy", 7, 3)
    for one, other in zip(again.train + again.test, assignment.train + assignment.test, strict=True):
        assert one.dtype == np.int64 and one.tolist() == other.tolist()
    write_assignment(tmp_path / "b.parquet", again)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


INPUTS = [b"x" * 60] * 11
DAMAGE: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("dataset/2", {"label": pa.array([5] * 12)}, {}, "row 0: label 5 is outside 0..2"),
    ("dataset/2", {"split": pa.array(["valid"] * 12)}, {}, "'split' must hold train or test"),
    ("dataset/2", {"label": pa.array([0.5] * 12)}, {}, "'label' must be int64 without nulls, is double with 0"),
    ("dataset/2", {"label": pa.array([None, *[0] * 11])}, {}, "'label' must be int64 without nulls, is int64 with 1"),
    ("dataset/2", {"input": pa.array(["x" * 60] * 12)}, {}, "'input' must be fixed_size_binary[60] without nulls, is"),
    ("dataset/2", {"input": pa.array([None, *INPUTS], pa.binary(60))}, {}, "is fixed_size_binary[60] with 1"),
    ("dataset/2", {"boxes": pa.array([[]] * 12, pa.list_(pa.int64()))}, {}, "'boxes' must be list<"),
    ("dataset/2", {}, {"shape": [3, 4, 4]}, "'input' must be fixed_size_binary[48] without nulls, is"),
    ("dataset/2", {}, {"mean": None}, "KeyError: 'mean'"),
    ("partition/2", {}, {"clients": 2}, "clients 0 to 2 are not within 0..1"),
    ("partition/2", {}, {"novel": None}, "KeyError: 'novel'"),
    ("partition/2", {"client": None}, {}, "client"),
    ("partition/2", {"sample": pa.array([0.5] * 11)}, {}, "'sample' must be int64 without nulls, is double with 0"),
    ("partition/2", {"sample": pa.array(["1"] * 11)}, {}, "'sample' must be int64 without nulls, is string with 0"),
    ("partition/2", {"sample": pa.array([None, *range(10)])}, {}, "is int64 with 1"),
    ("partition/2", {"client": pa.array([None, *[0] * 10], pa.int32())}, {}, "is int32 with 1"),
]


def test_damaged_artifacts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for schema, columns, facts, words in DAMAGE:
        if schema == "dataset/2":
            write_samples(path, dataclasses.replace(make_samples(), **MORE))
        else:
            write_assignment(path, make_assignment())
        table, meta = read_table(path, schema)
        for name, values in columns.items():  # None removes a column or a fact
            index = table.column_names.index(name)
            table = table.remove_column(index) if values is None else table.set_column(index, name, values)
        write_table(path, table, schema, **{key: value for key, value in (meta | facts).items() if value is not None})
        with pytest.raises(UserError, match=rf"^{path}: damaged \(.*{re.escape(words)}.*; delete it and run again$"):
            read_samples(path) if schema == "dataset/2" else read_assignment(path)


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_an_assignment_is_of_as_many_clients_on_every_side() -> None:
    one, two = [rows(1)], [rows(1), rows(2)]
    for train, test, more, sizes in (
        (two, one, {}, "train of 2, test of 1"),
        (two, two, {"validation": one}, "train of 2, test of 2, validation of 1"),
        (two, two, {"noise": Noise((1.0,), False, 0)}, "train of 2, test of 2, noise of 1"),
    ):
        with pytest.raises(UserError, match=f"^partition 'toy': {sizes} clients: must be of equally many$"):
            Assignment(train, test, "toy", 0, **more)


def test_an_assignment_has_to_fit_its_dataset() -> None:
    samples = make_samples()
    make_assignment().check(len(samples), samples.train)
    for train, test, message in (
        ([rows(1), rows(12)], [rows(), rows()], "client 1, train: row 12 is outside the dataset of 12 samples"),
        ([rows(1), rows(2)], [rows(-1), rows()], "client 0, test: row -1 is outside the dataset of 12 samples"),
        ([rows(1), rows(0)], [rows(), rows()], "client 1, train: row 0 is not a train sample of the dataset"),
        ([rows(1), rows(2)], [rows(), rows(0, 3)], "client 1, test: row 3 is not a test sample of the dataset"),
        ([rows(1, 2), rows(2)], [rows(), rows()], "row 2 is held 2 times, by clients 0, 1"),
    ):
        with pytest.raises(UserError, match=f"^partition 'toy': {message}$"):
            Assignment(train, test, "toy", 0).check(len(samples), samples.train)
