"""Workers of this machine, which cannot influence each other, and how many there are."""

import ast
import errno
import os
import re

import pytest
from support import vandals
from support.mistakes import line_of, refuses

from pflcore.errors import UserError
from pflcore.memory import TooLittleMemory
from pipeline.running import local
from pipeline.running.local import Ended, Job, LocalPool, Slot, attempt, slots, visible_gpus, work


class Workers:
    """A pool with two slots of a GPU and one of another, whose workers do what they are set to."""

    def __init__(self, root, monkeypatch):
        self.root, self.monkeypatch = root, monkeypatch
        self.pool = LocalPool(root, [Slot("gpu 0"), Slot("gpu 1"), Slot("gpu 0")], {})

    def start(self, name, what=vandals.look, command=""):
        self.monkeypatch.setattr(local, "work", what)
        if place := self.pool.free_slot(name):
            self.pool.start(Job(name, command, (), self.root / f"{name}.log"), place)
        return place

    def ends(self, count):
        """Return the ends of so many stages."""
        found = {}
        for _ in range(600):
            found |= {event.address: event for event in self.pool.events(0.1) if isinstance(event, Ended)}
            if len(found) == count:
                return found
        raise AssertionError("no stage has ended")


@pytest.fixture
def workers(tmp_path, monkeypatch):
    made = Workers(tmp_path, monkeypatch)
    yield made
    made.pool.close()


def test_one_stage_cannot_influence_the_next_and_one_that_vanishes_is_noticed(workers):
    seen = []
    for what in (vandals.look, vandals.vandalise, vandals.look):
        workers.start("a", what)
        seen.append(ast.literal_eval(workers.ends(1)["a"].message))
    before, vandalised, after = seen
    assert all(vandalised[name] != before[name] for name in before) and after == before
    workers.start("a", vandals.vanish)
    assert workers.ends(1)["a"] == Ended("a", "lost", "its process was ended by SIGKILL")
    lost = "stages/records.json: no such file; run `pfl compile`"
    for command, line in {"pfl stage train none": lost, "pfl stage a b": "is no stage of this pipeline"}.items():
        workers.start("a", work, command)
        end = workers.ends(1)["a"]
        assert end.outcome == "failed" and line in end.message and "\n" not in end.message
        assert line in (workers.root / "a.log").read_text(encoding="utf-8")


def test_slots_are_shared_out_and_fewer_after_memory_did_not_suffice(workers):
    assert [workers.start(name) for name in "abcd"] == ["gpu 0", "gpu 1", "gpu 0", None]
    assert workers.pool.shrink("gpu 1") == "", "one is left alone"
    assert workers.pool.shrink("gpu 0") == "at most 1 at a time on gpu 0 from now on" and workers.pool.capacity == 2
    assert set(workers.ends(3)) == {"a", "b", "c"}
    assert [workers.start(name) for name in "abc"] == ["gpu 0", "gpu 1", None]
    workers.ends(2)


def test_how_an_error_ends_a_stage_and_what_is_said_of_it(capsys):
    def act(error):
        raise error

    for error, outcome, line in (
        (TooLittleMemory("not enough memory on cuda:0"), "memory", "not enough memory on cuda:0"),
        (RuntimeError("CUDA error: out of memory"), "memory", "RuntimeError: CUDA error: out of memory ("),
        (UserError("no such file"), "failed", "no such file"),
        (OSError(errno.ENOSPC, "No space left", "a.parquet"), "failed", "a.parquet: No space left"),
        (FileNotFoundError(errno.ENOENT, "None", "a.csv"), "failed", "FileNotFoundError: [Errno 2] None: 'a.csv' ("),
    ):
        found, said = attempt(lambda error=error: act(error))
        assert found == outcome and said.partition("(")[0] == line.partition("(")[0], said
        printed = capsys.readouterr()
        if line.endswith("("):  # a fault in code
            assert re.search(r"\(pipeline/running/local.py:\d+\)$", said)
            assert printed.err.startswith("Traceback") and "in act" in printed.err
        else:
            assert printed == (f"pfl: {said}\n", "")


def test_slots(monkeypatch):
    for name in ("PFL_DEVICE", "PFL_WORKERS", "PFL_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(local, "memory_limit", lambda: 32 << 30)
    shared = {"PFL_DEVICE": "cpu", "PFL_WORKERS": "2", "PFL_THREADS": "1"}
    assert [slot.variables for slot in slots(3, None, 1)] == [shared] * 3 and len(slots(None, None, 1)) == 8
    monkeypatch.setattr(local, "memory_limit", lambda: 9 << 29)
    monkeypatch.setenv("PFL_THREADS", "4")
    assert len(found := slots(None, None, 1)) == 2 and found[0].variables["PFL_THREADS"] == "4"  # memory for two
    on_gpus = slots(None, ["0", "2"], 2)
    assert [slot.name for slot in on_gpus] == ["gpu 0", "gpu 2"] * 2 and len(slots(3, ["0", "2"], 2)) == 3
    assert on_gpus[1].variables == {"CUDA_VISIBLE_DEVICES": "2", "PFL_DEVICE": "cuda"}


def test_gpus(monkeypatch, tmp_path):
    for name in ("PFL_DEVICE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(local, "DRIVERS", (str(tmp_path / "none"),))
    assert visible_gpus(None) is None
    assert "there is no GPU here; leave it out" in line_of(visible_gpus, "0")
    monkeypatch.setattr(local, "DRIVERS", (str(tmp_path),))
    for wanted in ("", "a", "0,0", "-1"):
        refuses(f"^--gpus {wanted}".rstrip() + " must be numbers separated by commas", visible_gpus, wanted)
    assert visible_gpus("0, 1") == ["0", "1"]
    monkeypatch.setenv("PFL_DEVICE", "cuda:1")
    assert visible_gpus(None) == ["1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5f")
    assert visible_gpus(None) == ["GPU-5f"] and visible_gpus("1, 0") == ["GPU-5f", "4"]
    refuses(r"^--gpus 0,2: there is no GPU 2, since CUDA_VISIBLE_DEVICES = '4,GPU-5f'", visible_gpus, "0,2")
    monkeypatch.setenv("PFL_DEVICE", "cpu")
    assert visible_gpus(None) is None
