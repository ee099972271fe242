"""`pfl run --cluster`: a Ray cluster whose machines share nothing but the network."""

import shutil
import socket
import tempfile

import pytest
from support.own_parts import own_parts
from support.project import PATIENCE, at_work, make_project, results, spec, wait_for

Cluster = pytest.importorskip("ray.cluster_utils").Cluster
TWO = spec("{FedAvg: fedavg, FedPer: fedper}", rounds=200).replace("curve_every: 1", "curve_every: 10")  # some seconds


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A head without resources and two nodes with a core each, every one in a folder of its own."""
    monkeypatch.setenv("PFL_THREADS", "1")
    place = tempfile.mkdtemp(prefix="r", dir="/tmp")  # short: Ray keeps sockets there
    own = {"num_gpus": 0, "object_store_memory": 80_000_000, "include_dashboard": False, "temp_dir": place}
    made = Cluster()
    for name, cores in {"head": 0, "one": 1, "two": 1}.items():
        (tmp_path / "nodes" / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "nodes" / name)
        made.add_node(num_cpus=cores, **own)
    yield made
    made.shutdown()
    shutil.rmtree(place, ignore_errors=True)


def logs(project):
    return "".join(path.read_text() for path in sorted((project.root / ".pfl/logs").glob("*.train.log")))


@pytest.mark.slow
def test_lost_machines_change_nothing(tmp_path, cluster):
    project, alone = (make_project(tmp_path / name, {"specs/tiny.yaml": TWO}) for name in "ab")

    def checkpoints():
        return set(project.root.glob(".pfl/checkpoints/*/round-*.safetensors"))

    command = ("pfl", "run", "--cluster", cluster.address)
    with at_work(project, *command) as head:
        wait_for(lambda: len({path.parent for path in checkpoints()}) == 2, head)
        head.kill()  # a lost head: what nodes do for it ends, what came home remains
    known = checkpoints()
    with at_work(project, *command) as head:
        wait_for(lambda: checkpoints() - known, head)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)  # a lost node
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


@pytest.mark.matrix
def test_no_cluster_is_one_line(tmp_path):
    done = make_project(tmp_path).call("pfl", "run", "--cluster", f"127.0.0.1:{free_port()}")
    assert done.returncode == 2
    assert "no Ray cluster answers there" in done.stderr and done.stderr.count("\n") == 1
