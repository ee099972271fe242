"""What is pinned is what the code gives; ``make pins`` says the same of all kinds at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

import pins.pins as pins
from pflcore.registry import registry_of
from pins.cases import CASES, Case
from pins.pins import changes, compare, numbers_of, read_pins
from pipeline.compile.compiler import source_folder
from pipeline.compile.engine import untested
from pipeline.compile.fingerprint import Code

_recorded = cache(read_pins)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_numbers(case: Case) -> None:
    assert not changes("numbers", case.name, _recorded("numbers")[case.name], numbers_of(case))


@pytest.mark.matrix
@pytest.mark.parametrize("case", [case for case in CASES if case.ways], ids=lambda case: case.name)
def test_ways_agree(case: Case) -> None:
    numbers_of(case, *case.ways)


@pytest.mark.parametrize("kind", ["runs", "data", "figures", pytest.param("tables", marks=pytest.mark.matrix)])
def test_kind(kind: str) -> None:
    assert not compare(kind, read_pins(kind), dict(pins.KINDS[kind]()))


@pytest.mark.parametrize("kind", ["method", "backbone", "partition"])
def test_every_entry_has_a_case(kind: str) -> None:
    used = {entry["name"] for case in CASES if (entry := getattr(case, kind))}
    assert set(registry_of(kind).names()) - used <= {"from_file"}


def test_the_engine_is_the_one_that_gave_the_numbers() -> None:
    assert untested(Code(source_folder())) is None


def test_changed_numbers_need_a_raised_version(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Mapping[str, pins.Numbers]] = []
    recorded = {"a": {"versions": "engine=2 method/fedprox=1", "loss, round 1": "2.000000 3.000000"}}
    monkeypatch.setattr(pins, "read_pins", lambda kind: recorded)
    monkeypatch.setattr(pins, "write_pins", lambda kind, new: written.append(new))
    moved = {**recorded["a"], "loss, round 1": "2.000000 3.000300"}
    assert pins.record("numbers", {"a": moved}) == [
        "a: loss, round 1: 2.000000 3.000000 → 2.000000 3.000300 (by 0.0001)"
    ]
    assert not written
    raised = {**moved, "versions": "engine=2 method/fedprox=2"}
    assert pins.record("numbers", {"a": raised}) == [] and written == [{"a": raised}]


def test_a_pin_that_vanished_or_moved_is_named_and_a_new_one_is_not() -> None:
    found = {"b": {"paper": "3 ffff"}, "new": {"paper": "1 aaaa"}}
    recorded = {"a": {"paper": "2 eeee"}, "b": {"paper": "2 ffff"}}
    assert compare("runs", recorded, found) == ["a: paper: 2 eeee → none", "b: paper: 2 ffff → 3 ffff"]


def test_cells_may_move_by_a_point() -> None:
    one, other = {"line 1": "FedAvg,52.70,1.2"}, {"line 1": "FedAvg,53.60,1.2"}
    assert not changes("tables", "a", one, other)
    assert changes("tables", "a", one, {"line 1": "FedAvg,53.80,1.2"})
    assert changes("tables", "a", one, {"line 1": "FedPer,52.70,1.2"})
