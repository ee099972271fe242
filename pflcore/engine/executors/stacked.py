"""The executor for GPUs: clients in stacks, as large as there is memory for.

A GPU that trains one small model at a time is idle for most of it. Here a client's step, written for one client, is
vectorised over clients with ``torch.func.vmap``; on CUDA the resulting hundreds of kernels are recorded once and
replayed (:mod:`~pflcore.engine.executors.replay`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import torch
from torch.func import vmap

from pflcore.engine.divergence import Diverged
from pflcore.engine.evaluate import Both, Scores, batch_size, by_side, score_both, score_one_model
from pflcore.engine.executors.cohort import Cohort, stack_states
from pflcore.engine.executors.filling import filled_rows
from pflcore.engine.executors.replay import Recorder, Replay
from pflcore.engine.executors.vectorised import MorePasses, vectorisable
from pflcore.engine.trainer import TRAINING, Job, Outcome, Trainer, chosen
from pflcore.errors import UserError
from pflcore.faults import locate
from pflcore.groups import Tensors
from pflcore.memory import TooLittleMemory, is_memory

Done = TypeVar("Done")


@dataclass
class _AtOnce:
    """How much there is memory for: clients, and for measurements samples of all of them in one forward pass."""

    clients: int
    samples: int = 1


class Stacked:
    """Trains and measures up to `width` clients at once, on the device of the data.

    When memory does not suffice, the width is halved and the clients at hand start again; what they receive is never
    modified, so nothing is lost. Measuring has a width of its own, and takes fewer samples at once too. Either changes
    results within float tolerance.
    """

    def __init__(self, trainer: Trainer, width: int) -> None:
        self.trainer = trainer
        self.training = _AtOnce(width)
        self.measuring = _AtOnce(width, batch_size(trainer))
        # Of each part: what has been recorded of a step, and how many forward passes it makes.
        recorder = Recorder(trainer.data.device)
        self._replays = {part: Replay(trainer.data.device, recorder) for part in (TRAINING, *trainer.parts)}
        self._passes = dict.fromkeys(self._replays, 1)

    def __enter__(self) -> Stacked:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def train(self, round_: int, jobs: Iterable[Job], part: int = TRAINING) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs. Raises :class:`Diverged` for the first that diverges, in that order."""
        yield from self._in_stacks(jobs, self.training, lambda stack: self._train(round_, stack, part))

    def score_each(self, jobs: Iterable[Job]) -> Scores:
        """Scores of every job's own model on its client's samples."""
        return Scores.join(self._in_stacks(jobs, self.measuring, self._score))

    def score_shared(self, state: Tensors) -> Scores:
        """Scores of one model that all clients share."""
        while True:
            try:
                return score_one_model(self.trainer, state, self.measuring.samples)
            except Exception as error:
                short = _shortage(error)
            self._use_less(self.measuring, self.measuring.clients, short)

    def _clear(self) -> None:
        """Forget what has been recorded."""
        for replay in self._replays.values():
            replay.clear()

    def _in_stacks(
        self, jobs: Iterable[Job], at_once: _AtOnce, run: Callable[[Sequence[Job]], list[Done]]
    ) -> Iterator[Done]:
        """What `run` gives for the jobs, in stacks of at most the width for which there is memory."""
        rest, waiting = iter(jobs), deque[Job]()
        while True:
            waiting.extend(islice(rest, max(0, at_once.clients - len(waiting))))
            if not waiting:
                return
            stack = list(islice(waiting, at_once.clients))
            done, short = [], ""
            try:
                done = run(stack)
            except Exception as error:
                short = _shortage(error)
            if short:  # outside of the handler, which holds on to the tensors that filled the memory
                self._use_less(at_once, len(stack), short)
            for one in done:
                waiting.popleft()
                yield one

    def _use_less(self, at_once: _AtOnce, clients: int, short: str) -> None:
        """Go on with half of what was too much for `clients`. Raises :class:`TooLittleMemory` when there is no half."""
        self._clear()
        torch.cuda.empty_cache()
        if clients == at_once.samples == 1:
            raise TooLittleMemory(
                f"not enough memory on {self.trainer.data.device} for one client ({short}); "
                "use a smaller batch_size, or PFL_DEVICE=cpu"
            )
        at_once.clients, at_once.samples = max(1, clients // 2), max(1, at_once.samples // 2)

    def _train(self, round_: int, jobs: Sequence[Job], part: int) -> list[Outcome]:
        trainer, replay = chosen(self.trainer, part), self._replays[part]
        if not trainer.method.supports_vmap:
            return [trainer.train(round_, client, received) for client, received in jobs]
        while True:
            cohort = Cohort(trainer, replay, self._passes[part], round_, jobs)
            try:
                return _or_blame(cohort.train, cohort.suspects)
            except MorePasses:
                self._passes[part] *= 2
                replay.clear()

    @torch.no_grad()
    def _score(self, jobs: Sequence[Job]) -> list[Both]:
        samples = self.measuring.samples
        if self.trainer.method.remembers:  # what is made of samples is made for one client at a time
            return [score_both(self.trainer, state, client, samples) for client, state in jobs]
        alone = {client: partial(score_both, self.trainer, state, client) for client, state in jobs}
        return _or_blame(lambda: self._score_stacked(jobs), lambda: alone)

    def _score_stacked(self, jobs: Sequence[Job]) -> list[Both]:
        """Samples are padded to the same number for all: in evaluation mode they do not affect each other."""
        trainer, data = self.trainer, self.trainer.data
        trainer.model.eval()
        rows = [data.measured(client) for client, _ in jobs]
        size = max(1, self.measuring.samples // len(jobs))
        stacks = [
            filled_rows([own[start : start + size] for own in rows]) for start in range(0, max(map(len, rows)), size)
        ]
        state = stack_states([state for _, state in jobs])
        parts = []
        with vectorisable():
            for batch in data.batches(stacks):
                parts.append(trainer.task.measure(vmap(trainer.predict)(state, batch.inputs), batch.labels))
        measured = [torch.cat(part, 1).cpu().numpy() for part in zip(*parts, strict=True)]
        return [
            by_side(tuple(part[index, : len(own)] for part in measured), trainer, client)
            for index, ((client, _), own) in enumerate(zip(jobs, rows, strict=True))
        ]


def _shortage(error: Exception) -> str:
    """What memory that did not suffice has to say; any other error is raised again."""
    if not is_memory(error):
        raise error
    return str(error).splitlines()[0]


def _or_blame(run: Callable[[], Done], suspects: Callable[[], Mapping[int, Callable[[], object]]]) -> Done:
    """What `run` gives. A fault in somebody's code is raised as the first client raises it that also fails by itself.

    When none does, since what fails is the vectorising, it is raised as the fault of all.

    Args:
        suspects: For each client what it was at, to be done again without the others and without ``vmap``.
    """
    harmless = (UserError, Diverged, torch.OutOfMemoryError, MorePasses)
    try:
        return run()
    except harmless:
        raise
    except Exception as error:
        if is_memory(error):
            raise
        failed = error
    stack = suspects()
    for alone in stack.values() if "CUDA error" not in str(failed) else ():  # after one, everything fails
        with suppress(*harmless):
            alone()
    who = f"clients {', '.join(map(str, stack))} stacked"
    locate(failed, who=who, advice="PFL_EXECUTOR=sequential takes one at a time without vmap")
    raise failed
