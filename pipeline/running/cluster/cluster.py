"""Executing train stages on the nodes of a Ray cluster, and all others here.

Nodes share no files with this machine: :mod:`pipeline.dvc.remote` carries them. What a node made, and how far it
got, is in the remote before anybody here knows of it, so that neither the loss of a node nor that of this machine costs
more than the time since the last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pflcore import extensions
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.json_text import parse_json
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.compile.graph import Stage
from pipeline.compile.stage_code import code_of_run
from pipeline.dvc.finished import Finished
from pipeline.dvc.remote import Content, Missing, Remote
from pipeline.running.cluster.fleet import GIB, LOOK_EVERY, Fleet, Node, in_words, join, last_line
from pipeline.running.cluster.node import Order, Refused, perform
from pipeline.running.jobs import Ended, Event, Job
from pipeline.running.local import LocalPool
from pipeline.spec.records import read_run
from pipeline.spec.run import Run
from pipeline.spec.schema import Resources
from pipeline.workspace import RECORDS

SILENCE = 25.0  # seconds without a word after which a node counts as lost; it says something every few
_FORWARDED = ("PFL_CHECKPOINT_SECONDS",)


class Cluster:
    """A :class:`~pipeline.running.jobs.Pool` that trains on a Ray cluster.

    Args:
        address: Of the cluster, as `ray.init` takes it.
        remote: What its machines exchange files through.
        local: Takes the other stages.
        stages: The train stages, by address.
        resources: What each of them asks for, by address.
        jobs: How many runs at a time at most.

    Raises:
        UserError: Ray is not installed, or there is no cluster.
    """

    def __init__(
        self,
        address: str,
        remote: Remote,
        local: LocalPool,
        stages: Mapping[str, Stage],
        resources: Mapping[str, Resources],
        jobs: int | None = None,
    ) -> None:
        self.remote, self.local, self.stages = remote, local, stages
        self.resources = dict(resources)
        self.workspace = hashlib.sha256(f"{platform.node()}:{local.root}".encode()).hexdigest()[:12]
        self._ray = join(address)
        self._task = self._ray.remote(perform)
        self.fleet = Fleet(self._ray, jobs)
        self._at: dict[str, Node] = {}  # where each job under way has its place
        self._told: list[Event] = []
        self._telling = threading.Lock()
        self._uploading = threading.Lock()
        self._given: dict[str, tuple[int, Content]] = {}
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._begin(self._watch)
        if remote.withheld:
            line = (
                f"pfl: not sent to nodes, which need their own: {', '.join(remote.withheld)} of the remote {remote.url}"
            )
            print(line, file=sys.stderr)

    @property
    def capacity(self) -> int:
        least = min(
            self.resources.values(),
            key=lambda resources: (resources.gpus, resources.cpus, resources.memory),
            default=Resources(),
        )
        return self.local.capacity + self.fleet.room(least)

    def start(self, job: Job) -> str | None:
        if job.address not in self.stages:
            return self.local.start(job)
        try:
            node = self.fleet.place(self.resources[job.address])
        except UserError as error:
            self._tell(Ended(job.address, "failed", str(error)))
            return "no node"
        if not node:
            return None
        self._at[job.address] = node
        self._begin(lambda: self._see_to(job))
        return node.name

    def events(self, timeout: float) -> list[Event]:
        events = self._heard()
        return events + self.local.events(0) if events else self.local.events(timeout) + self._heard()

    def shrink(self, address: str) -> str:
        if address not in self.resources:
            return self.local.shrink(address)
        resources = self.resources[address]
        more = Resources(cpus=resources.cpus, gpus=min(1.0, 2 * resources.gpus), memory=2 * resources.memory)
        if more == resources or not any(node.holds(more) for node in self.fleet.usable):
            return ""
        self.resources[address] = more
        return f"with {in_words(more)}"

    def wake(self) -> None:
        self.local.wake()

    def close(self) -> None:
        self._closing.set()
        deadline = time.monotonic() + 2.0  # none of them is to speak to Ray after its end
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._ray.shutdown()  # which ends what the nodes do for this process
        self.local.close()

    def _see_to(self, job: Job) -> None:
        """One job from here to its end."""
        try:
            ended = self._collect(job) or self._send(self._order(job))
        except (UserError, OSError) as error:
            ended = Ended(job.address, "failed", str(error))
        except BaseException as error:
            ended = Ended(job.address, "failed", f"{type(error).__name__}: {last_line(error)}")
        self.fleet.give_back(self._at.pop(job.address), self.resources[job.address])
        if not self._closing.is_set():
            self._tell(ended)

    def _collect(self, job: Job) -> Ended | None:
        """Take what a node made from the remote; None when there is nothing."""
        result = self.remote.result(job.key, job.outs)
        if not result:
            return None
        try:
            for path, content in result.outs.items():
                self.remote.take(content, self.local.root / path)
        except Missing:  # cleared away since
            return None
        with suppress(ValueError, TypeError, KeyError):
            timing = parse_json(result.timing)
            facts = {name: timing.get(name, "") for name in ("device", "rounds", "machine")}
            facts["seconds"] = float(timing["seconds"])
            name = f"{self.stages[job.address].subject}.json"
            write_text(self.local.root / ".pfl/timings" / name, json.dumps(facts) + "\n")
        Finished(self.local.root, self.local.notes).note(job.address, job.key, job.outs)
        self.remote.drop_checkpoints(job.key)
        return Ended(job.address, "done", diverged=result.diverged)

    def _order(self, job: Job) -> Order:
        """A job as a node needs it; what it reads is in the remote then."""
        stage, root, resources = self.stages[job.address], self.local.root, self.resources[job.address]
        run = read_run(root / RECORDS, stage.subject)
        return Order(
            job=job,
            run=stage.subject,
            workspace=self.workspace,
            record=run.record,
            texts=own_sources(run, stage.seal),
            inputs={dep: self._give(dep) for dep in stage.deps},
            remote=self.remote.public,
            cpus=resources.cpus,
            gpus=resources.gpus,
            variables={name: os.environ[name] for name in _FORWARDED if name in os.environ},
        )

    def _give(self, name: str) -> Content:
        """Upload an artifact, once for all jobs that read it."""
        path = self.local.root / name
        with self._uploading:
            changed = path.stat().st_mtime_ns
            known = self._given.get(name)
            if not known or known[0] != changed:
                content = Content.of(path)
                self.remote.give(path, content)
                known = self._given[name] = changed, content
            return known[1]

    def _send(self, order: Order) -> Ended:
        """Let a node do it, or another if that one refuses."""
        job, resources = order.job, self.resources[order.job.address]
        while True:
            node = self._at[job.address]
            last = self._talk(order, node)
            if isinstance(last, Ended):
                break
            node.refused = f"{node.name}: {last.message}"
            _print(job.log, f"{node.refused}\n")
            other = None
            while not other:
                try:
                    other = self.fleet.place(resources, instead_of=node)
                except UserError:
                    return Ended(job.address, "failed", node.refused)
                if not other and self._closing.wait(LOOK_EVERY):
                    return Ended(job.address, "lost")
            self._at[job.address] = other
        if last.outcome == "done":
            return self._collect(job) or Ended(job.address, "lost", f"{node.name}: its result is not in the remote")
        return last

    def _talk(self, order: Order, node: Node) -> Ended | Refused:
        """Give a node a job, pass on what it tells, and return its last word."""
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        job, resources = order.job, self.resources[order.job.address]
        _print(job.log, f"--- on {node.name}\n")
        heard = 0.0
        try:
            words = self._task.options(
                num_cpus=resources.cpus,
                num_gpus=resources.gpus,
                memory=int(resources.memory * GIB) or None,
                num_returns="streaming",
                max_retries=0,  # the scheduler tries again, and somewhere else
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            ).remote(order)
            while not self._closing.is_set():
                if not self._ray.wait([words], timeout=0.5)[0]:
                    silent = heard and time.monotonic() - heard > SILENCE  # it may start late
                    if node.lost or silent:
                        self.fleet.lose(node)
                        with suppress(RayError):
                            self._ray.cancel(words, force=True)
                        break
                    continue
                word = self._ray.get(next(words))
                heard = time.monotonic()
                if isinstance(word, Ended | Refused):
                    return word
                _print(job.log, word) if isinstance(word, str) else self._tell(word)
        except OutOfMemoryError:
            return Ended(job.address, "memory", f"memory did not suffice on {node.name}")
        except RayTaskError as error:  # `perform` raises nothing: it could not even be imported
            return Refused(f"cannot run this project ({last_line(error)}); install it there")
        except (WorkerCrashedError, StopIteration):
            node.crashes += 1
            return Ended(job.address, "lost", f"its process on {node.name} is lost")
        except RayError as error:  # Ray knows of the loss some time before its list of nodes does
            _print(job.log, f"{str(error).partition('. ')[0].strip()}\n")
            self.fleet.lose(node)
        return Ended(job.address, "lost", f"{node.name} is lost")

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_EVERY):
            with suppress(Exception):  # the cluster's head does not answer; there is another look
                self.fleet.look()

    def _begin(self, act: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=act, daemon=True))
        self._threads[-1].start()

    def _tell(self, event: Event) -> None:
        with self._telling:
            self._told.append(event)
            first = len(self._told) == 1
        if first:
            self.wake()

    def _heard(self) -> list[Event]:
        with self._telling:
            events, self._told = self._told, []
        return events


def own_sources(run: Run, seal: str) -> dict[str, str]:
    """Return the study's own modules that train a run, path in the study → text. Nodes do not have them.

    Raises:
        UserError: The code has been edited since it was compiled.
    """
    code = Code(source_folder())
    fingerprints = {part: part.fingerprint(code) for part in code_of_run("train", run)}
    if "-".join(part.digest(fingerprint) for part, fingerprint in fingerprints.items()) != seal:
        raise UserError(f"{run.id}: its code was edited after it was compiled; type the same command again")
    texts = {}
    for name in (name for fingerprint in fingerprints.values() for name in code.names(fingerprint)):
        if name.startswith(f"{extensions.STUDY}."):
            path = extensions.modules()[name]
            texts[str(extensions.place(path))] = path.read_text(encoding="utf-8")
    return texts


def _print(log: Path, text: str) -> None:
    if text:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(text)
