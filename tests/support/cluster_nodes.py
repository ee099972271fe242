"""A Ray cluster on this machine: a head without resources, and nodes that share nothing but the network."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

RAY = str(Path(sys.executable).with_name("ray"))
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "PFL_CHECKPOINT_SECONDS": "0", "PFL_THREADS": "1"}


@dataclass
class RayNode:
    """One ``ray start`` and what it started."""

    process: subprocess.Popen[bytes]
    home: Path

    def kill(self) -> None:
        """As when the machine loses power: everything at once."""
        everyone = self.members()
        for member in everyone:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(everyone, timeout=10)
        self.process.wait()

    def members(self) -> list[psutil.Process]:
        """Its processes."""
        with suppress(psutil.NoSuchProcess):
            me = psutil.Process(self.process.pid)
            return [me, *me.children(recursive=True)]
        return []


@dataclass
class RayCluster:
    """A cluster, ended with the block.

    Attributes:
        folder: Of the nodes' own folders.
    """

    folder: Path
    temp: Path = field(init=False)
    nodes: list[RayNode] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> RayCluster:
        self.port = free_port()
        self.temp = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # short: Ray keeps sockets there
        self._start("head", "--head", f"--port={self.port}", "--num-cpus=0", "--num-gpus=0")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self
            time.sleep(0.1)
        raise AssertionError("the cluster's head did not start")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in reversed(self.nodes):
            node.kill()
        shutil.rmtree(self.temp, ignore_errors=True)

    def add(self, name: str, cpus: int = 1, **environment: str) -> RayNode:
        """Start a node."""
        return self._start(name, f"--address={self.address}", f"--num-cpus={cpus}", "--num-gpus=0", **environment)

    def wait(self, count: int) -> None:
        """Until so many nodes beside the head have registered."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            status = subprocess.run(
                [RAY, "status", f"--address={self.address}"], capture_output=True, text=True, check=False
            )
            if sum(line.strip().startswith("1 node_") for line in status.stdout.splitlines()) > count:
                return
            time.sleep(0.5)
        raise AssertionError("the cluster did not start")

    def _start(self, name: str, *arguments: str, **environment: str) -> RayNode:
        home = self.folder / name
        home.mkdir(parents=True)
        # Of nodes on one machine that start at once, those that shared a folder of Ray's would take each other's names.
        temp = f"--temp-dir={self.temp / name}"
        own = ["--block", "--disable-usage-stats", "--object-store-memory=80000000", temp]
        if "--head" in arguments:
            own.append("--include-dashboard=false")
        with (home / "ray.log").open("wb") as log:
            process = subprocess.Popen(
                [RAY, "start", *arguments, *own, f"--node-name={name}"],
                cwd=home,
                env={**os.environ, **_QUIET, "PFL_NODE_HOME": str(home / "work"), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.nodes.append(RayNode(process, home))
        return self.nodes[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(process: subprocess.Popen[str]) -> None:
    """SIGKILL, which leaves it no time for anything."""
    process.send_signal(signal.SIGKILL)
    process.communicate()
