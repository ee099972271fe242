"""The scheduler of ``pfl run`` by itself, on as many runs as a large study has: nothing is trained or recorded."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from growing.grown import Grown, memory

from pipeline.compile.graph import Graph, Stage
from pipeline.dvc.recorder import Recorder, Verdict
from pipeline.running.board import Board
from pipeline.running.display import Lines
from pipeline.running.jobs import Ended, Event, Job
from pipeline.running.scheduler import Scheduler
from pipeline.running.work import Work

_PER_REPORT = 100  # runs


class _Clerk(Recorder):
    """Every stage has to be executed, and is recorded in no time."""

    def __init__(self) -> None:
        pass

    def begin(self, addresses: Iterable[str]) -> dict[str, Verdict]:
        return {address: Verdict("run", "key") for address in addresses}

    def record(self, addresses: Iterable[str]) -> dict[str, str]:
        return {}

    def give_up(self, address: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Workers:
    """Two places, in which a stage ends as soon as anybody asks."""

    capacity = 2

    def __init__(self) -> None:
        self.at_work: list[str] = []

    def start(self, *jobs: Job) -> str | None:
        if len(self.at_work) >= self.capacity:
            return None
        self.at_work += [job.address for job in jobs]
        return "cpu"

    def events(self, timeout: float) -> list[Event]:
        time.sleep(0.001)  # in which the clerk answers
        ended, self.at_work = self.at_work, []
        return [Ended(address, "done", "") for address in ended]

    def wake(self) -> None:
        pass

    def shrink(self, address: str) -> str:
        return ""

    def close(self) -> None:
        pass


class _Told(Lines):
    """Tells nobody, and notes what a hundred runs took."""

    def __init__(self, speed: Grown, resident: Grown) -> None:
        super().__init__()
        self.speed, self.resident, self.runs, self.last = speed, resident, 0, time.process_time()

    def say(self, line: str) -> None:
        self.runs += "run-" in line
        if "run-" in line and self.runs % _PER_REPORT == 0:
            now = time.process_time()
            self.speed.add(self.runs, 1000 * (now - self.last) / _PER_REPORT)
            self.resident.add(self.runs, memory())
            self.last = now


def scheduled(runs: int, folder: Path) -> list[Grown]:
    """Train stages of so many runs, and a report for each hundred."""
    stages = []
    for number in range(runs):
        made = f"artifacts/runs/run-{number}"
        file = f"stages/federations/{number // _PER_REPORT}/dvc.yaml"
        command = f"pfl stage train run-{number} --seal 0"
        stages.append(Stage(file, f"train@run-{number}", command, (), (f"{made}/rounds.parquet",)))
    for number in range(0, runs, _PER_REPORT):
        deps = tuple(f"artifacts/runs/run-{at}/rounds.parquet" for at in range(number, number + _PER_REPORT))
        command = f"pfl stage report study{number} --seal 0"
        stages.append(Stage("dvc.yaml", f"report-{number}", command, deps, (f"reports/study{number}/report.md",)))
    graph = Graph(stages)
    order = [stage.address for stage in stages]
    work = Work(graph, order, dict.fromkeys(order, "not made yet"), dict.fromkeys(order, 1.0), folder)
    board = Board(title="pfl run", path=folder / "run.json", entries=work.states())
    speed, resident = Grown("ms of the scheduler per run", 2.0), Grown("resident MiB, nothing trained", 1.15)
    Scheduler(work, _Clerk(), _Workers(), board, _Told(speed, resident)).run()
    assert board.counts()["done"] == len(stages)
    return [speed, resident]
