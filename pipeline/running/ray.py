"""Training on the nodes of a Ray cluster; all other stages run on this machine.

Ray sends this project's code (``runtime_env``) and each input (its object store) to a node, places the run, and returns
rounds, output, checkpoints and results as the task yields them. A run whose node is lost continues elsewhere from its
last checkpoint. Ray's own `max_retries` would not pass that checkpoint on, so the scheduler tries again.
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
POLL_EVERY = 0.1  # seconds between two polls of the nodes
GIB = 2**30
KEPT_CHECKPOINTS = 2  # the newest, and one in case that is damaged
CHECKPOINTS = ".pfl/checkpoints/*/round-*"


File = tuple[str, bytes]
"""A checkpoint, an output or a timing from a node: its path, relative to the workspace, and its content."""


class RayPool(LocalPool):
    """Trains on the Ray cluster at an address, at most `jobs` runs at a time; other stages use slots of this machine.

    `stages` has the train stages and `needs` the resources that each of them asks for, both by the stage's address.
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
        self.tasks: list[tuple[Job, Any]] = []  # jobs on nodes, each with Ray's generator of its messages
        self.refused: list[Event] = []
        self.inputs: dict[tuple[str, int], Any] = {}  # path and time of change → reference

    @property
    def capacity(self) -> int:
        return super().capacity + max(map(self._capacity_for, self.needs.values()), default=0)

    def free_slot(self, address: str) -> str | None:
        if address not in self.stages:
            return super().free_slot(address)
        capacity = self._capacity_for(self.needs[address])
        return "cluster" if not capacity or len(self.tasks) < min(capacity, self.jobs or capacity) else None

    def start(self, job: Job, place: str) -> None:
        if job.address not in self.stages:
            return super().start(job, place)
        need = self.needs[job.address]
        if not self._capacity_for(need):
            request = f"it asks for {need.cpus:g} CPUs, {need.gpus:g} GPUs and {need.memory:g} GiB"
            line = f"{request}, and no node of the cluster has as much; see `resources` in the spec"
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
        for job, messages in list(self.tasks):
            while (job, messages) in self.tasks and self.ray.wait([messages], timeout=0)[0]:
                message = self._next(job, messages)
                if isinstance(message, tuple):
                    with atomic_path(self.root / message[0]) as temporary:
                        temporary.write_bytes(message[1])
                    for old in self._checkpoints(job)[KEPT_CHECKPOINTS:]:
                        old.unlink(missing_ok=True)
                elif isinstance(message, str):
                    job.log.parent.mkdir(parents=True, exist_ok=True)
                    with job.log.open("a", encoding="utf-8") as file:
                        file.write(message)
                else:
                    events.append(message)
                if isinstance(message, Ended):
                    self.tasks.remove((job, messages))
                    if message.outcome == "done":
                        for path in self._checkpoints(job):
                            shutil.rmtree(path.parent, ignore_errors=True)
        return events

    def close(self) -> None:
        self.ray.shutdown()  # ends this process's tasks on the nodes
        super().close()

    def _capacity_for(self, need: Resources) -> int:
        """Return how many runs with these needs fit on the nodes if nothing else runs there."""
        request = {"CPU": need.cpus, "GPU": need.gpus, "memory": need.memory * GIB}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(min(int(node.get(name, 0) / value) for name, value in request.items() if value) for node in nodes)

    def _files(self, job: Job) -> dict[str, Any]:
        """Return the files that a node needs to train a run: path → content, or a Ray reference to it."""
        stage = self.stages[job.address]
        modules = extensions.modules().values()
        files: dict[str, Any] = {str(extensions.place(path)): path.read_bytes() for path in modules}
        files["pyproject.toml"] = b"[tool.pfl]\n"  # marks the stage's folder as its study, not one above
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

    def _next(self, job: Job, messages: Any) -> Event | File | str:
        """Return the next message of a node, or an event if its task failed or was lost."""
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

        try:
            return self.ray.get(next(messages))  # type: ignore[no-any-return]
        except OutOfMemoryError:
            return Ended(job.address, "memory", "memory did not suffice on its node")
        except RayTaskError as error:
            return Ended(job.address, "failed", f"its node cannot run this project ({_last_line(error)})")
        except (RayError, StopIteration) as error:
            return Ended(job.address, "lost", f"its node or process is lost ({type(error).__name__})")

    def _checkpoints(self, job: Job) -> list[Path]:
        """Return a run's checkpoints on this machine, newest first."""
        run = self.stages[job.address].subject
        paths = self.root.glob(f".pfl/checkpoints/{run}-????????/round-*.safetensors")
        return sorted(paths, key=lambda path: path.name, reverse=True)


def connect(address: str) -> Any:
    """Return Ray, connected to a cluster. Raises :class:`UserError` if Ray is not installed or no cluster answers."""
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # Ray reads it when imported; without it, calls may start a cluster
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--cluster needs Ray, which is not installed; run `pip install -e '.[cluster]'`") from None
    hint = "make this machine a part of the cluster by `ray start --address=HOST:PORT --num-cpus=0`, and give HOST:PORT"
    host, _, port = address.rpartition(":")
    try:
        if address != "auto":  # Ray would try a wrong address for minutes and could not be stopped
            socket.create_connection((host, int(port)), timeout=CONNECT_WITHIN).close()
    except (OSError, ValueError):
        raise UserError(f"--cluster {address}: no Ray cluster answers there; {hint}") from None
    with tempfile.TemporaryDirectory() as code:
        ignore = shutil.ignore_patterns("__pycache__")
        for package in ("pflcore", "pipeline"):
            shutil.copytree(source_folder() / package, Path(code, package), ignore=ignore)
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"working_dir": code})
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"--cluster {address}: {_last_line(error)}; {hint}") from None
    return ray


def train_on_node(job: Job, files: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Event | File | str]:
    """Execute a job on a node, in a temporary folder, as a local run would; yield its events, log, and files.

    Args:
        files: Path in the folder → content, or a Ray reference to it.
        variables: Environment variables, unless the node sets them.
    """
    import ray

    yield f"--- on {platform.node()}\n"
    with tempfile.TemporaryDirectory(prefix="pfl-") as folder:
        root = Path(folder)
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content if isinstance(content, bytes) else ray.get(content))

        def read(path: Path) -> File:
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
                    ended = event  # yielded last
                else:
                    yield event
            with suppress(OSError), log.open("rb") as file:
                file.seek(printed)
                text = file.read()
                printed += len(text)
                yield text.decode("utf-8", errors="replace")
            if new := {*root.glob(CHECKPOINTS)} - sent:
                sent |= new
                with suppress(FileNotFoundError):  # the training has replaced it by a newer one meanwhile
                    yield read(max(new, key=lambda path: path.name))
        if ended.outcome == "done":
            for path in (*(root / out for out in job.outs), *root.glob(".pfl/timings/*.json")):
                yield read(path)
        yield ended


@cache
def _pool() -> LocalPool:
    """Return the pool of this Ray worker; many jobs share its fork server, which has imported everything."""
    # Otherwise a child would first import the file that started this process, which is a part of Ray.
    with suppress(AttributeError):
        del sys.modules["__main__"].__file__
    return LocalPool(Path(), [Slot("node")], {})


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's message; messages of Ray have many lines."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
