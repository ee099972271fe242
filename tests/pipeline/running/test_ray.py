"""`pfl run --cluster`: a Ray cluster whose machines share nothing but the network."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress

import psutil
import pytest
from support.own_parts import own_parts
from support.project import PATIENCE, at_work, make_project, results, spec, wait_for

pytest.importorskip("ray")
TWO = spec("{FedAvg: fedavg, FedPer: fedper}", rounds=200).replace("curve_every: 1", "curve_every: 10")  # some seconds

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
    """A head without resources, and nodes that share nothing but the network; ended with the block.

    `folder` has the nodes' own folders.
    """

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


def logs(project):
    return "".join(path.read_text() for path in sorted((project.root / ".pfl/logs").glob("*.train.log")))


@pytest.mark.slow
def test_lost_machines_change_nothing(tmp_path):
    project, alone = (make_project(tmp_path / name, {"specs/tiny.yaml": TWO}) for name in "ab")

    def checkpoints():
        return set(project.root.glob(".pfl/checkpoints/*/round-*.safetensors"))

    with RayCluster(tmp_path / "nodes") as cluster:
        for name in ("one", "two"):
            cluster.add(name)
        cluster.wait(2)
        command = ("pfl", "run", "--cluster", cluster.address)
        with at_work(project, *command) as head:
            wait_for(lambda: len({path.parent for path in checkpoints()}) == 2, head)
            head.kill()  # a lost head: what nodes do for it ends, what came home remains
        known = checkpoints()
        with at_work(project, *command) as head:
            wait_for(lambda: checkpoints() - known, head)
            cluster.nodes[-1].kill()  # a lost node
            output, _ = head.communicate(timeout=PATIENCE)
        assert head.returncode == 0, output
        assert "trying again" in output and "continued from the checkpoint after round" in logs(project)
        assert not checkpoints() and alone.call("pfl", "run").returncode == 0
        assert results(project) == results(alone) and "up to date" in project.call("dvc", "status").stdout
        # What fits nowhere does not wait for ever.
        done = make_project(tmp_path / "c", {"specs/tiny.yaml": f"{TWO}resources: {{cpus: 64}}\n"}).call(*command)
        assert done.returncode == 1 and "it asks for 64 CPUs" in done.stderr
        # A study's own parts travel with a run: two studies with another method under the same name.
        parts, own = own_parts(), []
        for factor in ("1.0", "2.0"):
            files = parts | {"methods/_scaling.py": parts["methods/_scaling.py"].replace("1.0", factor)}
            there, here = (make_project(tmp_path / f"{place}{factor}", files) for place in ("there", "here"))
            there.succeed(*command)
            here.succeed("pfl", "run")
            assert "--- on " in logs(there)
            assert results(there) == results(here)
            own.append({path: text for path, text in results(there).items() if "/mine-" in path})
        assert own[0].keys() == own[1].keys() and own[0] != own[1]
    shutil.rmtree(tmp_path / "nodes", ignore_errors=True)


@pytest.mark.matrix
def test_no_cluster_is_one_line(tmp_path):
    done = make_project(tmp_path).call("pfl", "run", "--cluster", f"127.0.0.1:{free_port()}")
    assert done.returncode == 2
    assert "no Ray cluster answers there" in done.stderr and done.stderr.count("\n") == 1
