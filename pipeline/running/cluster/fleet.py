"""The nodes of a Ray cluster, and which of them takes a run.

That is decided here and not by Ray, since only here is known which nodes have another version of the code, and what to
say of a run that fits nowhere.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from typing import Any

from pflcore.errors import UserError
from pipeline.spec.schema import Resources

JOIN_WITHIN = 30.0  # seconds in which a cluster must answer, which takes a busy machine ten
PATIENCE = 60.0  # seconds that a run waits for a lost node to come back when no other is large enough
LOOK_EVERY = 1.0  # seconds between two looks at who belongs to the cluster
GIB = 2**30


@dataclass
class Node:
    """A machine of the cluster, and what is left of it.

    Attributes:
        lost: When it was found to be gone; 0 while it is there.
        refused: Why it cannot be used, in one line.
        crashes: How often a process has vanished there.
    """

    id: str
    name: str
    cpus: float
    gpus: int
    memory: float
    lost: float = 0.0
    refused: str = ""
    crashes: int = 0
    taken: list[tuple[Resources, int | None]] = field(default_factory=list)

    @property
    def load(self) -> float:
        """Runs per core."""
        return len(self.taken) / max(self.cpus, 1.0)

    def holds(self, resources: Resources) -> bool:
        """Whether a run would fit, were there no others."""
        return resources.cpus <= self.cpus and resources.gpus <= self.gpus and resources.memory <= self.memory

    def take(self, resources: Resources) -> bool:
        """Set resources apart; False when there is no room."""
        cpus = self.cpus - sum(other.cpus for other, _ in self.taken)
        memory = self.memory - sum(other.memory for other, _ in self.taken)
        free = (gpu for gpu in range(self.gpus) if 1.0 - self._used(gpu) >= resources.gpus - 1e-9)
        gpu = next(free, None) if resources.gpus else None
        if cpus < resources.cpus or memory < resources.memory or (resources.gpus and gpu is None):
            return False
        self.taken.append((resources, gpu))
        return True

    def give_back(self, resources: Resources) -> None:
        """Undo a :meth:`take`."""
        self.taken.remove(next(taken for taken in self.taken if taken[0] == resources))

    def room(self, resources: Resources) -> int:
        """How many such runs it can hold when it is empty."""
        empty, count = Node(self.id, self.name, self.cpus, self.gpus, self.memory), 0
        while empty.take(resources):
            count += 1
        return count

    def _used(self, gpu: int) -> float:
        return sum(resources.gpus for resources, at in self.taken if at == gpu)


class Fleet:
    """All nodes. To be used from any thread.

    Args:
        ray: Connected to the cluster.
        jobs: How many runs at a time at most.
    """

    def __init__(self, ray: Any, jobs: int | None = None) -> None:
        self.jobs = jobs
        self.nodes: dict[str, Node] = {}
        self._ray = ray
        self._lock = threading.Lock()
        self.look()

    @property
    def usable(self) -> list[Node]:
        """Nodes that are there and have not refused."""
        return [node for node in list(self.nodes.values()) if not node.lost and not node.refused]

    def look(self) -> None:
        """Who belongs to the cluster now."""
        nodes = self._ray.nodes()
        with self._lock:
            for facts in nodes:
                known = self.nodes.get(facts["NodeID"])
                if facts["Alive"] and not known:
                    self.nodes[facts["NodeID"]] = _node(facts)
                elif not facts["Alive"] and known and not known.lost:
                    known.lost = time.monotonic()
                elif facts["Alive"] and known and known.lost and time.monotonic() - known.lost > PATIENCE:
                    known.lost = 0.0  # it was silent only

    def lose(self, node: Node) -> None:
        """A node is gone, or does not answer."""
        node.lost = node.lost or time.monotonic()

    def room(self, resources: Resources) -> int:
        """How many such runs fit at the same time."""
        room = sum(node.room(resources) for node in self.usable)
        return min(room, self.jobs or room)

    def place(self, resources: Resources, instead_of: Node | None = None) -> Node | None:
        """Room for a run on some node, or None when there is none now.

        Args:
            resources: What it needs.
            instead_of: The node that it has a place on, which is given back in exchange.

        Raises:
            UserError: There will be none: the run is too large, or no node can be used.
        """
        with self._lock:
            running = sum(len(node.taken) for node in self.nodes.values()) - bool(instead_of)
            if self.jobs and running >= self.jobs:
                return None
            usable = self.usable
            for node in sorted(usable, key=lambda node: (node.crashes, node.load, -node.cpus)):
                if node.take(resources):
                    if instead_of:
                        instead_of.give_back(resources)
                    return node
            now = time.monotonic()
            awaited = [node for node in self.nodes.values() if node.lost and now - node.lost < PATIENCE]
            if any(node.holds(resources) for node in (*usable, *awaited)):
                return None
            refused = [node.refused for node in self.nodes.values() if node.refused and not node.lost]
        if refused:
            raise UserError(refused[0])
        if not usable:
            raise UserError("the cluster has no nodes left; start some with `ray start --address=…`")
        largest = max(usable, key=lambda node: (node.gpus if resources.gpus else 0, node.cpus, node.memory))
        raise UserError(
            f"it asks for {in_words(resources)}, and the largest node of the cluster, {largest.name}, has "
            f"{in_words(largest)}; see `resources` in the spec"
        )

    def give_back(self, node: Node, resources: Resources) -> None:
        """Give up a place."""
        with self._lock:
            node.give_back(resources)


def join(address: str) -> Any:
    """Ray, connected to a cluster. Raises :class:`UserError` when it is not installed, or nobody answers."""
    # Read when Ray is imported: nothing is to start a cluster here after this one has been left.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--cluster needs Ray, which is not installed; run `pip install -e '.[cluster]'`") from None
    member = "`ray start --address=HOST:PORT --num-cpus=0`"
    if address.startswith("ray://"):
        raise UserError(f"--cluster {address}: make this machine a part of the cluster by {member}, and give HOST:PORT")
    # A wrong address would be tried for minutes, and nothing in this process could stop that.
    where = [] if address == "auto" else [f"--address={address}"]
    try:
        probe = [sys.executable, "-m", "ray.scripts.scripts", "status", *where]
        answer = subprocess.run(probe, capture_output=True, timeout=JOIN_WITHIN, check=False).returncode
    except subprocess.TimeoutExpired:
        late = f"no Ray cluster answers there within {JOIN_WITHIN:.0f} s"
        raise UserError(f"--cluster {address}: {late}; is the address right, or this machine overloaded?") from None
    if answer:
        raise UserError(f"--cluster {address}: no Ray cluster answers there; start one with `ray start --head`")
    with suppress(AttributeError):  # it prints what becomes of nodes, several lines each; here that is told otherwise
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        with chdir("/"):  # nodes would import from the folder that this process is in, if they have such a one
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"--cluster {address}: {last_line(error)}; {member} here makes this machine one of it"
        ) from None
    return ray


def _node(facts: Mapping[str, Any]) -> Node:
    has, name = facts["Resources"], facts["NodeName"]
    if name == facts["NodeManagerAddress"]:
        name = facts["NodeManagerHostname"]
    return Node(facts["NodeID"], name, has.get("CPU", 0.0), int(has.get("GPU", 0)), has.get("memory", 0.0) / GIB)


def in_words(has: Resources | Node) -> str:
    """What is asked for, or is there."""
    parts = [f"{has.cpus:g} CPUs", f"{has.gpus:g} GPUs", f"{has.memory:.3g} GiB"]
    return ", ".join(part for part in parts if not part.startswith("0 ")) or "nothing"


def last_line(error: BaseException) -> str:
    """Of an error's message; Ray's have many."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
