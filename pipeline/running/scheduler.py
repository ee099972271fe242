"""The scheduler: stages whose inputs are complete are decided about, started, followed and recorded, highest first.

DVC's side (:mod:`pipeline.dvc.recorder`) is slow compared with a small stage, so it works in a thread of its own:
it decides about a few stages ahead of the workers, and records what they have finished in batches, while they go on.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.compile.compilation import Graph
from pipeline.dvc.recorder import CHANGED, Recorder, Verdict
from pipeline.running.board import OVER, Board, State
from pipeline.running.display import Display
from pipeline.running.jobs import Ended, Job, Pool, Progressed

ATTEMPTS = 3  # of a stage that ends by the machine's doing
BRIEF = ("recall", "evaluate", "select", "report", "index")  # what makes figures of runs that are over
BUSY_PAUSE = 2.0  # seconds between two looks at a stage that another process holds
AHEAD = 2  # stages that are decided about per place, beyond those that run
_TICK = 0.5  # seconds


class Scheduler:
    """One call of ``pfl run``.

    Args:
        graph: All stages that there are.
        board: Has an entry for each wanted stage, in an order in which they can be made.
        stale: Those of them that are not as DVC recorded them.
        logs: The folder of log files.
        keep_going: After a failure, start what does not depend on it.
    """

    def __init__(
        self,
        graph: Graph,
        board: Board,
        stale: Iterable[str],
        recorder: Recorder,
        pool: Pool,
        display: Display,
        logs: Path,
        *,
        keep_going: bool = True,
    ) -> None:
        entries = board.entries
        self.graph, self.entries, self.stale, self.logs, self.keep_going = graph, entries, set(stale), logs, keep_going
        self.recorder, self.pool, self.board, self.display = recorder, pool, board, display
        self.position = {address: index for index, address in enumerate(entries)}
        self.heights = graph.heights([*entries], {address: entry.expected for address, entry in entries.items()})
        self.touched: set[str] = set()  # what was made anew, so that what depends on it must be looked at
        self.ready: list[tuple[bool, float, int, str]] = []
        self.waits = {at: sum(other in entries for other in graph.upstream[at]) for at in entries}
        self.prepared: list[tuple[str, Verdict]] = []  # to be started when there is room
        self.blocked: dict[str, float] = {}  # held by another process, and when to look again
        self.executed: list[str] = []  # to be recorded
        self.thread = ThreadPoolExecutor(1, "recorder")
        self.deciding: Future[dict[str, Verdict]] | None = None
        self.recording: tuple[list[str], Future[dict[str, str]]] | None = None
        self.failed = False

    def run(self) -> None:
        """Work until everything is over, or as far as it goes after failures. What is complete then is recorded."""
        with ExitStack() as ending:  # each of it, in the order from below, whatever goes wrong with another
            ending.callback(self.thread.shutdown)
            ending.callback(lambda: self.thread.submit(self.recorder.close).result())
            ending.callback(lambda: self.executed and self.thread.submit(self.recorder.record, self.executed).result())
            ending.callback(self.pool.close)
            for address, count in self.waits.items():
                if not count:
                    self._push(address)
            while not self._over():
                self._decide_ahead()
                self._start()
                for event in self.pool.events(_TICK):
                    if isinstance(event, Progressed):
                        self.entries[event.address].progressed(event.round, event.rounds, event.accuracy)
                    else:
                        self._ended(event)
                self._collect()
                self.board.save()
                self.display.tick()

    def _over(self) -> bool:
        busy = self.deciding or self.recording or self.executed or self.board.of_state("running")
        return not busy and (self.stopped or all(entry.state in OVER for entry in self.entries.values()))

    @property
    def stopped(self) -> bool:
        return self.failed and not self.keep_going

    def _submit(self, call: Callable[..., Any], addresses: list[str]) -> Future[Any]:
        """Let the recorder do something, and look for what became of it as soon as that is known."""
        future = self.thread.submit(call, addresses)
        future.add_done_callback(lambda _: self.pool.wake())
        return future

    def _decide_ahead(self) -> None:
        """Let the recorder decide about the next stages; those that nothing has touched are known to be fresh."""
        for address in [address for address, due in self.blocked.items() if due <= time.monotonic()]:
            del self.blocked[address]
            self._push(address)
        if self.deciding or self.stopped:
            return
        chosen: list[str] = []
        room = AHEAD * self.pool.capacity - len(self.prepared)
        # What is no training takes moments, and does not wait behind runs that have no place yet.
        while self.ready and (len(chosen) < room or not self.ready[0][0]):
            *_, address = heapq.heappop(self.ready)
            if address in self.stale or self.touched.intersection(self.graph.upstream[address]):
                chosen.append(address)
            else:
                self._settle(address, "cached")
        if chosen:
            self.deciding = self._submit(self.recorder.begin, chosen)

    def _start(self) -> None:
        """Start what is prepared, as far as there is room for it."""
        prepared, self.prepared = self.prepared, []
        for address, verdict in prepared:
            if self.stopped:
                self.thread.submit(self.recorder.give_up, address)
                continue
            entry, stage = self.entries[address], self.graph.stages[address]
            log = self.logs / f"{entry.subject.replace('/', '-')}.{entry.kind}.log"
            job = Job(address, stage.command, verdict.key, stage.outs, log, entry.kind in BRIEF)
            # In order: a run that needs more must not starve.
            place = None if self.prepared and entry.kind == "train" else self.pool.start(job)
            if place is None:
                self.prepared.append((address, verdict))
                continue
            entry.state, entry.place, entry.began, entry.log, entry.note = "running", place, time.time(), str(log), ""
            entry.attempts += 1

    def _ended(self, event: Ended) -> None:
        entry = self.entries[event.address]
        entry.seconds, entry.curve = time.time() - entry.began, []
        if event.outcome == "done":
            entry.diverged = event.diverged
            self.executed.append(event.address)
            return
        self.thread.submit(self.recorder.give_up, event.address)
        if event.outcome == "failed" or entry.attempts >= ATTEMPTS:
            self._fail(event.address, event.message)
        else:
            eased = self.pool.shrink(event.address) if event.outcome == "memory" or entry.attempts > 1 else ""
            self._again(event.address, event.message, f", {eased}" if eased else "")

    def _collect(self) -> None:
        """Take what the recorder has done, and give it what has been executed."""
        if self.deciding and self.deciding.done():
            verdicts, self.deciding = self.deciding.result(), None
            for address, verdict in verdicts.items():
                self._take(address, verdict)
        if self.recording and self.recording[1].done():
            (addresses, future), self.recording = self.recording, None
            problems = future.result()
            for address in addresses:
                entry, problem = self.entries[address], problems.get(address)
                if problem == CHANGED and entry.kind == "guard" and entry.attempts < ATTEMPTS:
                    self._again(address, problem.partition(";")[0])  # it compiles, and says what that changes
                elif problem:
                    self._fail(address, problem)
                else:
                    self._settle(address, "done")
        if self.executed and not self.recording:
            batch, self.executed = self.executed, []
            self.recording = batch, self._submit(self.recorder.record, batch)

    def _take(self, address: str, verdict: Verdict) -> None:
        """Do as the recorder has decided about a stage."""
        entry = self.entries[address]
        for place in verdict.aside:
            self.display.say(f"{entry.name}: had been changed by hand; that version is kept as {place}")
        match verdict.what:
            case "run":
                self.prepared.append((address, verdict))
            case "busy":
                if entry.state != "waiting":
                    self.display.say(f"{entry.name}: waiting, {verdict.why}")
                entry.state, entry.note = "waiting", verdict.why
                self.blocked[address] = time.monotonic() + BUSY_PAUSE
            case "broken":
                self._fail(address, verdict.why)
            case "cached" | "fresh":
                if verdict.what == "cached":
                    self.touched.add(address)
                self._settle(address, "cached")

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
        entry.state, entry.note = "failed", why
        self.failed = True
        self.display.ended(entry)
        for other in self.graph.after(address) & self.waits.keys():
            skipped = self.entries[other]
            skipped.state, skipped.note = "skipped", f"needs {entry.name}"

    def _again(self, address: str, why: str, how: str = "") -> None:
        """Queue a stage once more that has been executed in vain."""
        entry = self.entries[address]
        self.display.say(f"{entry.name}: {why}; trying again{how}")
        entry.state, entry.note, entry.resumed = "queued", why, None
        self.stale.add(address)
        self._push(address)

    def _push(self, address: str) -> None:
        """What takes moments goes first, so that figures are there as early as can be; then by critical path."""
        training = self.entries[address].kind == "train"
        heapq.heappush(self.ready, (training, -self.heights[address], self.position[address], address))
