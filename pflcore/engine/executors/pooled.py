"""The executor for CPUs: a worker process with one thread per core; idle workers take the next client.

With one thread per client, no time is lost in synchronising threads in every small operation, and results do not depend
on the number of workers: they are those of the sequential executor on one thread. Workers are forked, so they share the
dataset. States of models pass through shared memory, never through a pipe.
"""

from __future__ import annotations

import heapq
import math
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from mmap import mmap
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from pflcore.engine.client import TRAINING, Diverged, Job, Outcome, Trainer, Unfinished
from pflcore.engine.evaluation import Scored, client_scores, join, measure_chunks, pooled_chunks, score_client
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.state import packed_size, packed_views
from pflcore.errors import UserError
from pflcore.faults import during, portable
from pflcore.groups import Tensors
from pflcore.task import Measured, Score

# Other systems cannot fork a process after their mathematical libraries are loaded.
_START = "fork" if sys.platform == "linux" else "spawn"
# Least gain, as a share of the round, for which a client's steps are split between two workers.
_MIN_GAIN = 0.05

Message = tuple[Any, ...]  # a function, and its arguments after the trainer and the shared state
Task = TypeVar("Task")
_Packed = tuple[dict[str, dict[str, np.ndarray]], list[np.ndarray]]


class Pooled(Sequential):
    """Trains and measures clients in parallel on the CPU, in processes that start at the first use and end with the
    context. `like` is a state with the names, shapes and types of the states that clients receive and return."""

    def __init__(self, trainer: Trainer, like: Tensors, workers: int) -> None:
        super().__init__(trainer)
        self.like, self.count = like, workers
        self.workers: list[_Worker] = []

    def __exit__(self, *_: object) -> None:
        """Kill all workers; the next use starts new ones."""
        for worker in self.workers:
            worker.pipe.close()
            worker.process.kill()  # workers have no state that could be lost
        for worker in self.workers:
            worker.process.join()
        self.workers = []

    def train(self, round_: int, jobs: Iterable[Job], part: int = TRAINING) -> Iterator[Outcome]:
        cohort = list(jobs)
        steps = [self.trainer.part(part).local.steps(round_, client) for client, _ in cohort]
        paused: dict[int, _Packed] = {}  # by job: the state after its first piece
        finished: dict[int, Outcome | Diverged] = {}
        yielded = 0

        def begin(piece: Piece, worker: _Worker) -> Message:
            client, received = cohort[piece.job]
            worker.load(received)
            return _train, part, round_, client, paused.pop(piece.job, None), piece.stop

        pieces = split_jobs(steps, self.count)
        with closing(self._run(pieces, begin, lambda piece: piece.start == 0 or piece.job in paused)) as answers:
            for piece, answer, worker in answers:
                if piece.stop < steps[piece.job]:
                    paused[piece.job] = answer
                elif isinstance(answer, Diverged):
                    finished[piece.job] = answer
                else:
                    model = {name: tensor.clone() for name, tensor in worker.state.items()}
                    finished[piece.job] = Outcome(cohort[piece.job][0], model, answer)
                while outcome := finished.pop(yielded, None):
                    if isinstance(outcome, Diverged):
                        raise outcome
                    yielded += 1
                    yield outcome

    def score_each(self, jobs: Iterable[Job], part: int = TRAINING) -> Scored:
        def begin(task: tuple[int, Job], worker: _Worker) -> Message:
            _, (client, state) = task
            worker.load(state)
            return _score, part, client

        answers = {index: answer for (index, _), answer, _ in self._run(enumerate(jobs), begin)}
        return join(answers[index] for index in range(len(answers)))

    def score_shared(self, state: Tensors, part: int = TRAINING) -> Scored:
        trainer = self.trainer.part(part)
        loaded: set[int] = set()  # workers that have the state

        def begin(chunk: int, worker: _Worker) -> Message:
            if id(worker) not in loaded:
                worker.load(state)
                loaded.add(id(worker))
            return _measure, part, chunk

        chunks = range(len(pooled_chunks(trainer)))
        answers = {chunk: answer for chunk, answer, _ in self._run(chunks, begin)}
        return client_scores(trainer, [answers[chunk] for chunk in chunks])

    def _run(
        self,
        tasks: Iterable[Task],
        begin: Callable[[Task, _Worker], Message],
        ready: Callable[[Task], bool] = lambda _: True,
    ) -> Generator[tuple[Task, Any, _Worker], None, None]:
        """Give tasks to idle workers in order, each as soon as it is `ready`; yield each finished task with its answer
        and its worker. If the iteration ends early, stop the workers."""
        idle = list(self._started())
        running: dict[Connection, tuple[_Worker, Task]] = {}
        remaining, upcoming = iter(tasks), None
        # One thread, because idle threads of this process would spin for a while on cores that workers need.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            while True:
                while idle:
                    upcoming = next(remaining, None) if upcoming is None else upcoming
                    if upcoming is None or not ready(upcoming):
                        break
                    worker = idle.pop()
                    worker.ask(begin(upcoming, worker))
                    running[worker.pipe] = (worker, upcoming)
                    upcoming = None
                if not running:
                    return
                for pipe in [pipe for pipe in wait(list(running)) if isinstance(pipe, Connection)]:
                    worker, task = running.pop(pipe)
                    answer = worker.ask()
                    if isinstance(answer, Exception) and not isinstance(answer, Diverged):
                        raise answer
                    idle.append(worker)
                    yield task, answer, worker
        except BaseException:  # an error, an interruption, or an iteration that ends early
            self.__exit__()
            raise
        finally:
            torch.set_num_threads(threads)

    def _started(self) -> list[_Worker]:
        context: Any = torch.multiprocessing.get_context(_START)
        while len(self.workers) < self.count:
            parent_end, worker_end = context.Pipe()
            buffer = _shared(packed_size(self.like))
            # A worker must close its copies of other workers' pipes, or these workers would outlive this process.
            inherited = [parent_end, *(worker.pipe for worker in self.workers)] if _START == "fork" else []
            arguments = (worker_end, buffer, self.trainer, self.like, inherited)
            process = context.Process(target=_work, args=arguments, daemon=True)
            with warnings.catch_warnings():
                # Newer Pythons warn about forks with threads; a progress bar's thread is harmless here.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            worker_end.close()
            self.workers.append(_Worker(process, parent_end, packed_views(buffer, self.like)))
        return self.workers


class _Worker(NamedTuple):
    """A worker process, the parent's end of its pipe, and the state in memory shared with it."""

    process: Any
    pipe: Connection
    state: Tensors

    def load(self, state: Tensors) -> None:
        for name, tensor in state.items():
            self.state[name].copy_(tensor)

    def ask(self, message: Message | None = None) -> Any:
        """Send a message, or wait for the answer to the last one. Raises :class:`UserError` if the worker has died."""
        try:
            return self.pipe.send(message) if message else self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(timeout=5)
            code = self.process.exitcode
            why = "the method, a library or the system ended it; PFL_EXECUTOR=sequential shows more"
            if code == -signal.SIGKILL:
                why = "most likely for lack of memory; set PFL_WORKERS to a smaller number"
            raise UserError(f"a worker process died (exit code {code}): {why}") from None


def _shared(size: int) -> Tensor:
    """Return a buffer that this process shares with a worker.

    Forked processes inherit anonymous memory. Named memory would be in /dev/shm, which is small in containers.
    """
    if _START == "fork":
        return torch.frombuffer(mmap(-1, size), dtype=torch.uint8)
    return torch.zeros(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-any-return, no-untyped-call]


def _work(pipe: Connection, buffer: Tensor, trainer: Trainer, like: Tensors, inherited: list[Connection]) -> None:
    """Answer messages in a worker process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    state = packed_views(buffer, like)
    while True:
        try:
            function, *arguments = pipe.recv()
            try:
                answer = function(trainer, state, *arguments)
            except Exception as error:
                answer = error if isinstance(error, Diverged) else portable(error)
            pipe.send(answer)
        except (EOFError, OSError):  # the parent has ended
            return


def _train(
    trainer: Trainer, state: Tensors, part: int, round_: int, client: int, paused: _Packed | None, stop: int
) -> float | _Packed:
    """Train up to the step `stop`; return the mean loss after the last step, else the state for the next worker."""
    trainer = trainer.part(part)
    with during(f"client {client}"):
        if paused:  # copies, because they have the alignment of other tensors, on which rounding can depend
            arrays, losses = paused
            copies = {key: {name: torch.tensor(it) for name, it in group.items()} for key, group in arrays.items()}
            unfinished = Unfinished(copies, [torch.tensor(loss) for loss in losses])
        else:
            unfinished = trainer.begin(state)
        unfinished = trainer.advance(round_, client, state, unfinished, stop)
        if stop < trainer.local.steps(round_, client):
            # Arrays pass through a pipe by value; each tensor would need a file of shared memory.
            groups = unfinished.state.items()
            arrays = {key: {name: it.numpy() for name, it in group.items()} for key, group in groups}
            return arrays, [loss.numpy() for loss in unfinished.losses]
        outcome = trainer.finish(round_, client, state, unfinished)
    # Copies first, because a method may return tensors that it received, and these are in the memory written here.
    for name, tensor in {name: tensor.clone() for name, tensor in outcome.model.items()}.items():
        state[name].copy_(tensor)
    return outcome.loss


def _score(trainer: Trainer, state: Tensors, part: int, client: int) -> tuple[Score, ...]:
    return score_client(trainer.part(part), state, client)


def _measure(trainer: Trainer, state: Tensors, part: int, chunk: int) -> Measured:
    trainer = trainer.part(part)
    return measure_chunks(trainer, state, [pooled_chunks(trainer)[chunk]])[0]


class Piece(NamedTuple):
    """Consecutive local steps of one job, from `start` up to, but without, `stop`."""

    job: int
    start: int
    stop: int


def split_jobs(steps: Sequence[int], workers: int) -> list[Piece]:
    """Return pieces of jobs in the order in which idle workers should take them.

    Two workers need for five equal clients the time of two and a half clients, not of three: one worker begins with the
    first half of a client, and the other one ends with its second half (the wrap-around rule of McNaughton, "Scheduling
    with deadlines and loss functions", Management Science 1959). At most ``workers - 1`` jobs are cut, each once, and
    only if it shortens the round enough. Workers are assumed to be equally fast.
    """
    jobs = [Piece(job, 0, count) for job, count in enumerate(steps)]
    if not steps:
        return jobs
    remaining = share = max(max(steps), math.ceil(sum(steps) / workers))
    first, middle, last = [], [], []
    for job in jobs:
        if job.stop <= remaining:
            middle.append(job)
            remaining -= job.stop
        else:  # its end completes one worker's share, and its beginning starts the next worker's
            cut = job.stop - remaining
            first.append(job._replace(stop=cut))
            last.append(job._replace(start=cut))
            remaining = share - cut
        remaining = remaining or share
    pieces = first + middle + sorted(last, key=lambda piece: piece.start - piece.stop)
    return pieces if _makespan(pieces, workers) < (1 - _MIN_GAIN) * _makespan(jobs, workers) else jobs


def _makespan(pieces: Sequence[Piece], workers: int) -> int:
    """Return the steps until all is done if idle workers take pieces in order, each after its job's earlier piece."""
    busy = [0] * workers
    ended: dict[int, int] = {}
    for piece in pieces:
        ended[piece.job] = max(busy[0], ended.get(piece.job, 0)) + piece.stop - piece.start
        heapq.heapreplace(busy, ended[piece.job])
    return max(busy)
