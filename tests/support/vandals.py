"""Workers that do what no stage should, for tests of those that have to cope with it."""

from __future__ import annotations

import os
import random
import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pflcore import settings
from pipeline.running.worker import Ended, Job, work


def state() -> dict[str, Any]:
    """What one stage could leave behind for the next in a process that they share."""
    os.umask(mask := os.umask(0))
    return {
        "numpy": int(np.random.default_rng(0).integers(9)) + int(np.random.get_state()[1][0]),  # type: ignore[index]
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "seed": torch.initial_seed(),
        "module": hasattr(settings, "left_behind"),
        "environment": "LEFT_BEHIND" in os.environ,
        "folder": os.getcwd(),  # noqa: PTH109
        "umask": mask,
        "signals": str(signal.getsignal(signal.SIGUSR1)),
    }


def vandalise(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """Change everything in :func:`state`."""
    random.seed(1)
    np.random.seed(123)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(77)
    settings.left_behind = True  # type: ignore[attr-defined]
    os.environ["LEFT_BEHIND"] = "1"
    os.chdir("/")
    os.umask(0o777)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    connection.send(Ended(job.address, "done", repr(state())))


def look(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """Say what the process looks like."""
    connection.send(Ended(job.address, "done", repr(state())))


def vanish(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """End without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def vanish_once(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """Training ends without a word the first time, and works the second."""
    _once("lost", job, root) and os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[func-returns-value]
    work(job, root, environment, connection)


def exhaust_once(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """Training runs out of memory the first time, and works the second."""
    if _once("memory", job, root):
        connection.send(Ended(job.address, "memory", "MemoryError: enough"))
        return
    work(job, root, environment, connection)


def stop_after_training(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """The first training writes its outputs and its note; then all is killed, before anybody hears of it."""
    if _once("heard", job, root):
        if not (child := os.fork()):
            ends = Pipe()  # of which the other one stays open, too
            work(job, root, environment, ends[1])
            os._exit(0)
        os.waitpid(child, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    work(job, root, environment, connection)


def _once(name: str, job: Job, root: Path) -> bool:
    """True the first time that a train stage asks."""
    mark = root / ".pfl" / name
    if "stage train" not in job.command or mark.exists():
        return False
    mark.touch()
    return True
