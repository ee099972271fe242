"""Workers of this machine, which cannot influence each other, and how many there are."""

from __future__ import annotations

import ast
import errno
import os
import re
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from support import vandals

from pflcore.errors import UserError
from pflcore.memory import TooLittleMemory
from pipeline.running import local
from pipeline.running.local import Ended, Job, LocalPool, Slot, attempt, slots, visible_gpus, work


class Workers:
    """A pool with two slots of a GPU and one of another, whose workers do what they are set to."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch = root, monkeypatch
        self.pool = LocalPool(root, [Slot("gpu 0"), Slot("gpu 1"), Slot("gpu 0")], {})

    def start(self, name: str, what: object = vandals.look, command: str = "") -> str | None:
        self.monkeypatch.setattr(local, "work", what)
        if place := self.pool.free_slot(name):
            self.pool.start(Job(name, command, (), self.root / f"{name}.log"), place)
        return place

    def ends(self, count: int) -> dict[str, Ended]:
        """The ends of so many stages."""
        found: dict[str, Ended] = {}
        for _ in range(600):
            found |= {event.address: event for event in self.pool.events(0.1) if isinstance(event, Ended)}
            if len(found) == count:
                return found
        raise AssertionError("no stage has ended")


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    made = Workers(tmp_path, monkeypatch)
    yield made
    made.pool.close()


def test_one_stage_cannot_influence_the_next_and_one_that_vanishes_is_noticed(workers: Workers) -> None:
    seen = []
    for what in (vandals.look, vandals.vandalise, vandals.look):
        workers.start("a", what)
        seen.append(ast.literal_eval(workers.ends(1)["a"].message))
    before, vandalised, after = seen
    assert all(vandalised[name] != before[name] for name in before) and after == before
    workers.start("a", vandals.vanish)
    assert workers.ends(1)["a"] == Ended("a", "lost", "its process was ended by SIGKILL")
    for command, line in {
        "pfl stage train none": "stages/records.json: no such file; run `pfl compile`",
        "rm -rf /": "is no stage of this pipeline",
    }.items():
        workers.start("a", work, command)
        end = workers.ends(1)["a"]
        assert end.outcome == "failed" and line in end.message and "\n" not in end.message
        assert line in (workers.root / "a.log").read_text(encoding="utf-8")


def test_slots_are_shared_out_and_fewer_after_memory_did_not_suffice(workers: Workers) -> None:
    assert [workers.start(name) for name in "abcd"] == ["gpu 0", "gpu 1", "gpu 0", None]
    assert workers.pool.shrink("gpu 1") == "", "one is left alone"
    assert workers.pool.shrink("gpu 0") == "at most 1 at a time on gpu 0 from now on" and workers.pool.capacity == 2
    assert set(workers.ends(3)) == {"a", "b", "c"}
    assert [workers.start(name) for name in "abc"] == ["gpu 0", "gpu 1", None]
    workers.ends(2)


@pytest.mark.matrix
def test_the_process_that_workers_are_forked_from_may_be_killed(workers: Workers) -> None:
    for _ in range(2):
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
        assert workers.start("a") and workers.ends(1)["a"].outcome == "done"


def test_what_counts_as_memory_that_did_not_suffice() -> None:
    def act(error: Exception) -> None:
        raise error

    errors = {
        TooLittleMemory("not enough memory on cuda:0 for one client"): "memory",
        RuntimeError("CUDA error: out of memory"): "memory",
        MemoryError(): "memory",
        UserError("no such file"): "failed",
        RuntimeError("CUDA error: an illegal memory access was encountered"): "failed",
    }
    assert {error: attempt(lambda error=error: act(error))[0] for error in errors} == errors  # type: ignore[misc]


def test_an_error_of_the_disk_is_one_line_and_another_one_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    def act(error: Exception) -> None:
        raise error

    full = OSError(errno.ENOSPC, "No space left on device", "a.parquet")
    assert attempt(lambda: act(full)) == ("failed", "a.parquet: No space left on device")
    assert capsys.readouterr() == ("pfl: a.parquet: No space left on device\n", "")
    outcome, line = attempt(lambda: act(FileNotFoundError(errno.ENOENT, "No such file or directory", "own.csv")))
    assert outcome == "failed"
    message = r"FileNotFoundError: \[Errno 2\] No such file or directory: 'own.csv' \(pipeline/running/local.py:\d+\)"
    assert re.fullmatch(message, line)
    assert "Traceback" in (printed := capsys.readouterr()).err and "in act" in printed.err


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def seen(wanted: str | None, **variables: str) -> list[str] | None:
        for name in ("PFL_DEVICE", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.setenv(name, variables[name]) if name in variables else monkeypatch.delenv(name, raising=False)
        return visible_gpus(wanted)

    monkeypatch.setattr(local, "_DRIVERS", (str(tmp_path / "none"),))
    assert seen(None) is None
    with pytest.raises(UserError, match="there is no GPU here; leave it out"):
        seen("0")
    monkeypatch.setattr(local, "_DRIVERS", (str(tmp_path),))
    for wanted in ("", "a", "0,0", "-1"):
        with pytest.raises(UserError, match=r"--gpus.* must be numbers separated by commas"):
            seen(wanted)
    some = {"CUDA_VISIBLE_DEVICES": "4,GPU-5f"}
    assert seen("0, 1") == ["0", "1"] and seen("1, 0", **some) == ["GPU-5f", "4"]
    assert seen(None, PFL_DEVICE="cuda:1") == ["1"] and seen(None, PFL_DEVICE="cuda:1", **some) == ["GPU-5f"]
    assert seen(None, PFL_DEVICE="cpu") is None
    with pytest.raises(UserError, match=r"^--gpus 0,4: there is no GPU 4, since CUDA_VISIBLE_DEVICES = '4,GPU-5f'"):
        seen("0,4", **some)
