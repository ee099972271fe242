"""One loader against one hostile file, in a process of its own that is watched."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pooch
import pytest

from pflcore.errors import UserError
from support.hostile import ANYWHERE, FORMATS, Maker
from support.loaders import LOADERS, Loader
from support.official import unreachable

ROOM = 256  # MiB, of which loaders are told by PFL_MEMORY
MOST = 1024  # MiB that reading may take: pictures may have 100 million pixels, of four bytes and once more of three
PATIENCE = 60.0  # seconds, on a machine that does other things as well
_STOPPED = 4096  # MiB at which a process is ended, before it harms the machine
_LONGEST = 1000  # characters of a line that a person reads


@dataclass(frozen=True)
class Trial:
    """What a loader did with a file."""

    loader: str
    file: str
    seconds: float
    mebibytes: float
    said: str  # "" where it was read
    fault: str  # what must not happen; "" where nothing did


def trials(loaders: list[str], word: str) -> Iterator[Trial]:
    """Every loader with every file that may lie where it reads, as they end."""
    for name in loaders:
        loader = LOADERS[name]
        for file, maker in {"the good file": None, **ANYWHERE, **FORMATS[loader.format]}.items():
            if word in file:
                yield trial(name, loader, file, maker)


def trial(name: str, loader: Loader, file: str, maker: Maker | None) -> Trial:
    """Let a process read one file, and watch it."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        path = loader.write(data)
        if maker:
            maker(path)
        before = _below(Path(folder))
        here, there = multiprocessing.Pipe(duplex=False)
        start = time.perf_counter()
        process = multiprocessing.get_context("fork").Process(target=_read, args=(loader, path, there))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons would rather not fork beside threads
            process.start()
        there.close()
        ended = _watch(process, start)
        seconds = time.perf_counter() - start
        try:
            said, fault, mebibytes = here.recv() if not ended and here.poll() else ("", ended or "it was killed", 0.0)
        except EOFError:
            said, fault, mebibytes = "", f"it was killed ({process.exitcode})", 0.0
        if not fault and (left := _below(Path(folder)) - before) and "checkpoint" not in name:
            fault = f"it left {min(left)}"
    if not fault and mebibytes > MOST:
        fault = f"it took {mebibytes:,.0f} MiB"
    if not fault and ("\n" in said or len(said) > _LONGEST):
        fault = f"it said {len(said):,} characters: {said[:80]!r}"
    if not fault and not maker and said:
        fault = f"the good file was refused: {said}"
    return Trial(name, file, seconds, mebibytes, said, fault)


def _watch(process: multiprocessing.process.BaseProcess, start: float) -> str:
    """Why the process had to be ended; "" when it ended by itself."""
    reason = ""
    while process.is_alive() and not reason:
        process.join(0.02)
        if time.perf_counter() - start > PATIENCE:
            reason = f"it did not end within {PATIENCE:.0f} s"
        elif _resident(process.pid or 0) > _STOPPED:
            reason = f"it took more than {_STOPPED:,} MiB"
    if reason:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    return reason


def _resident(pid: int) -> float:
    """MiB of memory that a process has now."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize() / 2**20


def _below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.name != "lock"}


def _read(loader: Loader, path: Path, to: Connection) -> None:
    """In a process of its own: read, and send what was said, what went wrong, and MiB taken at most."""
    os.environ["PFL_MEMORY"] = str(ROOM / 1024)
    said = fault = ""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader.prepare(patch)
        patch.setattr(pooch, "retrieve", unreachable)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            loader.read(path)
        except UserError as error:
            said = str(error) or "an empty line"
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__}: {str(error)[:80]} ({Path(place.filename).name}:{place.lineno})"
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    to.send((said, fault, taken))
