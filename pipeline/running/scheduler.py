"""The scheduler: stages whose inputs are complete are decided about, started, followed and recorded, highest first.

DVC's side (:mod:`pipeline.dvc.recorder`) is slow compared with a small stage, so it works in a thread of its own:
it decides about a few stages ahead of the workers, and records what they have finished in batches, while they go on.
"""

from __future__ import annotations

import heapq
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

from pipeline.dvc.recorder import CHANGED, Recorder, Verdict
from pipeline.running.board import OVER, Board, State
from pipeline.running.display import Lines
from pipeline.running.jobs import Ended, Job, Pool, Progressed
from pipeline.running.work import Work

ATTEMPTS = 3  # of a stage that ends by the machine's doing
BRIEF = ("recall", "evaluate", "select", "report", "index")  # what makes figures of runs that are over
BUSY_PAUSE = 2.0  # seconds between two looks at a stage that another process holds
AHEAD = 2  # stages that are decided about per place, beyond those that run
_TICK = 0.5  # seconds


class Scheduler:
    """One call of ``pfl run``.

    Args:
        work: What there is to do.
        recorder: DVC's side.
        pool: Who executes stages.
        board: Where the state is kept; has an entry for each wanted stage.
        display: Who is told.
    """

    def __init__(self, work: Work, recorder: Recorder, pool: Pool, board: Board, display: Lines) -> None:
        self.work, self.graph, self.stale = work, work.graph, set(work.stale)
        self.recorder, self.pool, self.board, self.display = recorder, pool, board, display
        self.heights = work.graph.heights(work.order, work.seconds)
        self.touched: set[str] = set()  # what was made anew, so that who depends on it must be looked at
        self.ready: list[tuple[bool, float, int, str]] = []
        self.position = {address: index for index, address in enumerate(work.order)}
        self.waits = {
            address: sum(other in self.position for other in work.graph.upstream[address]) for address in work.order
        }
        self.prepared: list[tuple[str, Verdict]] = []  # to be started when there is room
        self.blocked: dict[str, float] = {}  # held by another process, and when to look again
        self.executed: list[str] = []  # to be recorded
        self.clerk = ThreadPoolExecutor(1, "recorder")
        self.asking: Future[dict[str, Verdict]] | None = None
        self.recording: tuple[list[str], Future[dict[str, str]]] | None = None
        self.failed = False

    def run(self) -> None:
        """Until everything is over, or as far as it goes after failures. What is under way at the end is recorded."""
        with ExitStack() as ending:  # each of it, in the order from below, whatever goes wrong with another
            ending.callback(self.clerk.shutdown)
            ending.callback(lambda: self.clerk.submit(self._last_records).result())
            ending.callback(self.pool.close)
            for address in self.work.order:
                if not self.waits[address]:
                    self._push(address)
            while not self._over():
                self._ask()
                self._start()
                for event in self.pool.events(_TICK):
                    self._progressed(event) if isinstance(event, Progressed) else self._ended(event)
                self._collect()
                self.board.save()
                self.display.tick(self.board)

    def _over(self) -> bool:
        busy = self.asking or self.recording or self.executed or self.board.of_state("running")
        if self.failed and not self.work.keep_going:
            return not busy
        return not busy and all(entry.state in OVER for entry in self.board.entries.values())

    def _last_records(self) -> None:
        try:
            if self.executed:
                self.recorder.record(self.executed)
        finally:
            self.recorder.close()

    def _ask(self) -> None:
        """Let the recorder decide about the next stages; those that nothing has touched are known to be fresh."""
        now = time.monotonic()
        for address in [address for address, due in self.blocked.items() if due <= now]:
            del self.blocked[address]
            self._push(address)
        if self.asking:
            return
        chosen: list[str] = []
        room = AHEAD * self.pool.capacity - len(self.prepared)
        stopped = self.failed and not self.work.keep_going
        # What is no training takes moments, and does not wait behind runs that have no place yet.
        while self.ready and not stopped and (len(chosen) < room or not self.ready[0][0]):
            *_, address = heapq.heappop(self.ready)
            if address in self.stale or self.touched.intersection(self.graph.upstream[address]):
                chosen.append(address)
            else:
                self._settle(address, "cached")
        if chosen:
            self.asking = self.clerk.submit(self.recorder.begin, chosen)
            self.asking.add_done_callback(lambda _: self.pool.wake())

    def _start(self) -> None:
        """Start what is prepared, as far as there is room for it."""
        if self.failed and not self.work.keep_going:
            for address, _ in self.prepared:
                self.clerk.submit(self.recorder.give_up, address)
            self.prepared.clear()
        left: list[tuple[str, Verdict]] = []
        for address, verdict in self.prepared:
            job, entry = self._job(address, verdict), self.board.entries[address]
            # In order: who asks for more must not starve.
            place = None if left and entry.kind == "train" else self.pool.start(job)
            if place is None:
                left.append((address, verdict))
                continue
            entry.state, entry.place, entry.began, entry.log = "running", place, time.time(), str(job.log)
            entry.attempts += 1
            entry.note = ""
        self.prepared = left

    def _job(self, address: str, verdict: Verdict) -> Job:
        entry, stage = self.board.entries[address], self.graph.stages[address]
        log = self.work.logs / f"{entry.subject.replace('/', '-')}.{entry.kind}.log"
        return Job(address, stage.command, verdict.key, stage.outs, log, entry.kind in BRIEF)

    def _progressed(self, event: Progressed) -> None:
        entry = self.board.entries[event.address]
        if entry.resumed is None:
            entry.resumed = event.round - 1
        entry.round, entry.rounds = event.round, event.rounds
        entry.accuracy = event.accuracy if event.accuracy is not None else entry.accuracy

    def _ended(self, event: Ended) -> None:
        entry = self.board.entries[event.address]
        entry.seconds = time.time() - entry.began
        if event.outcome == "done":
            entry.diverged = event.diverged
            self.executed.append(event.address)
            return
        if event.outcome in ("lost", "memory") and entry.attempts < ATTEMPTS:
            eased = self.pool.shrink(event.address) if event.outcome == "memory" or entry.attempts > 1 else ""
            self.clerk.submit(self.recorder.give_up, event.address)
            self._again(event.address, event.message, f", {eased}" if eased else "")
            return
        self.clerk.submit(self.recorder.give_up, event.address)
        self._fail(event.address, event.message)

    def _collect(self) -> None:
        """Take what the recorder has done, and give it what has been executed."""
        if self.asking and self.asking.done():
            verdicts, self.asking = self.asking.result(), None
            for address, verdict in verdicts.items():
                self._decide(address, verdict)
        if self.recording and self.recording[1].done():
            addresses, future = self.recording
            self.recording = None
            problems = future.result()
            for address in addresses:
                entry, problem = self.board.entries[address], problems.get(address)
                if problem == CHANGED and entry.kind == "guard" and entry.attempts < ATTEMPTS:
                    self._again(address, problem.partition(";")[0])  # it compiles, and says what that changes
                elif problem:
                    self._fail(address, problem)
                else:
                    self._settle(address, "done")
        if self.executed and not self.recording:
            batch, self.executed = self.executed, []
            self.recording = batch, self.clerk.submit(self.recorder.record, batch)
            self.recording[1].add_done_callback(lambda _: self.pool.wake())

    def _decide(self, address: str, verdict: Verdict) -> None:
        entry = self.board.entries[address]
        for place in verdict.aside:
            self.display.say(f"{entry.name}: had been changed by hand; that version is kept as {place}")
        if verdict.what == "run":
            self.prepared.append((address, verdict))
        elif verdict.what == "busy":
            if entry.state != "waiting":
                self.display.say(f"{entry.name}: waiting, {verdict.why}")
            entry.state, entry.note = "waiting", verdict.why
            self.blocked[address] = time.monotonic() + BUSY_PAUSE
        elif verdict.what == "broken":
            self._fail(address, verdict.why)
        else:
            if verdict.what == "cached":
                self.touched.add(address)
            self._settle(address, "cached")

    def _settle(self, address: str, state: State) -> None:
        """A stage is over, and what depends on it may be ready."""
        entry = self.board.entries[address]
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
        entry = self.board.entries[address]
        entry.state, entry.note = "failed", why
        self.failed = True
        self.display.ended(entry)
        for other in self.graph.after(address):
            if other in self.waits:
                skipped = self.board.entries[other]
                skipped.state, skipped.note = "skipped", f"needs {entry.name}"

    def _again(self, address: str, why: str, how: str = "") -> None:
        """Queue a stage once more that has been executed in vain."""
        entry = self.board.entries[address]
        self.display.say(f"{entry.name}: {why}; trying again{how}")
        entry.state, entry.note, entry.resumed = "queued", why, None
        self.stale.add(address)
        self._push(address)

    def _push(self, address: str) -> None:
        """What takes moments goes first, so that figures are there as early as can be; then by critical path."""
        training = self.board.entries[address].kind == "train"
        heapq.heappush(self.ready, (training, -self.heights[address], self.position[address], address))
