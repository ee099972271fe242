"""Workers that do what no stage should, for tests of those that have to cope with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from pflcore import settings
from pipeline.running.local import Ended, Job

# What one stage could leave behind for the next in a process that they share: how to see it, and how to change it.
TRACES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "numpy": (lambda: np.random.get_state()[1][0], lambda: np.random.seed(123)),  # type: ignore[index]
    "dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "deterministic": (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
    "seed": (torch.initial_seed, lambda: torch.manual_seed(77)),
    "module": (lambda: hasattr(settings, "left_behind"), lambda: setattr(settings, "left_behind", True)),
    "environment": (lambda: "LEFT_BEHIND" in os.environ, lambda: os.environ.update(LEFT_BEHIND="1")),
    "folder": (Path.cwd, lambda: os.chdir("/")),
    "umask": (lambda: (mask := os.umask(0), os.umask(mask))[0], lambda: os.umask(0o777)),
    "signals": (
        lambda: signal.getsignal(signal.SIGUSR1),
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    ),
}


def vandalise(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """Change everything."""
    for _, change in TRACES.values():
        change()
    look(job, root, environment, connection)


def look(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """Say what the process looks like."""
    connection.send(Ended(job.address, "done", repr({name: str(see()) for name, (see, _) in TRACES.items()})))


def vanish(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """End without a word."""
    os.kill(os.getpid(), signal.SIGKILL)
