"""The scheduler between a recorder, a pool and a display that do as they are set to: what happens when, how it ends."""

import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from support.mistakes import line_of

from pflcore.errors import UserError
from pipeline.compile.compilation import Graph, Stage
from pipeline.dvc.recorder import CHANGED, Locked, Verdict
from pipeline.running import scheduler
from pipeline.running.board import Board, StageState
from pipeline.running.local import Ended, Progressed
from pipeline.running.scheduler import Scheduler

FAILED = Ended("", "failed", "its line")


class Play:
    """A call of ``pfl run``; it is the recorder, the pool and the display, too.

    `stages`: name, such as ``train a`` → names of the stages that it needs. `then`: name → what happens to the stage in
    turn: verdicts, ends, and problems when it is recorded; afterwards all goes well. Its lists for ``begin`` and
    ``record`` say how often DVC's lock is held.
    """

    def __init__(self, stages, then=None, stale=None, seconds=None, capacity=1, keep_going=True):
        graph = Graph([Stage("f", name, f"pfl stage {name}", deps, (name,)) for name, deps in stages.items()])
        self.board, self.capacity, self.log = Board(), capacity, defaultdict(list)
        for address in graph.needed(graph.stages):
            one = graph.stages[address]
            expected = (seconds or {}).get(one.name, 0.0)
            self.board.entries[address] = StageState(address, one.kind, one.subject, expected=expected)
        self.jobs, self.running, self.looks = [], [], 0
        self.turns = {name: list(turns) for name, turns in (then or {}).items()}
        due = {f"f:{name}" for name in (stages if stale is None else stale)}
        self.scheduler = Scheduler(graph, self.board, due, self, self, self, Path("logs"), keep_going)

    def run(self):
        self.scheduler.run()
        return {address[2:]: entry.state for address, entry in self.board.entries.items()}

    def entry(self, name):
        return self.board.entries[f"f:{name}"]

    def note(self, what, address):
        self.log[what].append(address[2:])
        return address[2:]

    def turn(self, name, kind):
        """Return what is to happen next, if it is of a kind."""
        turns = self.turns.get(name, [])
        return turns.pop(0) if turns and isinstance(turns[0], kind) else None

    def check_lock(self, name):
        if self.turn(name, Locked):
            raise Locked

    def begin(self, address):
        self.check_lock("begin")
        return self.turn(self.note("asked", address), Verdict) or Verdict("run")

    def record(self, addresses, wait=False):
        if not wait:
            self.check_lock("record")
        found = {address: self.turn(self.note("recorded", address), str) for address in addresses}
        return {address: why for address, why in found.items() if why}

    def abandon(self, address):
        self.note("given up", address)

    def close(self, wait=True):
        self.note("closed", "")

    def free_slot(self, address):
        return "cpu" if len(self.running) < self.capacity else None

    def start(self, job, place):
        self.running.append(self.note("started", job.address))
        self.jobs.append(job)

    def events(self, timeout):
        events, self.looks = [], self.looks + 1
        assert self.looks < 5000, "it does not end"
        if not self.running or not timeout:
            time.sleep(0.001 * bool(timeout))
            return events
        name = self.running.pop(0)
        while event := self.turn(name, Progressed | Ended):
            events.append(replace(event, address=f"f:{name}"))
            if isinstance(event, Ended):
                return events
        return [*events, Ended(f"f:{name}", "done")]

    def shrink(self, place):
        return "fewer" if place == "cpu" else ""

    def print_end(self, entry):
        self.note("ended", entry.address)

    def print_line(self, line):
        self.log["said"].append(line)

    def update(self):
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(scheduler, "BUSY_PAUSE", 0.01)


def test_what_takes_moments_goes_first_and_then_the_longest_way_to_the_end():
    stages = {"train a": (), "train b": (), "train c": (), "report late": ("train b",), "data x": (), "describe y": ()}
    play = Play(stages, seconds={"train a": 5.0, "train b": 3.0, "train c": 4.0, "report late": 4.0})
    assert set(play.run().values()) == {"done"}
    started = ["data x", "describe y", "train b", "report late", "train a", "train c"]
    assert play.log == dict.fromkeys(("asked", "started", "recorded", "ended"), started) | {"closed": ["", ""]}
    assert (play.jobs[2].outs, play.jobs[2].log) == (("train b",), Path("logs/b.train.log"))
    entry = play.entry("train b")
    assert (entry.place, entry.attempts, entry.log) == ("cpu", 1, "logs/b.train.log") and 0 <= entry.seconds < 60


def test_dvc_is_asked_of_what_is_stale_or_comes_after_what_was_made():
    stages = {"data a": (), "train b": ("data a",), "evaluate c": ("train b",), "train x": ("data a",), "data z": ()}
    play = Play(stages, stale={"train b"})
    assert play.run() == {name: "done" if name in ("train b", "evaluate c") else "cached" for name in stages}
    assert play.log["asked"] == play.log["ended"] == ["train b", "evaluate c"]
    # What comes from the cache is new to what comes after it.
    stages = {"data a": (), "train b": ("data a",), "data c": (), "train d": ("data c",)}
    play = Play(stages, {"data a": [Verdict("fresh")], "data c": [Verdict("cached")]}, stale={"data a", "data c"})
    assert play.run() == {"data a": "cached", "train b": "cached", "data c": "cached", "train d": "done"}


def test_what_fails_takes_along_what_needs_it_and_nothing_else():
    stages = {f"train {name}": () for name in "abcd"} | {f"evaluate {name}": (f"train {name}",) for name in "abc"}
    then = {"train a": [FAILED], "train b": [Verdict("broken", reason="DVC: no")], "train c": [CHANGED]}
    play = Play({**stages, "report a": ("evaluate a",)}, then)
    states = play.run()
    assert [states[f"train {name}"] for name in "abcd"] == ["failed", "failed", "failed", "done"]
    assert {states[f"evaluate {name}"] for name in "abc"} == {"skipped"}
    assert [play.entry(f"train {name}").note for name in "abc"] == ["its line", "DVC: no", CHANGED]
    assert play.entry("report a").note == "needs a" and play.log["given up"] == ["train a"]
    # Or else nothing is started any more.
    play = Play({f"train {name}": () for name in "abcd"}, {"train a": [FAILED]}, keep_going=False, capacity=2)
    assert list(play.run().values()) == ["failed", "done", "queued", "queued"] and play.log["recorded"] == ["train b"]


@pytest.mark.parametrize("times", [1, 3])
def test_the_guard_compiles_again_when_something_was_written_meanwhile(times):
    """As by `pfl keep` in another terminal: what it may not do is to end a night's training."""
    play = Play({"guard guard": (), "train a": ("guard guard",)}, {"guard guard": [CHANGED] * times})
    assert list(play.run().values()) == (["done", "done"] if times < 3 else ["failed", "skipped"])
    assert play.log["started"] == ["guard guard"] * min(times + 1, 3) + ["train a"] * (times < 3)
    assert play.log["said"] == ["guard: what it depends on changed while it ran; trying again"] * min(times, 2)


@pytest.mark.parametrize(
    ("outcomes", "more"),
    [
        (["lost"], [""]),  # it may have been chance
        (["memory", "lost"], [", fewer", ", fewer"]),
        (["lost"] * 3, ["", ", fewer"]),
    ],
)
def test_what_the_machine_did_is_tried_three_times(outcomes, more):
    ends = [Progressed("", 3, 9, 0.5), *(Ended("", outcome, "gone") for outcome in outcomes)]
    play, well = Play({"train a": (), "evaluate a": ("train a",)}, {"train a": ends}), len(outcomes) < 3
    assert list(play.run().values()) == (["done", "done"] if well else ["failed", "skipped"])
    entry = play.entry("train a")
    assert entry.attempts == len(more) + 1 == play.log["started"].count("train a")
    assert play.log["said"] == [f"a: gone; trying again{words}" for words in more]
    assert play.log["given up"] == ["train a"] * len(outcomes) and entry.note == ("" if well else "gone")


def test_what_somebody_else_makes_is_waited_for():
    busy = Verdict("busy", reason="held by dvc repro")
    play = Play({"data a": (), "data b": ()}, {"data a": [busy, busy, Verdict("fresh", moved=("there",))]})
    assert play.run() == {"data a": "cached", "data b": "done"}
    changed = "data a: had been changed by hand, or was cut short; that version is kept as there"
    assert play.log["said"] == ["data a: waiting, held by dvc repro", changed] and play.entry("data a").note == ""
    assert play.log["asked"].count("data a") == 3 and play.log["started"] == ["data b"]


def test_while_another_process_has_dvcs_lock_the_rest_goes_on():
    play = Play({"train a": (), "evaluate a": ("train a",)}, {"begin": [Locked()] * 2, "record": [Locked()] * 2})
    ticks = []
    play.update = lambda: ticks.append(play.entry("train a").state)
    assert list(play.run().values()) == ["done", "done"]
    assert play.log["recorded"] == play.log["started"] == ["train a", "evaluate a"]
    assert play.log["said"] == ["waiting for another process, such as a `dvc push`, that has DVC's lock"] * 2
    assert ticks.count("queued") >= 2 and ticks.count("running") >= 2


@pytest.mark.parametrize("what", ["update", "record"])
def test_what_has_ended_is_recorded_once_whatever_breaks(what):
    play = Play({"train a": (), "train b": ()}, {"record": [Locked()]}, capacity=2)

    def fail(addresses=()):
        play.log["recorded"] += addresses
        if addresses or play.scheduler.executed:
            raise UserError("the disk is full")

    setattr(play, what, fail)
    assert "the disk is full" in line_of(play.run)
    assert [name.removeprefix("f:") for name in play.log["recorded"]] == ["train a"] and len(play.log["closed"]) == 2
