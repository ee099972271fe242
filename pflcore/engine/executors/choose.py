"""What the round loop asks of an executor, and which one carries out training and measurement here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self

from pflcore.engine.client import TRAINING, Job, Outcome, Trainer
from pflcore.engine.evaluation import Scores
from pflcore.engine.executors.pooled import Pooled
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.registry import did_you_mean
from pflcore.variables import whole_number

EXECUTORS = ("auto", "sequential", "pooled", "stacked")


class Executor(Protocol):
    """How local training and measurement are carried out; entered before its first use and left after the last.

    Methods cannot tell which one it is.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...

    def train(self, round_: int, jobs: Iterable[Job], part: int = TRAINING) -> Iterator[Outcome]:
        """Train each job's client, in order; jobs are drawn as they are needed.

        Args:
            part: A phase of the round, or what the method does before a client is measured or before the first round.
        """

    def score_each(self, jobs: Iterable[Job]) -> Scores:
        """Score every job's own model on its client's samples."""

    def score_shared(self, state: Tensors) -> Scores:
        """Score one model that all clients share."""


def choose_executor(name: str, trainer: Trainer, like: Tensors) -> Executor:
    """Return the executor called `name`.

    ``auto`` is ``stacked`` on an accelerator, ``pooled`` on a CPU with several cores, and otherwise ``sequential``. All
    agree within float tolerance; ``sequential`` on one thread and ``pooled`` to the byte, on any number of workers.

    Args:
        like: A model state with the names, shapes and types of all that is trained.

    Raises:
        UserError: There is no such executor, or it does not fit the device.
    """
    if name not in EXECUTORS:
        raise UserError(f"unknown executor {name!r}{did_you_mean(name, list(EXECUTORS))}")
    on_cpu = trainer.data.device.type == "cpu"
    if name == "pooled" and not on_cpu:
        raise UserError(f"the pooled executor runs on the CPU, the data lies on {trainer.data.device}; use auto")
    if name == "stacked" or (name == "auto" and not on_cpu):
        return Stacked(trainer, stack_width())
    workers = min(worker_count(), trainer.data.clients)
    if name == "pooled" or (name == "auto" and workers > 1):
        return Pooled(trainer, like, workers)
    return Sequential(trainer)


def worker_count() -> int:
    """Return ``$PFL_WORKERS``, or the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return whole_number("PFL_WORKERS") or cores


def stack_width() -> int:
    """Return ``$PFL_STACK``, the most clients that are stacked, or 64."""
    return whole_number("PFL_STACK") or 64
