"""What is held back for validation: from training samples alone, the classes in proportion, nothing else changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.toy_samples import ROLES, SAMPLES, make_samples

from pflcore.artifacts import read_table
from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import read_assignment, write_assignment
from pflcore.data.noise import Noise
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition

OPTIONS = {"quantity": {"alpha": 2.0}}


def assigned(name: str, clients: int = 20, seed: int = 0, **options: object) -> Assignment:
    return partition(PARTITIONS.create(name, **{**OPTIONS.get(name, {}), **options}), SAMPLES, clients, seed)


@pytest.mark.parametrize("name", PARTITIONS.names())
def test_it_takes_from_training_samples_and_changes_nothing_else(name: str) -> None:
    before, after = assigned(name, ROLES), assigned(name, ROLES, validation_share=0.3)
    after.check(len(SAMPLES), SAMPLES.train)
    for client in range(ROLES):
        assert np.array_equal(before.test[client], after.test[client])
        train, held_back = set(after.train[client].tolist()), set(after.validation[client].tolist())
        assert held_back and train and not train & held_back
        assert train | held_back == set(before.train[client].tolist())
    assert all(np.array_equal(*pair) for pair in zip(before.rows(), after.rows(), strict=True))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_classes_are_held_back_in_proportion(share: float) -> None:
    before, after = assigned("dirichlet"), assigned("dirichlet", validation_share=share)
    for whole, part in zip(before.train, after.validation, strict=True):
        assert len(part) == int(len(whole) * share + 0.5)
        own, drawn = (Counter(SAMPLES.labels[rows].tolist()) for rows in (whole, part))
        for label, count in own.items():  # no class is more than a sample away from its exact part
            assert abs(drawn[label] - count * len(part) / len(whole)) < 1
        assert drawn.keys() <= own.keys()


def test_every_sample_is_as_likely_to_be_held_back() -> None:
    scheme, small = PARTITIONS.create("iid", validation_share=0.2), make_samples(30, 10)
    drawn = np.zeros(len(small))
    for seed in range(400):  # clients hold one sample of a class
        drawn[np.concatenate(partition(scheme, small, 3, seed).validation)] += 1
    share = drawn[small.train] / 400
    assert share.mean() == pytest.approx(0.2)
    assert np.abs(share - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 400)


@pytest.mark.parametrize(("share", "held_back"), [(0.01, 1), (0.99, 9)])
def test_at_least_one_and_never_all(share: float, held_back: int) -> None:
    scheme = PARTITIONS.create("iid", validation_share=share)
    assignment = partition(scheme, make_samples(30, 10), 3, 0)
    assert [len(rows) for rows in assignment.validation] == [held_back] * 3
    assert [len(rows) for rows in assignment.train] == [10 - held_back] * 3


def test_the_artifact_tells_the_three_apart(tmp_path: Path) -> None:
    written = assigned("noise", validation_share=0.2)
    write_assignment(tmp_path / "a", written)
    read = read_assignment(tmp_path / "a")
    assert isinstance(read.noise, Noise) and read.sides().keys() == {"train", "test", "validation"}
    for split, parts in written.sides().items():
        assert all(np.array_equal(*pair) for pair in zip(parts, read.sides()[split], strict=True))
    table, _ = read_table(tmp_path / "a", "partition/2")
    assert set(table["split"].to_pylist()) == {"train", "test", "validation"}
    write_assignment(tmp_path / "b", assigned("noise"))
    assert "validation" not in str(read_table(tmp_path / "b", "partition/2"))
    assert read_assignment(tmp_path / "b").validation == []


def test_wrong_sides_are_refused() -> None:
    train = np.array([True, True, True, False, False])
    rows = [np.array([row]) for row in range(5)]

    def check(held_back: int, own_split: bool = False) -> None:
        Assignment([rows[0]], [rows[3]], "x", 0, own_split, validation=[rows[held_back]]).check(5, train)

    check(1)
    check(4, own_split=True)
    with pytest.raises(UserError, match="client 0, validation: row 4 is not a train sample"):
        check(4)
    with pytest.raises(UserError, match="row 0 is held for train and for validation"):
        check(0)
    with pytest.raises(UserError, match="row 3 is held for test and for validation"):
        check(3, own_split=True)
    with pytest.raises(UserError, match="1 clients train, 2 hold back"):
        Assignment([rows[0]], [rows[3]], "x", 0, validation=[rows[1], rows[2]])
