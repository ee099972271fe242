"""The scheduler between a recorder, a pool and a display that do as they are told: what happens when, how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest

from pflcore.errors import UserError
from pipeline.compile.graph import Graph, Stage
from pipeline.dvc.recorder import CHANGED, Verdict
from pipeline.running import scheduler
from pipeline.running.board import Board, StageState
from pipeline.running.jobs import Ended, Event, Job, Progressed
from pipeline.running.scheduler import Scheduler
from pipeline.running.work import Work

DONE = Ended("", "done")


@dataclass
class Play:
    """A call of ``pfl run``: stages as kind, name and what they come after, each with what becomes of it."""

    stages: Mapping[str, tuple[str, ...]]  # "train a": what it depends on, likewise
    stale: set[str] | None = None  # None: all of them
    seconds: Mapping[str, float] = field(default_factory=dict)
    verdicts: Mapping[str, list[Verdict]] = field(default_factory=dict)  # one after the other, and then to be run
    ends: Mapping[str, list[Event]] = field(default_factory=dict)  # likewise, and then well
    problems: Mapping[str, list[str]] = field(default_factory=dict)  # when it is recorded, likewise
    capacity: int = 1
    keep_going: bool = True
    easing: str = "fewer"

    def __post_init__(self) -> None:
        made = {name: Stage("f", name, f"pfl stage {name}", deps, (name,)) for name, deps in self.stages.items()}
        graph = Graph(made.values())
        self.address = {name: stage.address for name, stage in made.items()}
        self.name = {stage.address: name for name, stage in made.items()}
        stale = {self.address[name]: "why" for name in (made if self.stale is None else self.stale)}
        seconds = {self.address[name]: took for name, took in self.seconds.items()}
        order = graph.needed(graph.stages)
        self.work = Work(graph, order, stale, seconds, Path("logs"), self.keep_going)
        self.board = Board(entries=self.work.states())
        self.asked: list[list[str]] = []
        self.started: list[str] = []
        self.jobs: list[Job] = []
        self.recorded: list[str] = []
        self.given_up: list[str] = []
        self.told: list[str] = []
        self.ended: list[str] = []
        self.eased: list[str] = []
        self.closed: list[str] = []
        self.running: list[str] = []
        self.turns = {name: iter(events) for name, events in self.ends.items()}
        self.troubles = {name: iter(problems) for name, problems in self.problems.items()}
        self.answers = {name: iter(verdicts) for name, verdicts in self.verdicts.items()}
        self.flag = Flag()

    def run(self) -> dict[str, str]:
        """How each stage ends."""
        Scheduler(self.work, Clerk(self), Pool(self), self.board, Display(self)).run()  # type: ignore[arg-type]
        return {self.name[address]: entry.state for address, entry in self.board.entries.items()}

    def entry(self, name: str) -> StageState:
        return self.board.entries[self.address[name]]


@dataclass
class Clerk:
    play: Play

    def begin(self, addresses: list[str]) -> dict[str, Verdict]:
        names = [self.play.name[address] for address in addresses]
        self.play.asked.append(names)
        none: Iterator[Verdict] = iter(())
        return {
            self.play.address[name]: next(self.play.answers.get(name, none), Verdict("run", f"key of {name}"))
            for name in names
        }

    def record(self, addresses: list[str]) -> dict[str, str]:
        names = [self.play.name[address] for address in addresses]
        self.play.recorded += names
        none: Iterator[str] = iter(())
        return {
            self.play.address[name]: why
            for name in names
            for why in [next(self.play.troubles.get(name, none), "")]
            if why
        }

    def give_up(self, address: str) -> None:
        self.play.given_up.append(self.play.name[address])

    def close(self) -> None:
        self.play.closed.append("recorder")


@dataclass
class Pool:
    play: Play

    @property
    def capacity(self) -> int:
        return self.play.capacity

    def start(self, job: Job) -> str | None:
        if len(self.play.running) == self.capacity:
            return None
        name = self.play.name[job.address]
        self.play.running.append(name)
        self.play.started.append(name)
        self.play.jobs.append(job)
        return "cpu"

    def events(self, timeout: float) -> list[Event]:
        if not self.play.running:
            self.play.flag.wait(timeout)
            self.play.flag.clear()
            return []
        events: list[Event] = []
        name = self.play.running.pop(0)
        for event in self.play.turns.get(name, iter(())):
            events.append(type(event)(**{**vars(event), "address": self.play.address[name]}))
            if isinstance(event, Ended):
                return events
        return [*events, Ended(self.play.address[name], "done")]

    def shrink(self, address: str) -> str:
        self.play.eased.append(self.play.name[address])
        return self.play.easing

    def wake(self) -> None:
        self.play.flag.set()

    def close(self) -> None:
        self.play.closed.append("pool")


@dataclass
class Display:
    play: Play

    def ended(self, entry: StageState) -> None:
        self.play.ended.append(self.play.name[entry.address])

    def say(self, line: str) -> None:
        self.play.told.append(line)

    def tick(self, board: Board) -> None:
        pass


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

        def shutdown(self) -> None:
            pass

    monkeypatch.setattr(scheduler, "ThreadPoolExecutor", AtOnce)


def test_what_takes_moments_goes_first_and_then_the_longest_way_to_the_end() -> None:
    stages = {"train a": (), "train b": (), "train c": (), "report late": ("train b",), "data x": (), "describe y": ()}
    seconds = {"train a": 5.0, "train b": 3.0, "train c": 4.0, "report late": 4.0}
    play = Play(stages, seconds=seconds)
    assert set(play.run().values()) == {"done"}
    assert play.started == ["data x", "describe y", "train b", "train a", "train c", "report late"]
    assert play.asked[:2] == [["data x", "describe y"], ["train b"]], "two ahead of one place"
    assert play.recorded == play.started == play.ended and not play.given_up
    assert play.closed == ["pool", "recorder"]
    jobs = {job.command: job for job in play.jobs}
    job = jobs["pfl stage train b"]
    assert (job.key, job.outs, job.log) == ("key of train b", ("train b",), Path("logs/b.train.log"))
    assert {job.address for job in play.jobs if job.brief} == {play.address["report late"]}
    entry = play.entry("train b")
    assert (entry.place, entry.attempts, entry.log) == ("cpu", 1, "logs/b.train.log") and entry.began > 0
    assert 0 <= entry.seconds < 60


def test_dvc_is_asked_of_what_is_stale_or_comes_after_what_was_made() -> None:
    stages = {"data a": (), "train b": ("data a",), "evaluate c": ("train b",), "train x": ("data a",), "data z": ()}
    play = Play(stages, stale={"train b"})
    assert play.run() == {
        "data a": "cached",
        "train b": "done",
        "evaluate c": "done",
        "train x": "cached",
        "data z": "cached",
    }
    assert play.asked == [["train b"], ["evaluate c"]] and play.ended == ["train b", "evaluate c"]


def test_what_comes_from_the_cache_is_new_to_what_comes_after_it() -> None:
    stages = {"data a": (), "train b": ("data a",), "data c": (), "train d": ("data c",)}
    play = Play(
        stages, stale={"data a", "data c"}, verdicts={"data a": [Verdict("fresh")], "data c": [Verdict("cached")]}
    )
    assert play.run() == {"data a": "cached", "train b": "cached", "data c": "cached", "train d": "done"}


def test_what_fails_takes_along_what_needs_it_and_nothing_else() -> None:
    stages = {"train a": (), "evaluate a": ("train a",), "report a": ("evaluate a",), "train b": ()}
    play = Play(stages, seconds={"train a": 9.0}, ends={"train a": [Ended("", "failed", "its line")]})
    assert play.run() == {"train a": "failed", "evaluate a": "skipped", "report a": "skipped", "train b": "done"}
    assert play.entry("train a").note == "its line" and play.entry("report a").note == "needs a"
    assert play.given_up == ["train a"] and play.recorded == ["train b"] and play.ended == ["train a", "train b"]


def test_after_a_failure_nothing_is_started_when_that_is_wished() -> None:
    stages: dict[str, tuple[str, ...]] = {f"train {name}": () for name in "abcde"}
    play = Play(stages, ends={"train a": [Ended("", "failed", "x")]}, keep_going=False, capacity=2)
    assert list(play.run().values()) == ["failed", "done", "queued", "queued", "queued"]
    assert play.started == ["train a", "train b"] and play.recorded == ["train b"]
    assert play.asked == [[f"train {name}" for name in "abcd"]]
    assert sorted(play.given_up) == ["train a", "train c", "train d"], "what was prepared is let go"


def test_what_the_recorder_refuses_has_failed() -> None:
    stages = {"train a": (), "evaluate a": ("train a",), "train b": (), "evaluate b": ("train b",)}
    play = Play(
        stages,
        verdicts={"train b": [Verdict("broken", why="DVC: no")]},
        problems={"train a": [CHANGED]},
    )
    assert play.run() == {"train a": "failed", "evaluate a": "skipped", "train b": "failed", "evaluate b": "skipped"}
    assert play.entry("train a").note == CHANGED and play.entry("train b").note == "DVC: no"
    assert play.started == ["train a"]


@pytest.mark.parametrize("times", [1, 3])
def test_the_guard_compiles_again_when_something_was_written_meanwhile(times: int) -> None:
    """As by `pfl results keep` in another terminal: what it may not do is to end a night's training."""
    play = Play({"guard guard": (), "train a": ("guard guard",)}, problems={"guard guard": [CHANGED] * times})
    states = (
        {"guard guard": "done", "train a": "done"} if times < 3 else {"guard guard": "failed", "train a": "skipped"}
    )
    assert play.run() == states
    assert play.started == ["guard guard"] * min(times + 1, 3) + ["train a"] * (times < 3)
    assert play.told == ["guard: what it depends on changed while it ran; trying again"] * min(times, 2)


@pytest.mark.parametrize(
    ("outcomes", "tries", "more"),
    [
        (["lost"], 2, [""]),  # it may have been chance
        (["memory", "lost"], 3, [", fewer", ", fewer"]),
        (["lost"] * 3, 3, ["", ", fewer"]),
    ],
)
def test_what_the_machine_did_is_tried_three_times(outcomes: list[Any], tries: int, more: list[str]) -> None:
    ends = [Progressed("", 3, 9, 1.0, 0.5), *(Ended("", outcome, "gone") for outcome in outcomes)]
    play = Play({"train a": (), "evaluate a": ("train a",)}, stale={"train a"}, ends={"train a": ends})
    well = len(outcomes) < 3
    assert play.run() == {"train a": "done" if well else "failed", "evaluate a": "done" if well else "skipped"}
    entry = play.entry("train a")
    assert entry.attempts == tries == play.started.count("train a")
    assert play.told == [f"a: gone; trying again{words}" for words in more]
    assert play.given_up == ["train a"] * len(outcomes) and len(play.eased) == more.count(", fewer")
    assert (entry.note, entry.resumed) == ("" if well else "gone", None)


def test_what_somebody_else_makes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "BUSY_PAUSE", 0.01)
    monkeypatch.setattr(scheduler, "_TICK", 0.01)
    busy = Verdict("busy", why="held by dvc repro")
    play = Play({"data a": (), "data b": ()}, verdicts={"data a": [busy, busy, Verdict("fresh")]})
    assert play.run() == {"data a": "cached", "data b": "done"}
    assert play.told == ["data a: waiting, held by dvc repro"] and play.entry("data a").note == ""
    assert [names.count("data a") for names in play.asked] == [1] * 3 and play.started == ["data b"]


def test_rounds_are_followed() -> None:
    ends: list[Event] = [
        Progressed("", 4, 9, 2.0, None),
        Progressed("", 5, 9, 1.0, 0.25),
        Progressed("", 6, 9, 1.0, None),
        Ended("", "done", diverged=True),
    ]
    play = Play({"train a": (), "train b": ()}, ends={"train a": ends})
    play.run()
    entry = play.entry("train a")
    assert (entry.resumed, entry.round, entry.rounds, entry.accuracy, entry.diverged) == (3, 6, 9, 0.25, True)
    assert not play.entry("train b").diverged


def test_where_a_changed_report_went_is_told() -> None:
    play = Play({"report x": ()}, verdicts={"report x": [Verdict("cached", aside=("there", "and there"))]})
    play.run()
    assert play.told == [
        f"report x: had been changed by hand; that version is kept as {place}" for place in ("there", "and there")
    ]


def test_what_is_under_way_is_recorded_although_something_breaks() -> None:
    play = Play({"train a": (), "train b": ()}, capacity=2)

    class Breaking(Pool):
        def events(self, timeout: float) -> list[Event]:
            if self.play.running:
                self.play.running.clear()
                made.executed.append("f:train a")
                raise UserError("the disk is full")
            return super().events(timeout)

    made = Scheduler(play.work, Clerk(play), Breaking(play), play.board, Display(play))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the disk is full"):
        made.run()
    assert play.recorded == ["train a"] and play.closed == ["pool", "recorder"]
