"""Executing stages on this machine: a process per stage, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from pflcore.errors import UserError
from pipeline.running.jobs import Ended, Event, Job, Slot
from pipeline.running.worker import Place, work

_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
GIB_PER_RUN = 4  # what a run on a CPU is expected to need, when nobody says how many there shall be at a time


@dataclass
class _Running:
    """A process: its stage, and what it occupies."""

    address: str
    slot: Slot
    process: BaseProcess


class LocalPool:
    """A :class:`~pipeline.running.jobs.Pool` of slots.

    Args:
        root: The workspace.
        notes: The folder of notes about finished stages.
        slots: What can run at the same time.
        variables: Environment variables of all stages, beside this process's own.
    """

    def __init__(self, root: Path, notes: Path, slots: list[Slot], variables: dict[str, str]) -> None:
        self.root, self.notes, self.variables = root, notes, variables
        self.free = list(slots)
        self.beside = [Slot("beside them", slots[0].variables)]  # for what takes moments, when none is free
        self.running: dict[Connection, _Running] = {}
        self.places = {slot.name: sum(other.name == slot.name for other in slots) for slot in slots}
        self._surplus: dict[str, int] = {}  # slots that are to vanish when they fall free
        self._last: dict[str, str] = {}  # where each stage ran last
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pipeline.running.warm"])
        _run_forkserver()  # it takes seconds, in which there is other work
        self._alarm, self._bell = self._context.Pipe(duplex=False)

    @property
    def capacity(self) -> int:
        return sum(self.places.values())

    def start(self, job: Job) -> str | None:
        if self.free:
            slot = self.free.pop(0)
        elif job.brief and self.beside:
            slot = self.beside.pop()
        else:
            return None
        here, there = self._context.Pipe()
        place = Place(self.root, self.notes, {**os.environ, **self.variables, **slot.variables})
        process = self._fork(job, place, there)
        there.close()
        self.running[here] = _Running(job.address, slot, process)
        self._last[job.address] = slot.name
        return slot.name

    def events(self, timeout: float) -> list[Event]:
        events: list[Event] = []
        for ready in wait([*self.running, self._alarm], timeout):
            if ready is self._alarm:
                self._alarm.recv_bytes()
            elif isinstance(ready, Connection):
                events.append(self._hear(ready))
        return events

    def shrink(self, address: str) -> str:
        name = self._last.get(address, "")
        if self.places.get(name, 1) <= 1:
            return ""
        self.places[name] -= 1
        taken = next((slot for slot in self.free if slot.name == name), None)
        if taken:
            self.free.remove(taken)
        else:
            self._surplus[name] = self._surplus.get(name, 0) + 1
        return f"at most {self.places[name]} at a time on {name} from now on"

    def wake(self) -> None:
        with suppress(OSError):
            self._bell.send_bytes(b"x")

    def close(self) -> None:
        for connection, running in self.running.items():
            connection.close()
            _kill(running.process)
        for running in self.running.values():
            running.process.join()
        self.running.clear()

    def _fork(self, job: Job, place: Place, connection: Connection) -> BaseProcess:
        """A worker. Who finds that the process that workers are forked from has been killed starts a new one."""
        for pause in (0.1, 1.0, None):
            process = self._context.Process(target=work, args=(job, place, connection), name=job.address)
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

    def _hear(self, connection: Connection) -> Event:
        running = self.running[connection]
        try:
            event: Event = connection.recv()
        except (EOFError, OSError):
            running.process.join()
            event = Ended(running.address, "lost", _how(running.process.exitcode))
        if isinstance(event, Ended):
            del self.running[connection]
            connection.close()
            _kill(running.process)  # and what it may have started
            running.process.join()
            self._give_back(running.slot)
        return event

    def _give_back(self, slot: Slot) -> None:
        if self._surplus.get(slot.name):
            self._surplus[slot.name] -= 1
        elif slot.name not in self.places:
            self.beside.append(slot)
        else:
            self.free.append(slot)


def _run_forkserver() -> None:
    """Start it deaf to Ctrl-C, which is for the scheduler: it would tell where in its imports it has been hit."""
    resource_tracker.ensure_running()  # or it would be started in between, and let interruptions through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def slots(
    jobs: int | None, gpus: list[str] | None, per_gpu: int, environment: dict[str, str], memory_gib: float
) -> list[Slot]:
    """What can run at the same time on this machine.

    With GPUs that is `per_gpu` on each; without, `jobs` processes that share the cores, each computing on single
    threads, which gives the same bytes for any number of them.

    Args:
        jobs: How many at most; by default one per core, while there is memory for them.
        gpus: As ``CUDA_VISIBLE_DEVICES`` names them; None takes the CPU.
    """
    if gpus:
        places = [
            Slot(f"gpu {gpu}", {"CUDA_VISIBLE_DEVICES": gpu, "PFL_DEVICE": "cuda"})
            for _ in range(per_gpu)
            for gpu in gpus
        ]
        return places[:jobs] if jobs else places
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = jobs or max(1, min(cores, int(memory_gib // GIB_PER_RUN)))
    share = {"PFL_DEVICE": "cpu", "PFL_WORKERS": str(max(1, cores // count)), "PFL_THREADS": "1"}
    chosen = {name: environment.get(name) or value for name, value in share.items()}
    return [Slot("cpu", chosen) for _ in range(count)]


def visible_gpus(wanted: str | None) -> list[str] | None:
    """The GPUs to use: those of ``--gpus 0,1``, those that CUDA would see, or None when there are none.

    Numbers count what ``CUDA_VISIBLE_DEVICES`` leaves, as everywhere in CUDA; what is returned are the names there.

    Raises:
        UserError: `wanted` is not a list of numbers, or there is no such GPU.
    """
    if wanted is not None:
        names = [name.strip() for name in wanted.split(",")]
        if not all(name.isascii() and name.isdecimal() for name in names) or len(set(names)) < len(names):
            raise UserError(f"--gpus {wanted!r} must be numbers separated by commas, e.g. 0,1")
        if not _has_driver():
            raise UserError(f"--gpus {wanted}: there is no GPU here; leave it out to run on the CPU")
        return [_visible(name, f"--gpus {wanted}") for name in names]
    device = os.environ.get("PFL_DEVICE") or "auto"
    if device.startswith("cuda:"):
        return [_visible(device.removeprefix("cuda:"), f"PFL_DEVICE = {device!r}")]
    if device not in ("auto", "cuda") or not _has_driver():  # which spares the wait for PyTorch
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return seen.split(",") if seen else [str(index) for index in range(torch.cuda.device_count())]


def _visible(number: str, asked: str) -> str:
    """What ``CUDA_VISIBLE_DEVICES`` calls a GPU that CUDA counts as `number` there."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None or not number.isdecimal():
        return number
    seen = [name.strip() for name in names.split(",") if name.strip()]
    if int(number) >= len(seen):
        raise UserError(f"{asked}: there is no GPU {number}, since CUDA_VISIBLE_DEVICES = {names!r} leaves {len(seen)}")
    return seen[int(number)]


def _has_driver() -> bool:
    return any(path.exists() for path in map(Path, _DRIVERS))


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    return f"its process was ended by {signal.Signals(-code).name}"


def _kill(process: BaseProcess) -> None:
    """End a worker and the group of processes it leads."""
    if process.pid:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
