"""A Ray cluster on this machine: a head without resources, and nodes that share nothing but the network."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress

import psutil

from support.project import wait_for

RAY = (sys.executable, "-m", "ray.scripts.scripts")


class RayNode(subprocess.Popen):
    """One ``ray start`` and what it started."""

    def kill(self):
        """End everything at once, as when the machine loses power."""
        with suppress(psutil.NoSuchProcess):
            me = psutil.Process(self.pid)
            everyone = [me, *me.children(recursive=True)]
            for member in everyone:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            psutil.wait_procs(everyone, timeout=10)
        self.wait()


class RayCluster:
    """A cluster, ended with the block; `folder` has the nodes' own folders."""

    def __init__(self, folder):
        self.folder, self.nodes = folder, []

    def __enter__(self):
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.temp = tempfile.mkdtemp(prefix="r", dir="/tmp")  # short: Ray keeps sockets there
        self._start("head", "--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
        self.wait(0)
        return self

    def __exit__(self, *_):
        for node in reversed(self.nodes):
            node.kill()
        shutil.rmtree(self.temp, ignore_errors=True)

    def add(self, name):
        """Start a node with one core."""
        self._start(name, f"--address={self.address}", "--num-cpus=1")

    def wait(self, count):
        """Wait until so many nodes beside the head have registered."""
        command = [*RAY, "status", f"--address={self.address}"]

        def registered():
            status = subprocess.run(command, capture_output=True, text=True).stdout
            return sum(line.strip().startswith("1 node_") for line in status.splitlines()) - 1

        wait_for(lambda: registered() >= count)

    def _start(self, name, *arguments):
        home = self.folder / name
        home.mkdir(parents=True)
        # Of nodes on one machine that start at once, those that shared a folder of Ray's would take each other's names.
        own = ["--num-gpus=0", "--block", "--disable-usage-stats", "--object-store-memory=80000000"]
        command = [*RAY, "start", *arguments, *own, f"--temp-dir={self.temp}/{name}", f"--node-name={name}"]
        with (home / "ray.log").open("wb") as log:
            how = {"stdout": log, "stderr": subprocess.STDOUT, "env": {**os.environ, "PFL_THREADS": "1"}}
            self.nodes.append(RayNode(command, cwd=home, start_new_session=True, **how))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
