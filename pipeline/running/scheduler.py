"""The scheduler of ``pfl run``: it starts, follows and records the stages whose inputs are complete."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pipeline.compile.compilation import Graph
from pipeline.dvc.recorder import CHANGED, WAITING, Locked, Recorder
from pipeline.running.board import Board, Display, State
from pipeline.running.local import Ended, Job, LocalPool, Progressed

ATTEMPTS = 3  # attempts at a stage whose process is lost or runs out of memory
BUSY_PAUSE = 2.0  # seconds between two checks of a stage, or of DVC's lock, that another process holds
TICK = 0.5  # seconds


@dataclass(eq=False)
class Scheduler:
    """The scheduler of one call of ``pfl run``.

    `graph` has all stages, `board` the requested ones, and `stale` those of the requested ones that differ from DVC's
    record.
    """

    graph: Graph
    board: Board
    stale: set[str]
    recorder: Recorder
    pool: LocalPool
    display: Display
    logs: Path
    keep_going: bool = True

    def __post_init__(self) -> None:
        graph, self.entries = self.graph, self.board.entries
        heights = graph.heights([*self.entries], {address: entry.expected for address, entry in self.entries.items()})
        # Short stages go first, so that figures are made as early as possible; then trainings by critical path.
        order = sorted(self.entries, key=lambda address: (self.entries[address].kind == "train", -heights[address]))
        self.rank = {address: rank for rank, address in enumerate(order)}
        self.missing_inputs = {address: len(self.entries.keys() & graph.upstream[address]) for address in self.entries}
        self.changed: set[str] = set()  # stages with new outputs; stages that depend on them must be checked
        self.ready: dict[str, float] = {}  # stages whose inputs are complete → the earliest time to decide about them
        self.executed: list[str] = []  # stages that ended and are not recorded yet
        self.locked_until: float | None = None  # DVC's lock is not tried before this time; None if it was free
        self.stopped = False  # nothing is started any more, since a stage has failed
        self.interrupted = self.interrupted_again = False

    def run(self) -> None:
        """Work until all stages are over, or as far as possible after failures. Record every completed stage."""
        with ExitStack() as ending:  # runs all callbacks, the last one first, even if one of them fails
            ending.callback(lambda: self.recorder.close(wait=not self.interrupted_again))
            ending.callback(self._record_rest)
            ending.callback(self.pool.close)
            for address in [address for address, count in self.missing_inputs.items() if not count]:
                self._enqueue(address)
            while self._has_work():
                started = self._start()
                for event in self.pool.events(0.0 if started else TICK):
                    if isinstance(event, Progressed):
                        self.entries[event.address].record_round(event.round, event.rounds, event.accuracy)
                    else:
                        self._handle_end(event)
                if self.executed:
                    self._record()
                self.board.save()
                self.display.update()
                if self.interrupted:
                    raise KeyboardInterrupt

    def _has_work(self) -> bool:
        """Return whether a stage is running or still to be started."""
        return bool(self.board.of_state("running") or (not self.stopped and self.board.of_state("queued", "waiting")))

    def _enqueue(self, address: str) -> None:
        """Queue a stage whose inputs are complete. If it is not stale and no input is new, it needs no work."""
        if address in self.stale or self.changed.intersection(self.graph.upstream[address]):
            self.ready[address] = 0.0
        else:
            self._finish(address, "cached")

    def _start(self) -> bool:
        """Decide about the next stage for which a slot is free; return whether there was one."""
        if self._lock_is_held() or self.stopped:
            return False
        clock = time.monotonic()
        candidates = [address for address, earliest in self.ready.items() if earliest <= clock]
        for address in sorted(candidates, key=self.rank.__getitem__):
            if place := self.pool.free_slot(address):
                self._decide(address, place)
                return True
            if self.entries[address].kind == "train":  # smaller runs must not overtake this one again and again
                break
        return False

    def _decide(self, address: str, place: str) -> None:
        """Ask the recorder about a stage, and start it, postpone it, or mark it as failed or cached."""
        entry, stage = self.entries[address], self.graph.stages[address]
        try:
            verdict = self.recorder.begin(address)
        except Locked:  # the stage stays in the queue
            self._wait_for_lock()
            return
        self.locked_until = None
        del self.ready[address]
        for path in verdict.moved:
            reason = "had been changed by hand, or was cut short"  # by a kill or a full disk
            self.display.print_line(f"{entry.name}: {reason}; that version is kept as {path}")
        if verdict.decision == "run":
            log = self.logs / f"{entry.subject.replace('/', '-')}.{entry.kind}.log"
            self.pool.start(Job(address, stage.command, stage.outs, log), place)
            entry.state, entry.note, entry.attempts = "running", "", entry.attempts + 1
            entry.place, entry.began, entry.log = place, time.time(), str(log)
        elif verdict.decision == "busy":
            if entry.state != "waiting":
                self.display.print_line(f"{entry.name}: waiting, {verdict.reason}")
            entry.state, entry.note = "waiting", verdict.reason
            self.ready[address] = time.monotonic() + BUSY_PAUSE
        elif verdict.decision == "broken":
            self._fail(address, verdict.reason)
        else:
            if verdict.decision == "cached":
                self.changed.add(address)
            self._finish(address, "cached")

    def _handle_end(self, event: Ended) -> None:
        entry = self.entries[event.address]
        entry.seconds = time.time() - entry.began
        if event.outcome == "done":
            entry.diverged = event.diverged
            self.executed.append(event.address)
            return
        self.recorder.abandon(event.address)
        if event.outcome == "failed" or entry.attempts >= ATTEMPTS:
            self._fail(event.address, event.message)
        else:
            change = self.pool.shrink(entry.place) if event.outcome == "memory" or entry.attempts > 1 else ""
            self._retry(event.address, event.message, f", {change}" if change else "")

    def _record(self) -> None:
        """Record the executed stages in DVC, or later if another process has its lock now."""
        if self._lock_is_held():
            return
        executed, self.executed = self.executed, []
        try:
            problems = self.recorder.record(executed)
        except Locked:
            self.executed = executed
            self._wait_for_lock()
            return
        self.locked_until = None
        for address in executed:
            entry, problem = self.entries[address], problems.get(address)
            if problem == CHANGED and entry.kind == "guard" and entry.attempts < ATTEMPTS:
                self._retry(address, problem.partition(";")[0])  # the guard compiles, and prints what changes
            elif problem:
                self._fail(address, problem)
            else:
                self._finish(address, "done")

    def _record_rest(self) -> None:
        """Record the executed stages at the end; wait for DVC's lock as long as another process has it."""
        executed, self.executed = self.executed, []
        if executed:
            self.recorder.record(executed, wait=True)

    def _lock_is_held(self) -> bool:
        """Return whether another process had DVC's lock within the last two seconds."""
        return self.locked_until is not None and time.monotonic() < self.locked_until

    def _wait_for_lock(self) -> None:
        """Do not try DVC's lock for a while, since another process has it; running stages go on."""
        if self.locked_until is None:
            self.display.print_line(WAITING)
        self.locked_until = time.monotonic() + BUSY_PAUSE

    def _finish(self, address: str, state: State) -> None:
        """Mark a stage as over, and queue the stages that depend on it if their inputs are now complete."""
        entry = self.entries[address]
        entry.state, entry.note = state, ""
        if state == "done":
            self.changed.add(address)
            self.display.print_end(entry)
        for dependent in self.graph.downstream[address]:
            if dependent in self.missing_inputs:
                self.missing_inputs[dependent] -= 1
                if not self.missing_inputs[dependent]:
                    self._enqueue(dependent)

    def _fail(self, address: str, reason: str) -> None:
        entry = self.entries[address]
        entry.state, entry.note, self.stopped = "failed", reason, not self.keep_going
        self.display.print_end(entry)
        for dependent in self.graph.dependents(address) & self.entries.keys():
            self.entries[dependent].state, self.entries[dependent].note = "skipped", f"needs {entry.name}"

    def _retry(self, address: str, reason: str, change: str = "") -> None:
        """Queue a stage again after an unsuccessful attempt."""
        entry = self.entries[address]
        self.display.print_line(f"{entry.name}: {reason}; trying again{change}")
        entry.state, entry.note, entry.resumed = "queued", reason, None
        self.stale.add(address)
        self._enqueue(address)
