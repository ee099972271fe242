"""The scheduler between a recorder, a pool and a display that do as they are set to: what happens when, how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest
from pipeline.running.jobs import Ended, Event, Job, Progressed

from pflcore.errors import UserError
from pipeline.compile.graph import Graph, Stage
from pipeline.dvc.recorder import CHANGED, Verdict
from pipeline.running import scheduler
from pipeline.running.board import Board, StageState
from pipeline.running.scheduler import Scheduler


@dataclass
class Play:
    """A call of ``pfl run``; it is the recorder, the pool and the display, too.

    Stages are named by kind and subject, such as ``train a``. What is listed of one happens to it in turn, and then
    everything goes well.
    """

    stages: Mapping[str, tuple[str, ...]]  # with what each depends on
    stale: set[str] | None = None  # None: all of them
    seconds: Mapping[str, float] = field(default_factory=dict)
    verdicts: Mapping[str, list[Verdict]] = field(default_factory=dict)
    ends: Mapping[str, list[Event]] = field(default_factory=dict)
    problems: Mapping[str, list[str]] = field(default_factory=dict)  # when it is recorded
    capacity: int = 1
    keep_going: bool = True

    def __post_init__(self) -> None:
        made = [Stage("f", name, f"pfl stage {name}", deps, (name,)) for name, deps in self.stages.items()]
        self.graph, self.board = Graph(made), Board()
        for address in self.graph.needed(self.graph.stages):
            stage = self.graph.stages[address]
            expected = self.seconds.get(stage.name, 0.0)
            self.board.entries[address] = StageState(address, stage.kind, stage.subject, expected=expected)
        self.asked: list[list[str]] = []
        self.jobs: list[Job] = []
        self.log: dict[str, list[str]] = {kind: [] for kind in ("started", "recorded", "given up", "ended", "eased")}
        self.said: list[str] = []
        self.closed = 0
        self.running: list[str] = []
        parts = (self.verdicts, self.ends, self.problems)
        self.turns = [{name: iter(values) for name, values in part.items()} for part in parts]  # type: ignore[attr-defined]
        self.flag = Flag()

    def run(self) -> dict[str, str]:
        """Return how each stage ends."""
        self.scheduler().run()
        return {_name(address): entry.state for address, entry in self.board.entries.items()}

    def scheduler(self) -> Scheduler:
        stale = [f"f:{name}" for name in (self.stages if self.stale is None else self.stale)]
        me: Any = self
        return Scheduler(self.graph, self.board, stale, me, me, me, Path("logs"), keep_going=self.keep_going)

    def entry(self, name: str) -> StageState:
        return self.board.entries[f"f:{name}"]

    def _turn(self, part: int, name: str) -> Iterator[Any]:
        return self.turns[part].get(name, iter(()))

    def begin(self, addresses: list[str]) -> dict[str, Verdict]:
        names = [_name(address) for address in addresses]
        self.asked.append(names)
        return {f"f:{name}": next(self._turn(0, name), Verdict("run", f"key of {name}")) for name in names}

    def record(self, addresses: list[str]) -> dict[str, str]:
        names = [_name(address) for address in addresses]
        self.log["recorded"] += names
        found = {f"f:{name}": next(self._turn(2, name), "") for name in names}
        return {address: why for address, why in found.items() if why}

    def give_up(self, address: str) -> None:
        self.log["given up"].append(_name(address))

    def close(self) -> None:
        self.closed += 1

    def start(self, job: Job) -> str | None:
        if len(self.running) == self.capacity:
            return None
        self.running.append(_name(job.address))
        self.log["started"].append(_name(job.address))
        self.jobs.append(job)
        return "cpu"

    def events(self, timeout: float) -> list[Event]:
        if not self.running:
            self.flag.wait(timeout)
            self.flag.clear()
            return []
        events: list[Event] = []
        name = self.running.pop(0)
        for event in self._turn(1, name):
            events.append(replace(event, address=f"f:{name}"))
            if isinstance(event, Ended):
                return events
        return [*events, Ended(f"f:{name}", "done")]

    def shrink(self, address: str) -> str:
        self.log["eased"].append(_name(address))
        return "fewer"

    def wake(self) -> None:
        self.flag.set()

    def ended(self, entry: StageState) -> None:
        self.log["ended"].append(_name(entry.address))

    def say(self, line: str) -> None:
        self.said.append(line)

    def tick(self) -> None: ...


def _name(address: str) -> str:
    return address.removeprefix("f:")


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the recorder is asked is answered at once, so that the order of things is the same every time."""

    class AtOnce:
        def __init__(self, workers: int, name: str) -> None:
            assert workers == 1, "DVC's side is to be used from one thread"

        def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(function(*arguments))
            return future

        def shutdown(self) -> None: ...

    monkeypatch.setattr(scheduler, "ThreadPoolExecutor", AtOnce)


def test_what_takes_moments_goes_first_and_then_the_longest_way_to_the_end() -> None:
    stages = {"train a": (), "train b": (), "train c": (), "report late": ("train b",), "data x": (), "describe y": ()}
    play = Play(stages, seconds={"train a": 5.0, "train b": 3.0, "train c": 4.0, "report late": 4.0})
    assert set(play.run().values()) == {"done"}
    started = ["data x", "describe y", "train b", "train a", "train c", "report late"]
    assert play.log == {"started": started, "recorded": started, "ended": started, "given up": [], "eased": []}
    assert play.asked[:2] == [["data x", "describe y"], ["train b"]], "two ahead of one place"
    assert play.closed == 2  # the pool, and the recorder
    job = next(job for job in play.jobs if job.command == "pfl stage train b")
    assert (job.key, job.outs, job.log) == ("key of train b", ("train b",), Path("logs/b.train.log"))
    assert [job.address for job in play.jobs if job.brief] == ["f:report late"]
    entry = play.entry("train b")
    assert (entry.place, entry.attempts, entry.log) == ("cpu", 1, "logs/b.train.log") and 0 <= entry.seconds < 60


def test_dvc_is_asked_of_what_is_stale_or_comes_after_what_was_made() -> None:
    stages = {"data a": (), "train b": ("data a",), "evaluate c": ("train b",), "train x": ("data a",), "data z": ()}
    play = Play(stages, stale={"train b"})
    assert play.run() == {name: "done" if name in ("train b", "evaluate c") else "cached" for name in stages}
    assert play.asked == [["train b"], ["evaluate c"]] and play.log["ended"] == ["train b", "evaluate c"]
    # What comes from the cache is new to what comes after it.
    stages = {"data a": (), "train b": ("data a",), "data c": (), "train d": ("data c",)}
    play = Play(stages, {"data a", "data c"}, verdicts={"data a": [Verdict("fresh")], "data c": [Verdict("cached")]})
    assert play.run() == {"data a": "cached", "train b": "cached", "data c": "cached", "train d": "done"}


def test_what_fails_takes_along_what_needs_it_and_nothing_else() -> None:
    stages = {"train a": (), "evaluate a": ("train a",), "report a": ("evaluate a",), "train b": (), "train c": ()}
    play = Play(
        {**stages, "evaluate b": ("train b",), "evaluate c": ("train c",)},
        ends={"train a": [Ended("", "failed", "its line")]},
        verdicts={"train b": [Verdict("broken", why="DVC: no")]},
        problems={"train c": [CHANGED]},
    )
    states = play.run()
    assert {name for name, state in states.items() if state == "failed"} == {"train a", "train b", "train c"}
    assert {name for name, state in states.items() if state == "skipped"} == states.keys() - {
        *("train a", "train b", "train c")
    }
    assert [play.entry(f"train {name}").note for name in "abc"] == ["its line", "DVC: no", CHANGED]
    assert play.entry("report a").note == "needs a" and play.log["given up"] == ["train a"]


def test_after_a_failure_nothing_is_started_when_that_is_wanted() -> None:
    stages: dict[str, tuple[str, ...]] = {f"train {name}": () for name in "abcde"}
    play = Play(stages, ends={"train a": [Ended("", "failed", "x")]}, keep_going=False, capacity=2)
    assert list(play.run().values()) == ["failed", "done", "queued", "queued", "queued"]
    assert play.log["started"] == ["train a", "train b"] and play.log["recorded"] == ["train b"]
    assert sorted(play.log["given up"]) == ["train a", "train c", "train d"], "what was prepared is let go"


@pytest.mark.parametrize("times", [1, 3])
def test_the_guard_compiles_again_when_something_was_written_meanwhile(times: int) -> None:
    """As by `pfl results keep` in another terminal: what it may not do is to end a night's training."""
    play = Play({"guard guard": (), "train a": ("guard guard",)}, problems={"guard guard": [CHANGED] * times})
    assert list(play.run().values()) == (["done", "done"] if times < 3 else ["failed", "skipped"])
    assert play.log["started"] == ["guard guard"] * min(times + 1, 3) + ["train a"] * (times < 3)
    assert play.said == ["guard: what it depends on changed while it ran; trying again"] * min(times, 2)


@pytest.mark.parametrize(
    ("outcomes", "more"),
    [
        (["lost"], [""]),  # it may have been chance
        (["memory", "lost"], [", fewer", ", fewer"]),
        (["lost"] * 3, ["", ", fewer"]),
    ],
)
def test_what_the_machine_did_is_tried_three_times(outcomes: list[Any], more: list[str]) -> None:
    ends = [Progressed("", 3, 9, 0.5), *(Ended("", outcome, "gone") for outcome in outcomes)]
    play, well = (
        Play({"train a": (), "evaluate a": ("train a",)}, {"train a"}, ends={"train a": ends}),
        len(outcomes) < 3,
    )
    assert list(play.run().values()) == (["done", "done"] if well else ["failed", "skipped"])
    entry = play.entry("train a")
    assert entry.attempts == len(more) + 1 == play.log["started"].count("train a")
    assert play.said == [f"a: gone; trying again{words}" for words in more]
    assert play.log["given up"] == ["train a"] * len(outcomes) and len(play.log["eased"]) == more.count(", fewer")
    assert (entry.note, entry.resumed) == ("" if well else "gone", None)


def test_what_somebody_else_makes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUSY_PAUSE", "_TICK"):
        monkeypatch.setattr(scheduler, name, 0.01)
    busy = Verdict("busy", why="held by dvc repro")
    play = Play({"data a": (), "data b": ()}, verdicts={"data a": [busy, busy, Verdict("fresh", aside=("there",))]})
    assert play.run() == {"data a": "cached", "data b": "done"}
    changed = "data a: had been changed by hand; that version is kept as there"
    assert play.said == ["data a: waiting, held by dvc repro", changed] and play.entry("data a").note == ""
    assert [names.count("data a") for names in play.asked] == [1] * 3 and play.log["started"] == ["data b"]


def test_what_is_under_way_is_recorded_although_something_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play({"train a": (), "train b": ()}, capacity=2)
    made = play.scheduler()

    def fail(timeout: float) -> list[Event]:
        if not play.running:
            return []
        made.executed.append("f:train a")
        raise UserError("the disk is full")

    monkeypatch.setattr(play, "events", fail)
    with pytest.raises(UserError, match="the disk is full"):
        made.run()
    assert play.log["recorded"] == ["train a"] and play.closed == 2
