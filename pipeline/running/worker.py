"""One stage in a process of its own: its output into a log file, its progress and its end to the scheduler.

The process is a fork of one that has imported everything and done nothing, so it starts in a few hundredths of a second
and nothing that a stage does to its process can reach the next one.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pflcore.errors import UserError, in_words
from pflcore.faults import in_a_line
from pflcore.memory import is_memory

if TYPE_CHECKING:
    from pflcore.engine import Progress

Outcome = Literal["done", "failed", "lost", "memory"]
"""How a stage ended: well; by an error in a spec, data or code; its process vanished; memory did not suffice.

The last two are the machine's doing, and worth another try.
"""
SEND_EVERY = 0.2  # seconds between two messages about rounds


@dataclass(frozen=True)
class Job:
    """A stage to be executed."""

    address: str
    command: str  # ``pfl stage …``, as DVC would run it
    outs: tuple[str, ...]  # relative to the workspace
    log: Path


@dataclass(frozen=True)
class Progressed:
    """A round of a run is over. `accuracy` is a share of 1, the last one measured."""

    address: str
    round: int
    rounds: int
    accuracy: float | None


@dataclass(frozen=True)
class Ended:
    """A stage is over. `message` is one line; `diverged` says so of a run that ended well all the same."""

    address: str
    outcome: Outcome
    message: str = ""
    diverged: bool = False


Event = Progressed | Ended


def work(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """Execute a stage and send its events; never return with an exception. The process ends with its scheduler."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scheduler decides what an interruption means
    with suppress(OSError):
        os.setpgid(0, 0)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(root)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as file:  # takes all that this process and its children print
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.stdout, sys.stderr = (open(one, "w", buffering=1, encoding="utf-8", closefd=False) for one in (1, 2))  # noqa: SIM115
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}  {job.command}", flush=True)
    outcome, message = attempt(lambda: _execute(job, connection))
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}  {outcome}{': ' + message if message else ''}", flush=True)
    connection.send(Ended(job.address, outcome, message, outcome == "done" and _diverged(job)))


def attempt(act: Callable[[], object]) -> tuple[Outcome, str]:
    """Call a function; return how that ended, and the line to say of it. What is more goes to standard output."""
    try:
        act()
        return "done", ""
    except BaseException as error:
        outcome: Outcome = "memory" if is_memory(error) else "failed"
        if isinstance(error, UserError | OSError):
            line = in_words(error) if isinstance(error, OSError) else str(error)
            print(f"pfl: {line}", flush=True)
            return outcome, line
        traceback.print_exception(error)
        return outcome, in_a_line(error)


def _execute(job: Job, connection: Connection) -> None:
    from pipeline import progress
    from pipeline.stages.cli import stage

    last = 0.0

    def send(latest: Progress) -> None:
        nonlocal last
        if latest.round == latest.rounds or time.monotonic() - last > SEND_EVERY:
            last = time.monotonic()
            connection.send(Progressed(job.address, latest.round, latest.rounds, latest.accuracy))

    progress.listener = send
    words, _, seal = job.command.partition(" --seal ")
    match shlex.split(words):
        case ["pfl", "stage", kind, *subjects]:
            stage(kind, subjects, seal or None)
        case _:
            raise UserError(f"{job.address}: {job.command!r} is no stage of this pipeline; run `pfl compile`")


def _diverged(job: Job) -> bool:
    from pflcore.artifacts import read_meta

    rounds = [out for out in job.outs if out.endswith("/rounds.parquet")]
    return bool(rounds and read_meta(Path(rounds[0]), "rounds/2").get("diverged"))


def _end_with(connection: Connection) -> None:
    """Wait until nobody is at the other end any more, and take this process and its children along."""
    with suppress(EOFError, OSError):
        connection.recv()
    with suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
