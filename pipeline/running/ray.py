"""Training on the nodes of a Ray cluster, and all other stages here.

Ray ships this project's code (``runtime_env``) and each input (its object store), places a run, and brings
rounds, output, checkpoints and results home as a task yields them. A run whose node is lost is continued elsewhere from
its last checkpoint. Ray's own `max_retries` would not know of that one, so the scheduler tries again.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pflcore import extensions
from pflcore.errors import UserError
from pflcore.files import atomic_path
from pipeline.compile.compilation import Stage
from pipeline.compile.compiler import source_folder
from pipeline.compile.generated import to_json
from pipeline.dvc.program import executables
from pipeline.running.local import Ended, Event, Job, LocalPool, Slot
from pipeline.spec.run import read_record
from pipeline.spec.schema import Resources
from pipeline.workspace import RECORDS

CONNECT_WITHIN = 10.0  # seconds
POLL_EVERY = 0.1  # seconds between two looks for what nodes have yielded
GIB = 2**30
KEPT = 2  # checkpoints: the newest, and one to fall back to
CHECKPOINTS = ".pfl/checkpoints/*/round-*"


File = tuple[str, bytes]
"""A checkpoint, an output or a timing of a node: its path, relative to the workspace, and its content."""


class RayPool(LocalPool):
    """Trains on the Ray cluster at an address, at most `jobs` runs at a time; other stages have slots of this machine.

    `stages` are the train stages by address, `needs` what each of them asks for.
    """

    def __init__(
        self,
        root: Path,
        slots: Sequence[Slot],
        variables: Mapping[str, str],
        address: str,
        stages: Mapping[str, Stage],
        needs: Mapping[str, Resources],
        jobs: int | None,
    ) -> None:
        super().__init__(root, slots, variables)
        self.stages, self.needs, self.jobs = stages, needs, jobs
        self.ray = connect(address)
        self.tasks: list[tuple[Job, Any]] = []  # those under way, with what they yield
        self.refused: list[Event] = []
        self.inputs: dict[tuple[str, int], Any] = {}  # path and time of change → reference

    @property
    def capacity(self) -> int:
        return super().capacity + max(map(self._fitting, self.needs.values()), default=0)

    def free_slot(self, address: str) -> str | None:
        if address not in self.stages:
            return super().free_slot(address)
        most = self._fitting(self.needs[address])
        return "cluster" if not most or len(self.tasks) < min(most, self.jobs or most) else None

    def start(self, job: Job, place: str) -> None:
        if job.address not in self.stages:
            return super().start(job, place)
        need = self.needs[job.address]
        if not self._fitting(need):
            asked = f"it asks for {need.cpus:g} CPUs, {need.gpus:g} GPUs and {need.memory:g} GiB"
            line = f"{asked}, and no node of the cluster has as much; see `resources` in the spec"
            self.refused.append(Ended(job.address, "failed", line))
            return None
        options = {"num_cpus": need.cpus, "num_gpus": need.gpus, "memory": int(need.memory * GIB) or None}
        task = self.ray.remote(train_on_node).options(**options, num_returns="streaming", max_retries=0)
        variables = {"PFL_DEVICE": "cuda"} if need.gpus else {"PFL_DEVICE": "cpu", "PFL_THREADS": "1"}
        variables["PFL_WORKERS"] = str(max(1, int(need.cpus)))
        if seconds := os.environ.get("PFL_CHECKPOINT_SECONDS"):
            variables["PFL_CHECKPOINT_SECONDS"] = seconds
        self.tasks.append((job, task.remote(job, self._files(job), variables)))
        return None

    def events(self, timeout: float) -> list[Event]:
        events, self.refused = self.refused, []
        events += super().events(min(timeout, POLL_EVERY) if self.tasks else timeout)
        for job, yields in list(self.tasks):
            while (job, yields) in self.tasks and self.ray.wait([yields], timeout=0)[0]:
                message = self._next(job, yields)
                if isinstance(message, tuple):
                    with atomic_path(self.root / message[0]) as temporary:
                        temporary.write_bytes(message[1])
                    for old in self._checkpoints(job)[KEPT:]:
                        old.unlink(missing_ok=True)
                elif isinstance(message, str):
                    job.log.parent.mkdir(parents=True, exist_ok=True)
                    with job.log.open("a", encoding="utf-8") as file:
                        file.write(message)
                else:
                    events.append(message)
                if isinstance(message, Ended):
                    self.tasks.remove((job, yields))
                    if message.outcome == "done":
                        for path in self._checkpoints(job):
                            shutil.rmtree(path.parent, ignore_errors=True)
        return events

    def close(self) -> None:
        self.ray.shutdown()  # which ends what the nodes do for this process
        super().close()

    def _fitting(self, need: Resources) -> int:
        """Return how many such runs the nodes can hold when they are empty."""
        asked = {"CPU": need.cpus, "GPU": need.gpus, "memory": need.memory * GIB}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(min(int(node.get(name, 0) / value) for name, value in asked.items() if value) for node in nodes)

    def _files(self, job: Job) -> dict[str, Any]:
        """Return what a node needs to train a run: path → content, or a reference to it."""
        stage = self.stages[job.address]
        files: dict[str, Any] = {str(extensions.place(one)): one.read_bytes() for one in extensions.modules().values()}
        files["pyproject.toml"] = b"[tool.pfl]\n"  # lets a stage take its folder for its study, and none above
        record = read_record(self.root / RECORDS, stage.subject)
        files[RECORDS] = to_json({stage.subject: record}, 1).encode()
        for path in self._checkpoints(job):
            files[path.relative_to(self.root).as_posix()] = path.read_bytes()
        for name in stage.deps:
            key = name, (self.root / name).stat().st_mtime_ns
            if key not in self.inputs:
                self.inputs[key] = self.ray.put((self.root / name).read_bytes())
            files[name] = self.inputs[key]
        return files

    def _next(self, job: Job, yields: Any) -> Event | File | str:
        """Return what a node has yielded, or how its task has ended instead."""
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

        try:
            return self.ray.get(next(yields))  # type: ignore[no-any-return]
        except OutOfMemoryError:
            return Ended(job.address, "memory", "memory did not suffice on its node")
        except RayTaskError as error:
            return Ended(job.address, "failed", f"its node cannot run this project ({_last_line(error)})")
        except (RayError, StopIteration) as error:
            return Ended(job.address, "lost", f"its node or process is lost ({type(error).__name__})")

    def _checkpoints(self, job: Job) -> list[Path]:
        """Return a run's checkpoints here, newest first."""
        run = self.stages[job.address].subject
        found = self.root.glob(f".pfl/checkpoints/{run}-????????/round-*.safetensors")
        return sorted(found, key=lambda path: path.name, reverse=True)


def connect(address: str) -> Any:
    """Return Ray, connected to a cluster. Raise :class:`UserError` when it is not installed, or nobody answers."""
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # read when Ray is imported: nothing is to start a cluster here
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--cluster needs Ray, which is not installed; run `pip install -e '.[cluster]'`") from None
    join = "make this machine a part of the cluster by `ray start --address=HOST:PORT --num-cpus=0`, and give HOST:PORT"
    host, _, port = address.rpartition(":")
    try:
        if address != "auto":  # a wrong address would be tried for minutes, and nothing here could stop that
            socket.create_connection((host, int(port)), timeout=CONNECT_WITHIN).close()
    except (OSError, ValueError):
        raise UserError(f"--cluster {address}: no Ray cluster answers there; {join}") from None
    with tempfile.TemporaryDirectory() as code:
        for package in ("pflcore", "pipeline"):
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source_folder() / package, Path(code, package), ignore=unwanted)
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"working_dir": code})
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"--cluster {address}: {_last_line(error)}; {join}") from None
    return ray


def train_on_node(job: Job, files: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Event | File | str]:
    """Execute a job on a node as a local run would, in a folder of its own; yield how it goes and what it makes.

    Args:
        files: Path in the folder → content, or a reference to it.
        variables: Of its environment, where the node does not set them.
    """
    import ray

    yield f"--- on {platform.node()}\n"
    with tempfile.TemporaryDirectory(prefix="pfl-") as folder:
        root = Path(folder)
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content if isinstance(content, bytes) else ray.get(content))

        def made(path: Path) -> File:
            return path.relative_to(root).as_posix(), path.read_bytes()

        log = root / "log"
        environment = {"PATH": executables()}
        for name, value in variables.items():
            environment[name] = os.environ.get(name, value)
        pool = _pool()
        pool.root = root
        pool.variables = environment
        pool.start(replace(job, log=log), "node")
        sent = {*root.glob(CHECKPOINTS)}
        printed = 0  # bytes of the log
        ended: Ended | None = None
        while not ended:
            for event in pool.events(1.0):
                if isinstance(event, Ended):
                    ended = event  # the last that is yielded
                else:
                    yield event
            with suppress(OSError), log.open("rb") as file:
                file.seek(printed)
                text = file.read()
                printed += len(text)
                yield text.decode("utf-8", errors="replace")
            if new := {*root.glob(CHECKPOINTS)} - sent:
                sent |= new
                with suppress(FileNotFoundError):  # training has gone on, and there is a newer one
                    yield made(max(new, key=lambda path: path.name))
        if ended.outcome == "done":
            for path in (*(root / out for out in job.outs), *root.glob(".pfl/timings/*.json")):
                yield made(path)
        yield ended


@cache
def _pool() -> LocalPool:
    """Return this process's pool: what it forks from has imported everything and serves many jobs."""
    # A child would first import the file that this process was started from, which is a part of Ray.
    with suppress(AttributeError):
        del sys.modules["__main__"].__file__
    return LocalPool(Path(), [Slot("node")], {})


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's message; Ray's have many."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
