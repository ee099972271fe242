"""One stage in a process of its own: its output into a log file, its progress and its end to the scheduler.

The process is a fork of one that has imported everything and done nothing, so it starts in a few hundredths of a second
and nothing that a stage does to its process can reach the next one.
"""

from __future__ import annotations

import errno
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
from typing import TYPE_CHECKING

from pflcore.errors import UserError, in_words
from pflcore.faults import in_a_line
from pflcore.memory import is_memory
from pipeline.dvc.finished import Finished
from pipeline.running.jobs import Ended, Job, Outcome, Progressed

if TYPE_CHECKING:
    from pflcore.engine import Progress

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENAMETOOLONG)
TELL_EVERY = 0.2  # seconds between two messages about rounds


@dataclass(frozen=True)
class Place:
    """Where a worker works: the workspace, its folder of notes, and its whole environment."""

    root: Path
    notes: Path
    environment: dict[str, str]


def work(job: Job, place: Place, connection: Connection) -> None:
    """Execute a stage and send its events; never returns with an exception.

    The process ends with its scheduler.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scheduler decides what an interruption means
    with suppress(OSError):
        os.setpgid(0, 0)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    os.environ.clear()
    os.environ.update(place.environment)
    os.chdir(place.root)
    _redirect(job.log)
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}  {job.command}", flush=True)
    outcome, message = _attempt(lambda: execute(job, connection.send))
    if outcome == "done":
        # Not after the scheduler has been told: it may be gone by then.
        outcome, message = _attempt(lambda: Finished(place.root, place.notes).note(job.address, job.key, job.outs))
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}  {outcome}{': ' + message if message else ''}", flush=True)
    connection.send(Ended(job.address, outcome, message, outcome == "done" and _diverged(job, place.root)))


def execute(job: Job, send: Callable[[Progressed], None]) -> None:
    """Run the command of a stage in this process. Raises :class:`UserError` for what the stage says."""
    from typer.main import get_command

    from pipeline import progress
    from pipeline.stages.cli import stage

    last = 0.0

    def tell(latest: Progress) -> None:
        nonlocal last
        if latest.round == latest.rounds or time.monotonic() - last > TELL_EVERY:
            last = time.monotonic()
            send(Progressed(job.address, latest.round, latest.rounds, latest.loss, latest.accuracy))

    progress.listener = tell
    program, group, *arguments = shlex.split(job.command)
    if (program, group) != ("pfl", "stage"):
        raise UserError(f"{job.address}: {job.command!r} is no stage of this pipeline; run `pfl compile`")
    get_command(stage).main(args=arguments, prog_name="pfl stage", standalone_mode=False)


def _diverged(job: Job, root: Path) -> bool:
    """Whether a run that has been trained diverged."""
    from pflcore.artifacts import read_meta

    rounds = next((out for out in job.outs if out.endswith("/rounds.parquet")), None)
    return bool(rounds and read_meta(root / rounds, "rounds/2").get("diverged"))


def _attempt(act: Callable[[], object]) -> tuple[Outcome, str]:
    try:
        act()
    except UserError as error:
        print(f"pfl: {error}", flush=True)
        return ("memory" if is_memory(error) else "failed"), str(error)
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            return _failed(error)
        print(f"pfl: {in_words(error)}", flush=True)
        return "failed", in_words(error)
    except BaseException as error:
        return _failed(error)
    return "done", ""


def _failed(error: BaseException) -> tuple[Outcome, str]:
    traceback.print_exception(error)
    return ("memory" if is_memory(error) else "failed"), in_a_line(error)


def _redirect(log: Path) -> None:
    """Everything that this process and its children print goes to the end of a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115


def _end_with(connection: Connection) -> None:
    """Wait until nobody is at the other end any more, and take this process and its children along."""
    with suppress(EOFError, OSError):
        connection.recv()
    with suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
