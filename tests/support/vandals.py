"""Workers that do what no stage should, for tests of those that have to cope with it."""

import os
import signal
from pathlib import Path

import numpy as np
import torch

from pflcore import settings
from pipeline.running.local import Ended


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


# What one stage could leave behind for the next in a process that they share: how to see it, and how to change it.
TRACES = {
    "numpy": (lambda: np.random.get_state()[1][0], lambda: np.random.seed(123)),
    "dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "deterministic": (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
    "seed": (torch.initial_seed, lambda: torch.manual_seed(77)),
    "module": (lambda: hasattr(settings, "left_behind"), lambda: setattr(settings, "left_behind", True)),
    "environment": (lambda: "LEFT_BEHIND" in os.environ, lambda: os.environ.update(LEFT_BEHIND="1")),
    "folder": (Path.cwd, lambda: os.chdir("/")),
    "umask": (_umask, lambda: os.umask(0o777)),
    "signals": (lambda: signal.getsignal(signal.SIGUSR1), lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)),
}


def vandalise(*given):
    """Change everything."""
    for _, change in TRACES.values():
        change()
    look(*given)


def look(job, root, environment, connection):
    """Say what the process looks like."""
    connection.send(Ended(job.address, "done", repr({name: str(see()) for name, (see, _) in TRACES.items()})))


def vanish(*_):
    """End without a word."""
    os.kill(os.getpid(), signal.SIGKILL)
