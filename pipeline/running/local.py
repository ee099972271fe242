"""Executing stages on this machine: a process per stage, its output into a log file, its progress and end to a pool.

A process is a fork of one that has imported everything and done nothing, so it starts in a few hundredths of a second
and nothing that a stage does to its process can reach the next one.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pflcore.errors import UserError, in_words, is_of_disk
from pflcore.faults import in_a_line
from pflcore.memory import is_memory, memory_limit

if TYPE_CHECKING:
    from pflcore.engine import Progress

GIB_PER_RUN = 4  # what a run on a CPU is expected to need, when nobody says how many there shall be at a time
SEND_EVERY = 0.2  # seconds between two messages about rounds
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
Outcome = Literal["done", "failed", "lost", "memory"]
"""How a stage ended: well; by an error in a spec, data or code; its process vanished; memory did not suffice.

The last two are the machine's doing, and worth another try.
"""


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


@dataclass(frozen=True)
class Slot:
    """Room for one stage at a time; slots of one name are the same."""

    name: str  # ``cpu`` or ``gpu 1``
    variables: Mapping[str, str] = field(default_factory=dict)  # of its processes


class LocalPool:
    """Who executes stages, in slots of the workspace `root`, with `variables` for all of them."""

    def __init__(self, root: Path, slots: Sequence[Slot], variables: Mapping[str, str]) -> None:
        self.root, self.variables = root, variables
        self.slots = {slot.name: slot for slot in slots}
        self.limits = Counter(slot.name for slot in slots)
        self.running: dict[Connection, tuple[str, str, BaseProcess]] = {}  # address, slot and process
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pipeline.running.warm"])
        _run_forkserver()  # it takes seconds, in which there is other work

    @property
    def capacity(self) -> int:
        return self.limits.total()

    def free_slot(self, address: str) -> str | None:
        """Return where a stage could run now; None where all slots are taken."""
        busy = Counter(slot for _, slot, _ in self.running.values())
        free = [name for name, limit in self.limits.items() if busy[name] < limit]
        return min(free, key=lambda name: busy[name], default=None)

    def start(self, job: Job, place: str) -> None:
        """Start a stage where there is room for it."""
        here, there = self._context.Pipe()
        environment = {**os.environ, **self.variables, **self.slots[place].variables}
        self.running[here] = job.address, place, self._fork(job, environment, there)
        there.close()

    def events(self, timeout: float) -> list[Event]:
        """Return what has happened; wait for it up to `timeout` seconds."""
        ready = cast(list[Connection], wait([*self.running], timeout))
        return [self._receive(connection) for connection in ready]

    def shrink(self, place: str) -> str:
        """Run fewer where memory did not suffice for a stage; return what was done about it."""
        if self.limits[place] <= 1:
            return ""
        self.limits[place] -= 1
        return f"at most {self.limits[place]} at a time on {place} from now on"

    def close(self) -> None:
        """End what is under way."""
        for connection, (_, _, process) in self.running.items():
            connection.close()
            _kill(process)
        self.running.clear()

    def _fork(self, job: Job, environment: dict[str, str], connection: Connection) -> BaseProcess:
        """Start a worker. If the process that workers are forked from has been killed, start that anew."""
        for pause in (0.1, 1.0, None):
            process = self._context.Process(target=work, args=(job, self.root, environment, connection))
            try:
                process.start()
                return process
            except (EOFError, ConnectionError):
                if pause:
                    time.sleep(pause)  # until the system knows of its end
                    _run_forkserver()
        raise UserError(
            "the process that workers are forked from was killed, again and again; the same command goes on"
        )

    def _receive(self, connection: Connection) -> Event:
        address, _, process = self.running[connection]
        try:
            event: Event = connection.recv()
        except (EOFError, OSError):
            process.join()
            code = process.exitcode or 0
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            event = Ended(address, "lost", f"its process {how}")
        if isinstance(event, Ended):
            del self.running[connection]
            connection.close()
            _kill(process)  # and what it may have started
        return event


def _run_forkserver() -> None:
    """Start it deaf to Ctrl-C, which is for the scheduler: it would tell where in its imports it has been hit."""
    resource_tracker.ensure_running()  # or it would be started in between, and let interruptions through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill(process: BaseProcess) -> None:
    """End a worker and the group of processes that it leads."""
    assert process.pid
    for kill in (os.killpg, os.kill):
        with suppress(OSError):
            kill(process.pid, signal.SIGKILL)
    process.join()


def slots(jobs: int | None, gpus: list[str] | None, per_gpu: int) -> list[Slot]:
    """Return what can run at the same time on this machine.

    With GPUs, named as in ``CUDA_VISIBLE_DEVICES``, that is `per_gpu` on each. Without, it is `jobs` processes, by
    default as many as there are cores and memory for, on single threads, which gives the same bytes for any number.
    """
    if gpus:
        on_gpus = [Slot(f"gpu {gpu}", {"CUDA_VISIBLE_DEVICES": gpu, "PFL_DEVICE": "cuda"}) for gpu in gpus] * per_gpu
        return on_gpus[:jobs]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = jobs or max(1, min(cores, int(2 * memory_limit() / 2**30 // GIB_PER_RUN)))
    share = {"PFL_DEVICE": "cpu", "PFL_WORKERS": str(max(1, cores // count)), "PFL_THREADS": "1"}
    return [Slot("cpu", {name: os.environ.get(name) or value for name, value in share.items()})] * count


def visible_gpus(wanted: str | None) -> list[str] | None:
    """Return the GPUs to use: those of ``--gpus 0,1``, those that CUDA would see, or None when there are none.

    Numbers count what ``CUDA_VISIBLE_DEVICES`` leaves, as everywhere in CUDA; what is returned are the names there.
    """
    device = os.environ.get("PFL_DEVICE") or "auto"
    if wanted is not None:
        return _chosen_gpus(wanted, f"--gpus {wanted}")
    if device.startswith("cuda:"):
        return _chosen_gpus(device.removeprefix("cuda:"), f"PFL_DEVICE = {device}")
    return _every_gpu() if device in ("auto", "cuda") else None


def _has_driver() -> bool:
    return any(Path(path).exists() for path in DRIVERS)


def _every_gpu() -> list[str] | None:
    """Return the GPUs that CUDA would see, or None when there are none."""
    if not _has_driver():  # which spares the wait for PyTorch
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    if names := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return names.split(",")
    return [str(index) for index in range(torch.cuda.device_count())]


def _chosen_gpus(wanted: str, option: str) -> list[str]:
    """Return the GPUs of a list of numbers; `option` is how messages call it."""
    numbers = [number.strip() for number in wanted.split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
        raise UserError(f"{option} must be numbers separated by commas, e.g. 0,1")
    if not _has_driver():
        raise UserError(f"{option}: there is no GPU here; leave it out to run on the CPU")
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return numbers
    seen = [name.strip() for name in names.split(",") if name.strip()]
    for number in numbers:
        if int(number) >= len(seen):
            left = f"CUDA_VISIBLE_DEVICES = {names!r} leaves {len(seen)}"
            raise UserError(f"{option}: there is no GPU {number}, since {left}")
    return [seen[int(number)] for number in numbers]


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
        if isinstance(error, UserError):
            line = str(error)
        elif isinstance(error, OSError) and is_of_disk(error):
            line = in_words(error)
        else:  # a fault in code, also a file that it does not find
            traceback.print_exception(error)
            return outcome, in_a_line(error)
        print(f"pfl: {line}", flush=True)
        return outcome, line


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
