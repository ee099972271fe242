"""What is pinned is what the code gives; ``make pins`` says the same of all kinds at once."""

from functools import cache

import pytest
import torch
from support.pretend_device import pretend_cuda

import pins.pins as pins
from pflcore.engine.dropout import DropoutBits
from pflcore.registry import registry_of
from pins.cases import CASES
from pins.pins import changes, compare, differences, numbers_of, numbers_of_run, read_pins
from pipeline.stages import train
from pipeline.study.small_run import STACKED, fixed_environment

_recorded = cache(read_pins)


def cases(wanted=lambda case: True):
    return pytest.mark.parametrize("case", [*filter(wanted, CASES)], ids=lambda case: case.name)


@cases()
def test_numbers(case):
    assert not changes("numbers", case.name, _recorded("numbers")[case.name], numbers_of(case))


@pytest.mark.matrix
@cases(lambda case: case.ways)
def test_ways_agree(case):
    numbers_of(case, *case.ways)


@pytest.mark.matrix
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")
# Mixed precision is switched on for CUDA alone, which the pretended device is not to PyTorch itself.
@cases(lambda case: case.method and not case.brief and case.training.get("precision") != "bf16")
def test_numbers_on_a_pretended_gpu(case, tmp_path, monkeypatch):
    run, draw = train.run, DropoutBits.draw

    def drawn(bits, *ids):
        """Draw dropout's numbers as the host does, and copy them to the device."""
        device, bits.device = bits.device, torch.device("cpu")
        try:
            return draw(bits, *ids).to(device)
        finally:
            bits.device = device

    monkeypatch.setattr(DropoutBits, "draw", drawn)
    monkeypatch.setattr(train, "run", lambda *args, **named: run(*args, **{**named, "device": "cuda"}))
    with fixed_environment(), pretend_cuda() as events:
        found = numbers_of_run(case, STACKED, tmp_path)
    assert events["kernels"] > 0
    recorded = {name: own for name, own in _recorded("numbers")[case.name].items() if name != "versions"}
    assert not differences(recorded, found, case.tolerance)


@pytest.mark.parametrize("kind", ["runs", "data", "figures", pytest.param("tables", marks=pytest.mark.matrix)])
def test_kind(kind):
    recorded, found = read_pins(kind), dict(pins.KINDS[kind]())
    assert not compare(kind, recorded, found) and recorded.keys() >= found.keys()


@pytest.mark.parametrize("kind", ["method", "backbone", "partition"])
def test_every_entry_has_a_case(kind):
    used = {entry["name"] for case in CASES if (entry := getattr(case, kind))}
    assert set(registry_of(kind).names()) - used <= {"from_file"}


def test_changed_numbers_need_a_raised_version(monkeypatch):
    written, recorded = [], {"a": {"versions": "engine=2 method/fedprox=1", "loss, round 1": "2.000000 3.000000"}}
    monkeypatch.setattr(pins, "read_pins", lambda kind: recorded)
    monkeypatch.setattr(pins, "write_pins", lambda kind, new: written.append(new))
    moved = {**recorded["a"], "loss, round 1": "2.000000 3.000300"}
    (line,) = pins.record("numbers", {"a": moved})
    assert line.startswith("a: loss, round 1: ") and line.endswith("(by 0.0001)") and not written
    raised = {**moved, "versions": "engine=2 method/fedprox=2"}
    assert pins.record("numbers", {"a": raised}) == [] and written == [{"a": raised}]


def test_a_pin_that_vanished_or_moved_is_named_and_a_new_one_is_not():
    found = {"b": {"paper": "3 ffff"}, "new": {"paper": "1 aaaa"}}
    recorded = {"a": {"paper": "2 eeee"}, "b": {"paper": "2 ffff"}}
    assert compare("runs", recorded, found) == ["a: paper: 2 eeee → none", "b: paper: 2 ffff → 3 ffff"]
    for line, moved in (("FedAvg,53.60,1.2", False), ("FedAvg,53.80,1.2", True), ("FedPer,52.70,1.2", True)):
        assert bool(changes("tables", "a", {"line 1": "FedAvg,52.70,1.2"}, {"line 1": line})) is moved  # by a point
