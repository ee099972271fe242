"""What a node of a cluster does with a job: fetch what it needs, execute it as a local run would, hand in the outputs.

A node keeps a folder of its own for each workspace that sends it work, ``$PFL_NODE_HOME/<hash>``, laid out like the
workspace. Inputs stay there for later jobs. Everything else passes through the DVC remote, so that another machine can
go on from the last checkpoint should this one be lost.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from filelock import FileLock

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.registry import use_study
from pipeline.compile.compiler import source_folder
from pipeline.compile.engine import Engine
from pipeline.compile.fingerprint import Code
from pipeline.compile.serialise import to_json
from pipeline.compile.stage_code import code_of_run
from pipeline.dvc.finished import Finished
from pipeline.dvc.program import executables
from pipeline.dvc.remote import Content, Remote, StoredResult
from pipeline.running.jobs import Ended, Event, Job, Slot
from pipeline.running.local import LocalPool
from pipeline.spec.run import Run
from pipeline.workspace import RECORDS

BEAT = 3.0  # seconds after which a node that has nothing to tell says so
MIRROR_EVERY = 1.0  # seconds between two looks for new checkpoints
KEPT = 2  # checkpoints in the remote: the newest, and one to fall back to
_MARKER = "[tool.pfl]\n"  # lets a stage take this folder for its study, and none above
_CHECKPOINT = re.compile(r"round-\d+-[0-9a-f]{16}\.safetensors")


@dataclass(frozen=True)
class Order:
    """A job with all that a node needs to know about it.

    Attributes:
        job: The stage.
        run: What it trains.
        workspace: Stands for the workspace it belongs to.
        record: The settings of the run.
        texts: The study's own modules, by path.
        inputs: Artifacts that it reads, by path.
        remote: The settings of the remote without secrets: arguments of tasks pass through memory and disks of others.
        cpus, gpus: What it has been given.
        variables: Of its environment, as far as the node does not set them.
    """

    job: Job
    run: str
    workspace: str
    record: Mapping[str, Any]
    texts: Mapping[str, str]
    inputs: Mapping[str, Content]
    remote: Mapping[str, Any]
    cpus: float
    gpus: float
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Refused:
    """This node cannot do such a job, others may. `message` is one line."""

    message: str


Said = Event | Refused | str
"""What a node says: events, pieces of the log (empty ones as a sign of life), or that it will not."""


def perform(order: Order) -> Iterator[Said]:
    """Execute a job, telling how it goes; the last word is ``Ended`` or ``Refused``. Never silent for long."""
    said: SimpleQueue[Said] = SimpleQueue()
    threading.Thread(target=_work, args=(order, said), daemon=True).start()
    while True:
        try:
            word = said.get(timeout=BEAT)
        except Empty:
            word = ""
        yield word
        if isinstance(word, Ended | Refused):
            return


def node_folder(workspace: str) -> Path:
    """Where this node works for a workspace."""
    home = os.environ.get("PFL_NODE_HOME")
    return (Path(home) if home else Path.home() / ".cache/pfl/node") / workspace


def variables(order: Order, environment: Mapping[str, str]) -> dict[str, str]:
    """What a job's processes see in their environment beside the node's own, which has the last word."""
    given = dict(order.variables)
    if order.gpus:
        given |= {"PFL_DEVICE": "cuda"}
    else:
        given |= {"PFL_DEVICE": "cpu", "PFL_WORKERS": str(max(1, int(order.cpus))), "PFL_THREADS": "1"}
    return {name: environment.get(name) or value for name, value in given.items()}


def _work(order: Order, said: SimpleQueue[Said]) -> None:
    try:
        _execute(order, said)
    except UserError as error:
        said.put(Ended(order.job.address, "failed", str(error)))
    except BaseException as error:
        said.put(traceback.format_exc())
        line = next(iter(str(error).splitlines()), "")
        said.put(Ended(order.job.address, "failed", f"{type(error).__name__}: {line}"))


def _execute(order: Order, said: SimpleQueue[Said]) -> None:
    """Raises :class:`UserError` for anything that is wrong with the remote."""
    folder, remote = node_folder(order.workspace), Remote(order.remote)
    for path, text in {**order.texts, "pyproject.toml": _MARKER}.items():
        write_text(folder / path, text)
    use_study(folder)
    if other := _other(Code(source_folder()), order):
        said.put(Refused(f"{other} is not the same there as here; install the same version of the project"))
        return
    records = folder / RECORDS
    with FileLock(_lock(records)):
        known = json.loads(records.read_text(encoding="utf-8")) if records.is_file() else {}
        write_text(records, to_json({**known, order.run: order.record}, 1) + "\n")
    pool = _pool(folder, variables(order, os.environ))
    log = folder / ".pfl/logs" / f"{order.run}.{os.getpid()}.log"
    log.unlink(missing_ok=True)
    for path, content in order.inputs.items():
        with FileLock(_lock(folder / path)):  # another job may be fetching it
            remote.take(content, folder / path)
    mirror = _Mirror(remote, order.job.key, folder / ".pfl/checkpoints", order.run)
    mirror.fetch()
    with mirror:
        ended = _follow(pool, replace(order.job, log=log), said)
    log.unlink(missing_ok=True)
    if ended.outcome == "done":
        outs = {path: Content.of(folder / path) for path in order.job.outs}
        for path, content in outs.items():
            remote.give(folder / path, content)
        timing = folder / ".pfl/timings" / f"{order.run}.json"
        remote.report(order.job.key, StoredResult(outs, ended.diverged, timing.read_text() if timing.is_file() else ""))
        remote.drop_checkpoints(order.job.key)
        for path in outs:  # they are in the remote; only what other jobs read is kept
            (folder / path).unlink()
        Finished(folder, pool.notes).forget(order.job.address)
    said.put(ended)


def _other(code: Code, order: Order) -> str | None:
    """Return what of the code that a job was compiled for is not so on this node."""
    if edited := Engine.recorded(code).edited(code):
        return edited
    digests = order.job.command.split()[-1].split("-")
    parts = code_of_run("train", Run(dict(order.record)))
    there = zip(parts, digests, strict=True)
    return next((part.name for part, digest in there if part.digest(part.fingerprint(code)) != digest), None)


def _follow(pool: LocalPool, job: Job, said: SimpleQueue[Said]) -> Ended:
    """Execute a stage, pass on what it tells and prints."""
    pool.start(job)
    printed = 0
    while True:
        events = pool.events(1.0)
        with suppress(OSError), job.log.open("rb") as file:
            file.seek(printed)
            if text := file.read():
                printed += len(text)
                said.put(text.decode("utf-8", errors="replace"))
        for event in events:
            if isinstance(event, Ended):
                return event
            said.put(event)


_warm: list[LocalPool] = []  # this process's pool: what it forks from has imported everything and serves many jobs


def _pool(folder: Path, given: dict[str, str]) -> LocalPool:
    notes = folder / ".pfl/finished"
    if not _warm:
        # A child would first import the file that this process was started from, which is a part of Ray.
        with suppress(AttributeError):
            del sys.modules["__main__"].__file__
        _warm.append(LocalPool(folder, notes, [Slot(platform.node())], {}))
    pool = _warm[0]
    pool.root, pool.notes, pool.variables = folder, notes, {"PATH": executables(), **given}
    return pool


def _lock(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.lock")


class _Mirror:
    """Copies a run's checkpoints to the remote while it trains.

    Args:
        remote: Where to.
        key: Of the job.
        folder: The checkpoints of all runs, a folder for each.
        run: The run.
    """

    def __init__(self, remote: Remote, key: str, folder: Path, run: str) -> None:
        self.remote, self.key, self.folder = remote, key, folder
        self._mine = re.compile(re.escape(run) + "-[0-9a-f]{8}")
        self._there: list[str] = []  # oldest first
        self._seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def fetch(self) -> None:
        """Take those that another node has left, and this one does not have."""
        self._seen = set(self._present())  # of this node's own only what is still to come goes to the remote
        for name in sorted(self.remote.checkpoints(self.key), key=_file):
            if self._mine.fullmatch(name.partition("/")[0]):
                if not (self.folder / name).exists():
                    with suppress(FileNotFoundError):
                        self.remote.take_checkpoint(self.key, name, self.folder / name)
                self._there.append(name)
                self._seen.add(name)

    def __enter__(self) -> _Mirror:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(MIRROR_EVERY):
            new = [name for name in self._present() if name not in self._seen]
            self._seen.update(new)
            for name in new[-KEPT:]:
                try:
                    self.remote.give_checkpoint(self.key, name, self.folder / name)
                except FileNotFoundError:  # training has gone on, and there is a newer one
                    continue
                except UserError:  # training goes on without; the next one may come through
                    self._seen.discard(name)
                    time.sleep(MIRROR_EVERY)
                    continue
                self._there.append(name)
            for name in self._there[:-KEPT]:
                with suppress(UserError):
                    self.remote.drop_checkpoint(self.key, name)
            del self._there[:-KEPT]

    def _present(self) -> list[str]:
        """``<folder>/<file>`` of what is complete here, oldest first."""
        files = [
            f"{path.parent.name}/{path.name}"
            for path in self.folder.glob("*/round-*")
            if _CHECKPOINT.fullmatch(path.name) and self._mine.fullmatch(path.parent.name)
        ]
        return sorted(files, key=_file)


def _file(name: str) -> str:
    return name.partition("/")[2]
