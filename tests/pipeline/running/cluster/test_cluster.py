"""`pfl run --cluster`: a Ray cluster whose machines share nothing but a DVC remote, here a folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.own_parts import own_parts
from support.project import Project, make_project, spec, tree
from support.report_demo import RECORD

pytest.importorskip("ray")
from support.cluster_nodes import RayCluster, RayNode, free_port, stop

from pflcore.errors import UserError
from pipeline.compile.compiler import source_folder
from pipeline.compile.engine import Engine
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import code_of_run
from pipeline.running.cluster.fleet import Fleet, Node
from pipeline.running.cluster.node import Order, _other, variables
from pipeline.running.jobs import Job
from pipeline.spec.run import Run
from pipeline.spec.schema import Resources

ROUNDS = 200
METHODS = "{FedAvg: fedavg, FedPer: fedper}"
PATIENCE = 180.0  # seconds that nothing here needs


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two nodes, and a third whose code is another."""
    folder = tmp_path_factory.mktemp("cluster")
    for package in ("pflcore", "pipeline"):
        shutil.copytree(source_folder() / package, folder / "other" / package)
    changed = folder / "other/pflcore/engine/client.py"
    changed.write_text(changed.read_text() + "\nCHANGED = True\n")
    with RayCluster(folder / "nodes") as cluster:
        cluster.add("other", cpus=2, PYTHONPATH=str(folder / "other"))
        cluster.add("one")
        cluster.add("two")
        cluster.wait(3)
        yield cluster


def project_at(folder: Path, resources: str = "") -> Project:
    """A project with two runs of some seconds each, and a remote beside it."""
    folder.mkdir(parents=True)
    text = spec(METHODS, rounds=ROUNDS).replace("curve_every: 1", "curve_every: 10")
    project = make_project(folder, {"specs/tiny.yaml": text + resources})
    added = project.call("dvc", "remote", "add", "-q", "-d", "store", str(folder.with_name(f"{folder.name}-remote")))
    assert added.returncode == 0, added.stderr
    return project


def begin(project: Project, cluster: RayCluster) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["pfl", "run", "--cluster", cluster.address],
        cwd=project.root,
        env=project.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def wait_for(found: Callable[[], object], head: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end, "it does not happen"
        assert not head or head.poll() is None, "it is over before that"
        time.sleep(0.05)


def made(project: Project) -> dict[str, bytes]:
    return {path: text for path, text in tree(project.root).items() if path.startswith(("artifacts/", "reports/"))}


def logs(project: Project) -> str:
    return "".join(path.read_text() for path in sorted((project.root / ".pfl/logs").glob("*.train.log")))


def training(node: RayNode) -> list[psutil.Process]:
    """What a node has forked to train."""
    return [one for one in node.members() if "forkserver" in " ".join(one.cmdline())]


@pytest.mark.slow
def test_lost_machines_and_other_code_change_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    project, alone = project_at(tmp_path / "a"), project_at(tmp_path / "b")
    remote = tmp_path / "a-remote/pfl"

    def checkpoints() -> set[str]:
        return {path.name for path in remote.glob("checkpoints/*/*/*.safetensors")}

    head = begin(project, cluster)
    wait_for(checkpoints, head)
    stop(head)  # a lost head: what nodes do for it ends, what they have done remains
    wait_for(lambda: not any(training(node) for node in cluster.nodes))
    known = checkpoints()
    assert known
    assert "pflcore.engine.client is not the same there as here" in logs(project)

    head = begin(project, cluster)
    wait_for(lambda: checkpoints() - known, head)
    next(node for node in cluster.nodes if training(node)).kill()  # a lost node
    output, _ = head.communicate(timeout=PATIENCE)
    assert head.returncode == 0, output
    assert "continued from the checkpoint after round" in logs(project)
    assert alone.call("pfl", "run").returncode == 0
    assert made(project) == made(alone)

    assert not list(remote.glob("checkpoints/*/*/*")), "no checkpoints of what is over"
    results = [json.loads(path.read_text()) for path in remote.glob("results/*.json")]
    objects = {
        remote.parent / f"files/md5/{out['md5'][:2]}/{out['md5'][2:]}" for r in results for out in r["outs"].values()
    }
    assert len(results) == 2 and all(path.is_file() for path in objects)

    # The same workspace once more, without anything but the remote: nothing is trained again.
    again = project_at(tmp_path / "fresh/a")
    again.call("dvc", "remote", "modify", "store", "url", str(tmp_path / "a-remote"))
    done = again.call("pfl", "run", "--cluster", cluster.address)
    assert done.returncode == 0, done.stderr
    assert not list((again.root / ".pfl/logs").glob("*.train.log"))
    assert made(again) == made(alone)

    # What fits nowhere does not wait for ever.
    large = project_at(tmp_path / "c", "resources: {cpus: 64, memory: 1}\n")
    done = large.call("pfl", "run", "--cluster", cluster.address)
    assert done.returncode == 1
    assert "it asks for 64 CPUs, 1 GiB, and the largest node of the cluster" in done.stderr


@pytest.mark.slow
def test_nodes_are_sent_a_studys_own_parts(tmp_path: Path) -> None:
    """Two studies with another method under the same name, one after the other on the same node."""
    parts = own_parts()
    with RayCluster(tmp_path / "nodes") as cluster:
        cluster.add("one")
        cluster.wait(1)
        results = []
        for number, factor in enumerate(("1.0", "2.0")):
            files = parts | {"methods/_scaling.py": parts["methods/_scaling.py"].replace("1.0", factor)}
            there, here = (make_project(tmp_path / f"{place}{number}", files) for place in ("there", "here"))
            there.call("dvc", "remote", "add", "-q", "-d", "store", str(tmp_path / "remote"))
            done = there.call("pfl", "run", "--cluster", cluster.address)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "--- on one" in logs(there)
            assert here.call("pfl", "run").returncode == 0
            assert made(there) == made(here)
            results.append({path: text for path, text in made(there).items() if "/mine-" in path})
    assert results[0].keys() == results[1].keys() and results[0] != results[1]


@pytest.mark.matrix
def test_no_cluster_and_no_remote_are_one_line(tmp_path: Path) -> None:
    project = project_at(tmp_path / "a")
    done = project.call("pfl", "run", "--cluster", f"127.0.0.1:{free_port()}")
    assert done.returncode == 2
    assert "no Ray cluster answers there" in done.stderr and done.stderr.count("\n") == 1
    project.call("dvc", "remote", "remove", "store")
    done = project.call("pfl", "run", "--cluster", "127.0.0.1:1")
    assert done.returncode == 2 and "dvc remote add -d NAME URL" in done.stderr and done.stderr.count("\n") == 1


def test_a_node_needs_the_code_that_a_job_was_compiled_for(tmp_path: Path) -> None:
    for package in ("pflcore", "pipeline"):
        shutil.copytree(source_folder() / package, tmp_path / package)
    run, here = Run(RECORD), Code(source_folder())
    seal = "-".join(part.digest(part.fingerprint(here)) for part in code_of_run("train", run))

    def other(seal: str) -> str | None:
        job = Job("a", f"pfl stage train {run.id} --seal {seal}", "key", (), tmp_path / "log")
        return _other(Code(tmp_path), Order(job, run.id, "w", run.record, {}, {}, {}, 1, 0, {}))

    assert other(seal) is None and other(f"0{seal}") == "engine"
    method, errors = tmp_path / "pflcore/methods/simple.py", tmp_path / "pflcore/errors.py"
    text = method.read_text()
    method.write_text(f"{text}\nEDITED = 1\n")
    assert other(seal) == "method.fedavg"
    method.write_text(f"{text}\n# a comment\n")
    errors.write_text(errors.read_text() + "\nEDITED = 1\n")
    assert other(seal) == "pflcore.errors"
    Engine.on_disk(Code(tmp_path)).write(Code(tmp_path))
    assert other(seal) is None  # spelled otherwise, with the same results


class _Ray:
    def nodes(self) -> list[dict[str, object]]:
        return []


def _fleet(*nodes: Node, jobs: int | None = None) -> Fleet:
    fleet = Fleet(_Ray(), jobs)
    fleet.nodes = {node.id: node for node in nodes}
    return fleet


def test_a_node_shares_its_gpus_out() -> None:
    node = Node("a", "a", cpus=8, gpus=2, memory=16)
    assert [node.room(Resources(gpus=gpus)) for gpus in (0.25, 0.6, 1)] == [8, 2, 2]
    assert [node.room(Resources(cpus=cpus, memory=memory)) for cpus, memory in ((3, 0), (0.5, 5))] == [2, 3]
    assert node.take(Resources(gpus=0.6)) and node.take(Resources(gpus=1)) and not node.take(Resources(gpus=0.5))
    node.give_back(Resources(gpus=1))
    assert node.take(Resources(gpus=0.5))


def test_places_are_given_where_there_is_most_room_and_nowhere_else() -> None:
    small, large = Node("s", "small", cpus=1, gpus=0, memory=4), Node("l", "large", cpus=4, gpus=0, memory=4)
    fleet, one = _fleet(small, large, jobs=4), Resources()
    assert fleet.room(one) == 4
    assert [fleet.place(one) for _ in range(5)] == [large, small, large, large, None]
    fleet.give_back(large, one)
    large.refused = "large: other code"
    assert fleet.place(one, instead_of=large) is None  # there is none now, but small would do
    with pytest.raises(UserError, match="large: other code"):
        fleet.place(Resources(cpus=2))
    large.refused, large.lost = "", time.monotonic()
    assert fleet.place(Resources(cpus=2)) is None  # it may come back
    large.lost -= 1000
    with pytest.raises(UserError, match=r"it asks for 2 CPUs, and the largest node .* small, has 1 CPUs, 4 GiB"):
        fleet.place(Resources(cpus=2))
    small.lost = large.lost
    with pytest.raises(UserError, match="no nodes left"):
        fleet.place(one)


@pytest.mark.parametrize(
    ("cpus", "gpus", "expected"),
    [
        (1, 0, {"PFL_DEVICE": "cpu", "PFL_WORKERS": "1", "PFL_THREADS": "1"}),
        (2.5, 0, {"PFL_DEVICE": "cpu", "PFL_WORKERS": "2", "PFL_THREADS": "1"}),
        (0.5, 0.5, {"PFL_DEVICE": "cuda"}),
    ],
)
def test_what_a_run_has_been_given_is_in_its_environment(cpus: float, gpus: float, expected: dict[str, str]) -> None:
    job = Job("a", "pfl stage train a", "0", ("b",), Path("log"))
    order = Order(job, "a", "w", {}, {}, {}, {}, cpus, gpus, {"PFL_CHECKPOINT_SECONDS": "5"})
    assert variables(order, {}) == {**expected, "PFL_CHECKPOINT_SECONDS": "5"}
    assert variables(order, {"PFL_DEVICE": "tpu", "PFL_CHECKPOINT_SECONDS": "9"}) == {
        **expected,
        "PFL_DEVICE": "tpu",
        "PFL_CHECKPOINT_SECONDS": "9",
    }
