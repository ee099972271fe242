"""Execution of stages on this machine: one process per stage, which writes a log file and sends events to a pool.

Each process is forked from one that has imported everything and done nothing else. It starts in a few hundredths of a
second, and no state of a process can reach the next stage.
"""

from __future__ import annotations

import multiprocessing
import os
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

from pflcore.errors import UserError, describe_os_error, is_disk_error
from pflcore.faults import error_line
from pflcore.memory import is_memory_error, memory_limit

if TYPE_CHECKING:
    from pflcore.engine import Progress

MANY_STAGES = 200  # stages, from which on it pays to import slow libraries once for all of them
GIB_PER_RUN = 4  # expected memory of a run on a CPU; it limits the number of processes if `--jobs` is not given
SEND_EVERY = 0.2  # seconds between two messages about rounds
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
Outcome = Literal["done", "failed", "lost", "memory"]
"""How a stage ended: without error; with an error of spec, data or code; its process was lost; memory was exhausted.

The machine causes the last two, so the stage is tried again.
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
    """Event: a round of a run is over. `accuracy` is the last measured one, between 0 and 1."""

    address: str
    round: int
    rounds: int
    accuracy: float | None


@dataclass(frozen=True)
class Ended:
    """Event: a stage is over. `message` is one line; `diverged` is True if a run diverged, which is no failure."""

    address: str
    outcome: Outcome
    message: str = ""
    diverged: bool = False


Event = Progressed | Ended


@dataclass(frozen=True)
class Slot:
    """A place that executes one stage at a time. Slots with the same name are interchangeable."""

    name: str  # ``cpu`` or ``gpu 1``
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables of its processes


class LocalPool:
    """Executes about `expected` stages of the workspace `root` in slots; `variables` are environment variables of all
    processes."""

    def __init__(self, root: Path, slots: Sequence[Slot], variables: Mapping[str, str], expected: int = 0) -> None:
        self.root, self.variables = root, variables
        self.slots = {slot.name: slot for slot in slots}
        self.limits = Counter(slot.name for slot in slots)
        self.running: dict[Connection, tuple[str, str, BaseProcess]] = {}  # address, slot and process
        self._context = multiprocessing.get_context("forkserver")
        libraries = ["pipeline.running.warm_libraries"] if expected >= MANY_STAGES else []
        self._context.set_forkserver_preload([*libraries, "pipeline.cli", "pipeline.running.warm"])
        _run_forkserver()  # now, since its imports take seconds, during which this process has other work

    @property
    def capacity(self) -> int:
        return self.limits.total()

    def free_slot(self, address: str) -> str | None:
        """Return the name of a slot in which a stage could run now; None if all slots are taken."""
        busy = Counter(slot for _, slot, _ in self.running.values())
        free = [name for name, limit in self.limits.items() if busy[name] < limit]
        return min(free, key=lambda name: busy[name], default=None)

    def start(self, job: Job, place: str) -> None:
        """Start a stage in the slot `place`, which has to be free."""
        receiver, sender = self._context.Pipe()
        environment = {**os.environ, **self.variables, **self.slots[place].variables}
        self.running[receiver] = job.address, place, self._fork(job, environment, sender)
        sender.close()

    def events(self, timeout: float) -> list[Event]:
        """Return the events since the last call; wait for one up to `timeout` seconds."""
        ready = cast(list[Connection], wait([*self.running], timeout))
        return [self._receive(connection) for connection in ready]

    def shrink(self, place: str) -> str:
        """Run one stage fewer at a time in the slot where memory was exhausted; return a text that says so, or ""."""
        if self.limits[place] <= 1:
            return ""
        self.limits[place] -= 1
        return f"at most {self.limits[place]} at a time on {place} from now on"

    def close(self) -> None:
        """Kill all running stages."""
        for connection, (_, _, process) in self.running.items():
            connection.close()
            _kill(process)
        self.running.clear()

    def _fork(self, job: Job, environment: dict[str, str], connection: Connection) -> BaseProcess:
        """Start a worker. If the process that workers are forked from has been killed, start it again."""
        for pause in (0.1, 1.0, None):
            process = self._context.Process(target=work, args=(job, self.root, environment, connection))
            try:
                process.start()
                return process
            except (EOFError, ConnectionError):
                if pause:
                    time.sleep(pause)  # until the system has noticed its end
                    _run_forkserver()
        problem = "the process that workers are forked from was killed, again and again"
        raise UserError(f"{problem}; type the same command to continue")

    def _receive(self, connection: Connection) -> Event:
        address, _, process = self.running[connection]
        try:
            event: Event = connection.recv()
        except (EOFError, OSError):
            process.join()
            code = process.exitcode or 0
            ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            event = Ended(address, "lost", f"its process {ending}")
        if isinstance(event, Ended):
            del self.running[connection]
            connection.close()
            _kill(process)  # and the processes that it started
        return event


def _run_forkserver() -> None:
    """Start the fork server with Ctrl-C blocked: the scheduler handles it, and the server would print a traceback."""
    resource_tracker.ensure_running()  # otherwise the fork server starts it below, which unblocks SIGINT
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
    """Return the slots of this machine, one for each stage that can run at the same time.

    With GPUs, named as in ``CUDA_VISIBLE_DEVICES``, each has `per_gpu` slots. Without, there are `jobs` slots, by
    default as many as cores and memory allow. Each has a single thread, so any number of slots gives the same bytes.
    """
    if gpus:
        on_gpus = [Slot(f"gpu {gpu}", {"CUDA_VISIBLE_DEVICES": gpu, "PFL_DEVICE": "cuda"}) for gpu in gpus] * per_gpu
        return on_gpus[:jobs]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = jobs or max(1, min(cores, int(2 * memory_limit() / 2**30 // GIB_PER_RUN)))
    shares = {"PFL_DEVICE": "cpu", "PFL_WORKERS": str(max(1, cores // count)), "PFL_THREADS": "1"}
    return [Slot("cpu", {name: os.environ.get(name) or value for name, value in shares.items()})] * count


def visible_gpus(requested: str | None) -> list[str] | None:
    """Return the GPUs to use: those of ``--gpus 0,1``, or those that CUDA sees; None if there are none.

    As in CUDA, numbers are indices into ``CUDA_VISIBLE_DEVICES``. The function returns the names listed there.
    """
    device, option = os.environ.get("PFL_DEVICE") or "auto", f"--gpus {requested}"
    if requested is None and device.startswith("cuda:"):
        requested, option = device.removeprefix("cuda:"), f"PFL_DEVICE = {device}"
    names, driver = os.environ.get("CUDA_VISIBLE_DEVICES"), any(Path(path).exists() for path in DRIVERS)
    if requested is None:
        if device not in ("auto", "cuda") or not driver:  # checked first, since importing PyTorch takes long
            return None
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return (names.split(",") if names else [str(index) for index in range(count)]) if count else None
    numbers = [number.strip() for number in requested.split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
        raise UserError(f"{option} must be numbers separated by commas, e.g. 0,1")
    if not driver:
        raise UserError(f"{option}: there is no GPU here; leave it out to run on the CPU")
    if names is None:
        return numbers
    visible = [name.strip() for name in names.split(",") if name.strip()]
    if missing := [number for number in numbers if int(number) >= len(visible)]:
        reason = f"CUDA_VISIBLE_DEVICES = {names!r} leaves {len(visible)}"
        raise UserError(f"{option}: there is no GPU {missing[0]}, since {reason}")
    return [visible[int(number)] for number in numbers]


def work(job: Job, root: Path, environment: dict[str, str], connection: Connection) -> None:
    """Execute a stage in this process and send its events; never raise. The process ends when its scheduler does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scheduler handles interruptions
    with suppress(OSError):
        os.setpgid(0, 0)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(root)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as file:  # receives all output of this process and its children
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.stdout, sys.stderr = (open(fd, "w", buffering=1, encoding="utf-8", closefd=False) for fd in (1, 2))  # noqa: SIM115
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}  {job.command}", flush=True)
    outcome, message = attempt(lambda: _execute(job, connection))
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}  {outcome}{': ' + message if message else ''}", flush=True)
    connection.send(Ended(job.address, outcome, message, outcome == "done" and _diverged(job)))


def attempt(function: Callable[[], object]) -> tuple[Outcome, str]:
    """Call a function; return its outcome and a line about it. Print details, such as a traceback, to stdout."""
    try:
        function()
        return "done", ""
    except BaseException as error:
        outcome: Outcome = "memory" if is_memory_error(error) else "failed"
        if isinstance(error, UserError):
            line = str(error)
        elif isinstance(error, OSError) and is_disk_error(error):
            line = describe_os_error(error)
        else:  # an error in the code, or a file that it does not find
            traceback.print_exception(error)
            return outcome, error_line(error)
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
    _, _, kind, *subjects = words.split()
    stage(kind, subjects, seal or None)


def _diverged(job: Job) -> bool:
    from pflcore.artifacts import read_meta

    rounds = [out for out in job.outs if out.endswith("/rounds.parquet")]
    return bool(rounds and read_meta(Path(rounds[0]), "rounds/2").get("diverged"))


def _end_with(connection: Connection) -> None:
    """Wait until the other end of the connection closes, then kill this process and its children."""
    with suppress(EOFError, OSError):
        connection.recv()
    with suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
