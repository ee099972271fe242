"""The scheduler: stages whose inputs are complete are decided about, started, followed and recorded, highest first."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from pipeline.compile.compilation import Graph
from pipeline.dvc.recorder import CHANGED, WAITING, Locked, Recorder
from pipeline.running.board import Board, Display, State
from pipeline.running.local import Ended, Job, LocalPool, Progressed

ATTEMPTS = 3  # of a stage that ends by the machine's doing
BUSY_PAUSE = 2.0  # seconds between two looks at a stage, or at DVC's lock, that another process holds
TICK = 0.5  # seconds


class Scheduler:
    """One call of ``pfl run``.

    Of all stages in `graph`, `board` has the wanted ones, and `stale` those of them that are not as DVC recorded them.
    """

    def __init__(
        self,
        graph: Graph,
        board: Board,
        stale: Iterable[str],
        recorder: Recorder,
        pool: LocalPool,
        display: Display,
        logs: Path,
        keep_going: bool = True,
    ) -> None:
        self.graph = graph
        self.board = board
        self.entries = board.entries
        self.stale = set(stale)
        self.recorder = recorder
        self.pool = pool
        self.display = display
        self.logs = logs
        self.keep_going = keep_going
        heights = graph.heights([*self.entries], {at: entry.expected for at, entry in self.entries.items()})
        # What takes moments goes first, so that figures are there as early as can be; then by critical path.
        order = sorted(self.entries, key=lambda at: (self.entries[at].kind == "train", -heights[at]))
        self.rank = {address: rank for rank, address in enumerate(order)}
        self.waits = {at: sum(other in self.entries for other in graph.upstream[at]) for at in self.entries}
        self.touched: set[str] = set()  # what was made anew, so that what depends on it must be looked at
        self.ready: dict[str, float] = {}  # what is to be decided about, and not before which instant
        self.executed: list[str] = []  # to be recorded
        self.locked_until: float | None = None  # no look at DVC's lock before that instant; None: it was free
        self.failed = False
        self.interrupted = self.interrupted_again = False

    def run(self) -> None:
        """Work until everything is over, or as far as it goes after failures. What is complete then is recorded."""
        with ExitStack() as ending:  # each of it, in the order from below, whatever goes wrong with another
            ending.callback(lambda: self.recorder.close(wait=not self.interrupted_again))
            ending.callback(self._record_rest)
            ending.callback(self.pool.close)
            for address in [address for address, count in self.waits.items() if not count]:
                self._push(address)
            while self._at_work():
                started = self._start()
                for event in self.pool.events(0.0 if started else TICK):
                    if isinstance(event, Progressed):
                        self.entries[event.address].progressed(event.round, event.rounds, event.accuracy)
                    else:
                        self._ended(event)
                if self.executed:
                    self._record()
                self.board.save()
                self.display.tick()
                if self.interrupted:
                    raise KeyboardInterrupt

    def _at_work(self) -> bool:
        """Return whether a stage is under way, or still to come."""
        if self._stopped():
            return bool(self.board.of_state("running"))
        return bool(self.board.of_state("running", "queued", "waiting"))

    def _stopped(self) -> bool:
        return self.failed and not self.keep_going

    def _push(self, address: str) -> None:
        """Queue a stage whose inputs are complete; if nothing has touched it, it is known to be as recorded."""
        if address in self.stale or self.touched.intersection(self.graph.upstream[address]):
            self.ready[address] = 0.0
        else:
            self._settle(address, "cached")

    def _start(self) -> bool:
        """Decide about the next stage that there is room for; return whether there was one."""
        if self._lock_is_held():
            return False
        due = [address for address, at in self.ready.items() if at <= time.monotonic() and not self._stopped()]
        for address in sorted(due, key=self.rank.__getitem__):
            if place := self.pool.free_slot(address):
                self._decide(address, place)
                return True
            if self.entries[address].kind == "train":  # in order: a run that needs more must not starve
                break
        return False

    def _decide(self, address: str, place: str) -> None:
        """Do with a stage as DVC's side says."""
        entry, stage = self.entries[address], self.graph.stages[address]
        try:
            verdict = self.recorder.begin(address)
        except Locked:  # it stays in the queue
            self._wait_for_lock()
            return
        self.locked_until = None
        del self.ready[address]
        for where in verdict.aside:
            self.display.say(f"{entry.name}: had been changed by hand; that version is kept as {where}")
        if verdict.what == "run":
            log = self.logs / f"{entry.subject.replace('/', '-')}.{entry.kind}.log"
            self.pool.start(Job(address, stage.command, stage.outs, log), place)
            entry.state = "running"
            entry.place = place
            entry.began = time.time()
            entry.log = str(log)
            entry.note = ""
            entry.attempts += 1
        elif verdict.what == "busy":
            if entry.state != "waiting":
                self.display.say(f"{entry.name}: waiting, {verdict.why}")
            entry.state, entry.note = "waiting", verdict.why
            self.ready[address] = time.monotonic() + BUSY_PAUSE
        elif verdict.what == "broken":
            self._fail(address, verdict.why)
        else:
            if verdict.what == "cached":
                self.touched.add(address)
            self._settle(address, "cached")

    def _ended(self, event: Ended) -> None:
        entry = self.entries[event.address]
        entry.seconds = time.time() - entry.began
        if event.outcome == "done":
            entry.diverged = event.diverged
            self.executed.append(event.address)
            return
        self.recorder.give_up(event.address)
        if event.outcome == "failed" or entry.attempts >= ATTEMPTS:
            self._fail(event.address, event.message)
        else:
            eased = self.pool.shrink(entry.place) if event.outcome == "memory" or entry.attempts > 1 else ""
            self._again(event.address, event.message, f", {eased}" if eased else "")

    def _record(self) -> None:
        """Let DVC know of what has been executed, or later, while another process has its lock."""
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
                self._again(address, problem.partition(";")[0])  # it compiles, and says what that changes
            elif problem:
                self._fail(address, problem)
            else:
                self._settle(address, "done")

    def _record_rest(self) -> None:
        """Let DVC know at the end of what has been executed, however long another process has its lock."""
        executed, self.executed = self.executed, []
        if executed:
            self.recorder.record(executed, wait=True)

    def _lock_is_held(self) -> bool:
        """Return whether another process had DVC's lock moments ago."""
        return self.locked_until is not None and time.monotonic() < self.locked_until

    def _wait_for_lock(self) -> None:
        """Leave DVC's lock to another process for a while; what is under way goes on."""
        if self.locked_until is None:
            self.display.say(WAITING)
        self.locked_until = time.monotonic() + BUSY_PAUSE

    def _settle(self, address: str, state: State) -> None:
        """A stage is over, and what depends on it may be ready."""
        entry = self.entries[address]
        entry.state, entry.note = state, ""
        if state == "done":
            self.touched.add(address)
            self.display.ended(entry)
        for other in self.graph.downstream[address]:
            if other in self.waits:
                self.waits[other] -= 1
                if not self.waits[other]:
                    self._push(other)

    def _fail(self, address: str, why: str) -> None:
        entry = self.entries[address]
        entry.state, entry.note, self.failed = "failed", why, True
        self.display.ended(entry)
        for other in self.graph.after(address) & self.entries.keys():
            self.entries[other].state, self.entries[other].note = "skipped", f"needs {entry.name}"

    def _again(self, address: str, why: str, how: str = "") -> None:
        """Queue a stage once more that has been executed in vain."""
        entry = self.entries[address]
        self.display.say(f"{entry.name}: {why}; trying again{how}")
        entry.state, entry.note, entry.resumed = "queued", why, None
        self.stale.add(address)
        self._push(address)
