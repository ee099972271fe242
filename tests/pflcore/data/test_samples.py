"""The artifacts dataset/2 and partition/2 and what their readers refuse."""

import dataclasses
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.mistakes import refuses

from pflcore.artifacts import read_table, write_table
from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import read_assignment, write_assignment
from pflcore.data.sample_files import read_facts, read_samples, write_samples
from pflcore.data.samples import Attribute, Boxes, Samples

BOXES = Boxes(
    np.array([0, 2, 0, 1, *[0] * 8]),
    np.array([2, 0, 1]),
    np.array([[0.0, 0.0, 1.0, 0.5], [0.25, 0.5, 0.75, 1.0], [0.1, 0.2, 0.3, 0.4]], np.float32),
    np.array([False, True, False]),
)
DOMAIN = Attribute(np.arange(12) % 2, ("Art", "Real World"))
BYTES = np.random.default_rng(0).integers(0, 256, (12, 60), np.uint8)
IMAGES = Samples(
    inputs=BYTES.reshape(12, 3, 4, 5),
    labels=np.arange(12) % 3,
    train=np.arange(12) % 4 != 0,
    name="toy",
    class_names=("a", "b", "c"),
    mean=(0.1, 0.2, 0.3),
    std=(1.0, 2.0, 3.0),
    source="made here",
)
LAST = (BYTES[:, 5] % 3).astype(np.int64)
TEXTS = dataclasses.replace(IMAGES, inputs=BYTES[:, :6] % 3, labels=LAST, mean=(), std=())
FLOATS = np.random.default_rng(1).standard_normal((12, 10)).astype(np.float32)
ARRAYS = dataclasses.replace(IMAGES, inputs=FLOATS.reshape(12, 2, 5), mean=(), std=(), standardise=True)
WHOLE = dataclasses.replace(IMAGES, attributes={"domain": DOMAIN}, boxes=BOXES, size=8)
OWNERS = np.array([0, 0, 2, 2, -1, 2, 0, 0, 2, 2, 0, 2])
ROWS = np.flatnonzero(OWNERS >= 0)
ASSIGNMENT = Assignment.from_rows(ROWS, OWNERS[ROWS], (~IMAGES.train[ROWS]).astype(int), 3, "toy", 7)


SHAPES = [(IMAGES, (3, 4, 5)), (WHOLE, (3, 8, 8)), (TEXTS, (5,)), (ARRAYS, (2, 5))]


@pytest.mark.parametrize(("samples", "shape"), SHAPES)
def test_samples_round_trip_byte_identically(tmp_path, monkeypatch, samples, shape):
    path, scratch = tmp_path / "a.parquet", tmp_path / "decoded"
    write_samples(path, samples)
    for read in (read_samples(path), read_facts(path)):
        for field in dataclasses.fields(Samples):
            if field.name not in ("inputs", "attributes", "boxes"):
                np.testing.assert_array_equal(getattr(read, field.name), getattr(samples, field.name))
        assert read.shape == samples.shape == shape and read.classes == 3 and len(read) == 12
        for name, attribute in samples.attributes.items():
            assert read.attributes[name].names == attribute.names
            np.testing.assert_array_equal(read.attributes[name].values, attribute.values)
        for part in dataclasses.fields(Boxes) if samples.boxes else ():
            np.testing.assert_array_equal(getattr(read.boxes, part.name), getattr(samples.boxes, part.name))
    assert not read.inputs.any()
    mapped = read_samples(path, scratch)
    np.testing.assert_array_equal(mapped.inputs, samples.inputs)
    assert mapped.inputs.flags.writeable and mapped.labels.flags.writeable and not scratch.exists()
    write_samples(tmp_path / "b.parquet", mapped)
    assert path.read_bytes() == (tmp_path / "b.parquet").read_bytes()
    monkeypatch.setattr("pflcore.data.sample_files.GROUP", 5 * samples.inputs[0].nbytes)  # in pieces
    write_samples(tmp_path / "c.parquet", samples)
    assert pq.read_metadata(tmp_path / "c.parquet").num_row_groups == 3
    # Beyond the memory limit they are decoded once and mapped, by the content of the artifact.
    monkeypatch.setenv("PFL_MEMORY", "0")
    for name in ("c", "c", "a"):
        mapped = read_samples(tmp_path / f"{name}.parquet", scratch)
        assert isinstance(mapped.inputs, np.memmap) and np.array_equal(mapped.inputs, samples.inputs)
        assert len([*scratch.iterdir()]) == (2 if name == "a" else 1)


def test_the_columns_are_those_of_the_schema(tmp_path):
    write_samples(tmp_path / "a.parquet", WHOLE)
    table, meta = read_table(tmp_path / "a.parquet", "dataset/2")
    assert table.schema.field("input").type == pa.binary(60) and table.schema.field("label").type == pa.int64()
    assert table["split"].to_pylist()[:2] == ["test", "train"] and meta["shape"] == [3, 4, 5] and meta["size"] == 8
    assert [[box["label"] for box in boxes] for boxes in table["boxes"].to_pylist()[:4]] == [[], [2, 0], [], [1]]


def test_samples_refuse():
    for change, words in (
        ({"labels": np.arange(11) % 3}, "lengths differ: 12 inputs, 11 labels"),
        ({"labels": np.arange(12) - 1}, "row 0: label -1 is outside 0..2"),
        ({"inputs": np.zeros((12, 4, 5), np.uint8)}, "inputs must be uint8 with 4 dimensions"),
        ({"attributes": {"domain": Attribute(np.arange(12), ("a", "b"))}}, "domain: row 2: label 2"),
        ({"attributes": {"domain": Attribute(np.arange(3), ("a", "b", "c"))}}, "12 train, 3 domain"),
        ({"boxes": dataclasses.replace(BOXES, corners=BOXES.corners[:, ::-1].copy())}, "boxes: object 0: corners"),
        ({"boxes": dataclasses.replace(BOXES, counts=np.ones(12, np.int64))}, "boxes: 12 objects"),
        ({"inputs": FLOATS.astype(np.float64)}, "inputs must be float32 with 2 dimensions, not float64 with 2"),
        ({"inputs": np.where(FLOATS[7, 3] == FLOATS, np.inf, FLOATS), "mean": (), "std": ()}, "row 7 has a number"),
        ({"std": (1.0, 0.0, 1.0)}, "std (1.0, 0.0, 1.0) need one number for each of the 3 channels"),
    ):
        refuses(r"^dataset 'toy': .*" + re.escape(words), dataclasses.replace, IMAGES, **change)


def test_damaged_artifacts_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    for schema, column, fact, words in (
        ("dataset/2", "label", "", "label"),
        ("dataset/2", "", "mean", "KeyError: 'mean'"),
        ("partition/2", "client", "", "client"),
        ("partition/2", "", "novel", "KeyError: 'novel'"),
    ):
        read = read_samples if schema == "dataset/2" else read_assignment
        write_samples(path, WHOLE) if schema == "dataset/2" else write_assignment(path, ASSIGNMENT)
        table, meta = read_table(path, schema)
        table = table.drop_columns([column] if column else [])
        write_table(path, table, schema, **{key: value for key, value in meta.items() if key != fact})
        refuses(rf"^{path}: damaged \(.*{re.escape(words)}.*; delete it and run again$", read, path)


def test_an_assignment_fits_its_dataset():
    single, two, none = ([np.array(rows, np.int64) for rows in parts] for parts in ([[1]], [[1], [2]], [[], []]))
    for train, test, message in (
        ([single[0], single[0] + 11], none, "client 1, train: row 12 is outside the dataset of 12 samples"),
        (two, [single[0] - 2, none[0]], "client 0, test: row -1 is outside the dataset of 12 samples"),
        ([single[0], single[0] - 1], none, "client 1, train: row 0 is not a train sample of the dataset"),
        (two, [none[0], np.array([0, 3])], "client 1, test: row 3 is not a test sample of the dataset"),
        ([np.array([1, 2]), two[1]], none, "row 2 is held 2 times, by clients 0, 1"),
    ):
        refuses(f"^partition 'toy': {message}", Assignment(train, test, "toy", 0).check, IMAGES.train)
