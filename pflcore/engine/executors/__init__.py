"""Executors, which decide how a cohort's local training is computed. All give the same results."""

from pflcore.engine.client import Trainer
from pflcore.engine.executors.pooled import Pooled
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.memory import env_integer, worker_count
from pflcore.registry import did_you_mean

EXECUTORS = ("auto", "sequential", "pooled", "stacked")


def choose_executor(name: str, trainer: Trainer, like: Tensors) -> Sequential:
    """Return the executor called `name`. Raises :class:`UserError` for one that is unknown or not for the device.

    ``auto`` is ``stacked`` on an accelerator, ``pooled`` on a CPU with several cores, and otherwise ``sequential``. All
    agree within float tolerance. ``pooled`` with any number of workers equals ``sequential`` on one thread to the byte.
    """
    if name not in EXECUTORS:
        raise UserError(f"unknown executor {name!r}{did_you_mean(name, list(EXECUTORS))}")
    on_cpu = trainer.data.device.type == "cpu"
    if name == "pooled" and not on_cpu:
        raise UserError(f"the pooled executor runs on the CPU, the data lies on {trainer.data.device}; use auto")
    if name == "stacked" or (name == "auto" and not on_cpu):
        return Stacked(trainer, env_integer("PFL_STACK") or 64)
    workers = min(worker_count(), trainer.data.clients)
    if name == "pooled" or (name == "auto" and workers > 1):
        return Pooled(trainer, like, workers)
    return Sequential(trainer)
