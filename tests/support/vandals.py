"""Workers that do what no stage should, for tests of those that have to cope with it."""

from __future__ import annotations

import os
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pflcore import settings
from pipeline.running.local import Ended, Job


def state() -> dict[str, Any]:
    """Return what one stage could leave behind for the next in a process that they share."""
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
