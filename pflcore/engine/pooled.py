"""The executor for CPUs: a worker process per core, one thread each, clients dealt out as workers fall idle.

One thread per client wastes none of its time at the barriers that several threads meet in every small operation, and
makes results independent of the number of workers: they are those of the sequential executor on one thread. Workers
are forked, so the dataset is shared; a model's state passes through shared memory, never through a pipe.
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from pflcore.engine.divergence import Diverged
from pflcore.engine.evaluate import Scores, client_scores, forward, pooled_chunks, score_client
from pflcore.engine.sequential import Job, Outcome, Sequential
from pflcore.errors import UserError
from pflcore.groups import Tensors

# Other systems cannot fork a process that has loaded their mathematical libraries.
_START = "fork" if sys.platform == "linux" else "spawn"
_ALIGNMENT = 64  # bytes; what a freshly allocated tensor has


class Pooled:
    """Trains and measures clients in parallel on the CPU; use it as a context, which ends its processes.

    Args:
        sequential: What a worker does with one client.
        like: A model state: names, shapes and types of what is passed to and fro.
        workers: Number of processes, at least 1. They are started when they are first needed.
    """

    def __init__(self, sequential: Sequential, like: Tensors, workers: int) -> None:
        self.sequential = sequential
        self.like = like
        self.count = workers
        self.workers: list[_Worker] = []

    def __enter__(self) -> Pooled:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def train(self, round_: int, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs. Raises :class:`Diverged` for the first that diverges, in that order."""

        def outcome(job: Job, answer: Any, worker: _Worker) -> Outcome:
            client, _ = job
            model = {name: tensor.clone() for name, tensor in worker.state.items()}
            return Outcome(client, model, answer)

        yield from self._deal(jobs, lambda job: ("train", round_, job[0]), lambda job, worker: job[1], outcome)

    def score_each(self, jobs: Iterable[Job]) -> Scores:
        """Scores of every job's own model on its client's test samples."""
        answers = self._deal(
            jobs, lambda job: ("score", job[0]), lambda job, worker: job[1], lambda job, answer, worker: answer
        )
        return Scores.join(answers)

    def score_shared(self, state: Tensors) -> Scores:
        """Scores of one model that all clients share, over fixed chunks of the pooled test samples."""
        data = self.sequential.data
        holders: set[int] = set()

        def load(chunk: int, worker: _Worker) -> Tensors | None:
            """The state, once per worker."""
            known = id(worker) in holders
            holders.add(id(worker))
            return None if known else state

        chunks = range(len(pooled_chunks(data)))
        answers = list(self._deal(chunks, lambda chunk: ("forward", chunk), load, lambda chunk, answer, worker: answer))
        hits, losses = (np.concatenate(parts) for parts in zip(*answers, strict=True))
        return client_scores(hits, losses, data)

    def _deal(
        self,
        jobs: Iterable[Any],
        message: Callable[[Any], tuple[Any, ...]],
        state: Callable[[Any, _Worker], Tensors | None],
        result: Callable[[Any, Any, _Worker], Any],
    ) -> Iterator[Any]:
        """Give jobs to idle workers; yield results in the order of the jobs, which are drawn no earlier than needed."""
        idle = list(self._started())
        running: dict[Connection, tuple[_Worker, int, Any]] = {}
        done: dict[int, Any] = {}
        waiting, turn = enumerate(jobs), 0
        # Threads of this process would spin for a while after each use, on the cores that workers need.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            while True:
                while idle and (job := next(waiting, None)):
                    index, what = job
                    worker = idle.pop()
                    worker.begin(message(what), state(what, worker))
                    running[worker.pipe] = (worker, index, what)
                if not running:
                    return
                for pipe in [pipe for pipe in wait(list(running)) if isinstance(pipe, Connection)]:
                    worker, index, what = running.pop(pipe)
                    answer = worker.end()
                    idle.append(worker)
                    done[index] = answer if isinstance(answer, Exception) else result(what, answer, worker)
                while turn in done:
                    ready = done.pop(turn)
                    turn += 1
                    if isinstance(ready, Exception):
                        raise ready
                    yield ready
        except Diverged:
            for worker, _, _ in running.values():  # their answers must not meet a later job
                worker.end()
            raise
        except BaseException:  # an interruption, or results that nobody waits for: what is under way is of no use
            self._stop()
            raise
        finally:
            torch.set_num_threads(threads)

    def _stop(self) -> None:
        """End all processes; new ones are started when there is work again."""
        for worker in self.workers:
            worker.pipe.close()
            worker.process.kill()  # they hold nothing that could be lost
        for worker in self.workers:
            worker.process.join()
        self.workers = []

    def _started(self) -> list[_Worker]:
        if not self.workers:
            context: Any = torch.multiprocessing.get_context(_START)
            for _ in range(self.count):
                ours, theirs = context.Pipe()
                buffer: Tensor = torch.zeros(_size(self.like), dtype=torch.uint8)
                buffer.share_memory_()  # type: ignore[no-untyped-call]
                # A worker must not hold the pipes of the others open, or these would outlive this process.
                inherited = [ours, *(worker.pipe for worker in self.workers)] if _START == "fork" else []
                process = context.Process(
                    target=_work, args=(theirs, buffer, self.sequential, self.like, inherited), daemon=True
                )
                with warnings.catch_warnings():
                    # Newer Pythons warn of threads; a progress bar's is harmless, as workers print nothing.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                theirs.close()
                self.workers.append(_Worker(process, ours, _views(buffer, self.like)))
        return self.workers


@dataclass(frozen=True, eq=False)
class _Worker:
    """A process, our end of its pipe, and the model state that we share with it."""

    process: Any
    pipe: Connection
    state: Tensors

    def begin(self, message: tuple[Any, ...], state: Tensors | None) -> None:
        if state is not None:
            for name, tensor in state.items():
                self.state[name].copy_(tensor)
        try:
            self.pipe.send(message)
        except OSError:
            raise self._died() from None

    def end(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None

    def _died(self) -> UserError:
        self.process.join(timeout=5)
        return UserError(
            f"a worker process died (exit code {self.process.exitcode}), most likely for lack of memory; "
            "set PFL_WORKERS to a smaller number"
        )


def _work(pipe: Connection, buffer: Tensor, sequential: Sequential, like: Tensors, inherited: list[Connection]) -> None:
    """The life of a worker: answer messages until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    state = _views(buffer, like)
    while True:
        try:
            kind, *rest = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any
            if kind == "train":
                round_, client = rest
                outcome = sequential.train_client(round_, client, state)
                for name, tensor in outcome.model.items():
                    state[name].copy_(tensor)
                answer = outcome.loss
            elif kind == "score":
                answer = score_client(sequential.model, state, sequential.data, rest[0])
            else:
                data = sequential.data
                answer = forward(sequential.model, state, data, pooled_chunks(data)[rest[0]])
        except (Diverged, UserError) as error:
            answer = error
        except Exception as error:
            answer = RuntimeError(f"in a worker process: {type(error).__name__}: {error}")
        pipe.send(answer)


def _size(like: Tensors) -> int:
    return sum(_padded(tensor) for tensor in like.values())


def _padded(tensor: Tensor) -> int:
    return -(-max(tensor.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT


def _views(buffer: Tensor, like: Tensors) -> Tensors:
    """The entries of a model state as views of a buffer, one after the other."""
    views, start = {}, 0
    for name, tensor in like.items():
        views[name] = buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _padded(tensor)
    return views
