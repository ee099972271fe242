"""Which executor carries out local training and measurement here."""

from __future__ import annotations

import os

from pflcore.engine.executors.abreast import Abreast, current_lane
from pflcore.engine.executors.distributed import Distributed
from pflcore.engine.executors.executor import Executor
from pflcore.engine.executors.pooled import Pooled
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked
from pflcore.engine.processes import is_launched
from pflcore.engine.trainer import Trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.registry import did_you_mean
from pflcore.variables import whole_number

EXECUTORS = ("auto", "sequential", "pooled", "stacked", "distributed")


def choose_executor(name: str, trainer: Trainer, like: Tensors) -> Executor:
    """The executor called `name`.

    ``auto`` is ``distributed`` in a process that a launcher started, ``stacked`` on an accelerator, ``pooled`` on a CPU
    with several cores, and otherwise ``sequential``. Where several runs are side by side, ``auto`` and ``stacked``
    stack the clients of all of them. All agree within float tolerance; ``sequential`` on one thread, ``pooled`` and,
    on CPUs, ``distributed`` to the byte, on any number of workers and processes.

    Args:
        trainer: What is done with one client.
        like: A model state with the names, shapes and types of all that is trained.

    Raises:
        UserError: There is no such executor, or it does not fit the device.
    """
    if name not in EXECUTORS:
        raise UserError(f"unknown executor {name!r}{did_you_mean(name, list(EXECUTORS))}")
    if name == "distributed" or (name == "auto" and is_launched()):
        return Distributed(choose_executor(_inner(trainer), trainer, like), trainer, like)
    if (lane := current_lane()) and name in ("auto", "stacked"):
        return Abreast(lane, trainer, stack_width())
    on_cpu = trainer.data.device.type == "cpu"
    if name == "pooled" and not on_cpu:
        raise UserError(f"the pooled executor runs on the CPU, the data lies on {trainer.data.device}; use auto")
    if name == "stacked" or (name == "auto" and not on_cpu):
        return Stacked(trainer, stack_width())
    workers = min(worker_count(), trainer.data.clients)
    if name == "pooled" or (name == "auto" and workers > 1):
        return Pooled(trainer, like, workers)
    return Sequential(trainer)


def _inner(trainer: Trainer) -> str:
    """What each of several processes uses: as many on one machine share its cores, one is enough for each."""
    if trainer.data.device.type != "cpu":
        return "stacked"
    return "pooled" if os.environ.get("PFL_WORKERS", "1") != "1" else "sequential"


def worker_count() -> int:
    """``$PFL_WORKERS``, or the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return whole_number("PFL_WORKERS") or cores


def stack_width() -> int:
    """``$PFL_STACK``, the most clients that are stacked, or 64."""
    return whole_number("PFL_STACK") or 64
