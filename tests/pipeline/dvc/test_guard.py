"""What a plain ``dvc repro`` runs and what it does not: edits are noticed, and cost no more than they concern."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.project import Project, make_project, spec, tree

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.compile.compiler import source_folder
from pipeline.compile.emitter import GUARD
from pipeline.stages import guard

ROOT = source_folder()
MORE = "{FedAvg: fedavg, FedPer: fedper, FedProx: fedprox}"
STOPPED = "specs or code changed: 1 run and 1 code digest added, 1 report changed. Compiled; type `dvc repro`"


def stop(project: Project) -> str:
    """What the guard says when it stops DVC."""
    with pytest.raises(UserError) as error:
        guard.run(project.workspace())
    return str(error.value)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path)
    made.compile()
    return made


def test_an_edited_spec_stops_it_once(project: Project) -> None:
    assert guard.run(project.workspace()) == "1 specs, 2 runs: stages are up to date"
    token = (project.root / GUARD).read_bytes()
    project.write("specs/tiny.yaml", spec(MORE))
    message = stop(project)
    assert message.startswith(STOPPED) and "\n" not in message
    assert guard.run(project.workspace()) == "1 specs, 3 runs: stages are up to date"
    assert (project.root / GUARD).read_bytes() == token  # so nothing that comes after it is out of date


def test_what_an_edit_does_not_concern(project: Project) -> None:
    before = project.generated()
    project.write("specs/tiny.yaml", "# A comment.\n\n" + spec().replace("clients: 3", "clients: 3   # three"))
    guard.run(project.workspace())
    assert project.generated() == before
    project.write("specs/tiny.yaml", spec(title="Other"))
    assert stop(project).startswith("specs or code changed: 1 report changed. Compiled")


def test_a_mistake_stops_it_and_writes_nothing(project: Project) -> None:
    project.write("specs/tiny.yaml", spec("[fedpt]"))
    before = tree(project.root)
    assert stop(project).startswith("specs/tiny.yaml:11: grid.axes.method[0]: ")
    assert tree(project.root) == before


def test_stages_edited_by_hand_are_restored(project: Project) -> None:
    before = project.generated()
    project.write("dvc.yaml", "stages: {}\n")
    assert stop(project).startswith("specs or code changed: 1 stage file changed.")
    assert project.generated() == before


SCHEMAS = {
    "data/*.parquet": "dataset/2",
    "partitions/*.parquet": "partition/2",
    "runs/*/rounds.parquet": "rounds/2",
    "tables/tiny/runs.parquet": "frame.runs/1",
}


def test_dvc_makes_every_artifact(original: Project) -> None:
    artifacts = original.root / "artifacts"
    counts = {}
    for pattern, schema in SCHEMAS.items():
        paths = list(artifacts.glob(pattern))
        counts[schema.partition("/")[0]] = len(paths)
        assert all(read_table(path, schema)[0].num_rows > 0 for path in paths)
    assert list(counts.values()) == [1, 1, 2, 1]
    report = (original.root / "reports/tiny/report.md").read_text(encoding="utf-8")
    metrics = {path.stem: json.loads(path.read_text("utf-8")) for path in original.root.glob("reports/tiny/metrics/*")}
    assert set(metrics) == {"FedAvg", "FedPer"}
    for figures in metrics.values():
        assert f"{figures['last_rounds']:.2f}±" in report
    index = (original.root / "reports/index.md").read_text(encoding="utf-8")
    assert "| Tiny | 2 | 2 | [md](tiny/report.md)" in index


def test_a_reproduced_project_is_up_to_date_anywhere_and_a_comment_runs_the_guard_alone(reproduced: Project) -> None:
    status = reproduced.call("dvc", "status")
    assert (status.returncode, status.stdout) == (0, "Data and pipelines are up to date.\n")
    reproduced.write("specs/tiny.yaml", "# A comment.\n" + spec())
    done = reproduced.repro()
    assert (done.code, done.ran) == (0, ["guard"])


def names(stages: list[str]) -> list[str]:
    """Stages without the hash in their names."""
    return [re.sub(r"-[0-9a-f]{8}$", "", name) for name in stages]


@pytest.mark.matrix
def test_an_added_value_trains_its_run_and_its_removal_trains_none(reproduced: Project) -> None:
    reproduced.write("specs/tiny.yaml", spec(MORE))
    first = reproduced.repro()
    assert (first.code, first.ran) == (255, ["guard"])
    assert f"pfl: {STOPPED}" in first.output
    second = reproduced.repro()
    assert second.code == 0, second.output
    run = "fedprox-convnet-digits"
    assert names(second.ran) == ["guard", f"train@{run}", "evaluate-tiny", "tiny", "index"]
    assert "FedProx" in (reproduced.root / "reports/tiny/report.md").read_text(encoding="utf-8")
    reproduced.write("specs/tiny.yaml", spec())
    assert reproduced.repro().ran == ["guard"]
    third = reproduced.repro()
    assert third.code == 0, third.output
    assert set(third.ran) <= {"guard", "evaluate-tiny", "tiny", "index"}
    assert "FedProx" not in (reproduced.root / "reports/tiny/report.md").read_text(encoding="utf-8")


def long_run() -> str:
    """One run whose training takes long enough to be killed."""
    return spec("{FedPer: fedper}", rounds=120, training=", save_weights: true")


def newest_checkpoint(project: Project) -> int:
    """The round of the newest checkpoint, or 0."""
    return max((int(path.name.split("-")[1]) for path in project.root.glob(".pfl/checkpoints/*/round-*")), default=0)


def kill_while_training(project: Project) -> None:
    """Start DVC, and kill it and all it has started once training has left a few checkpoints."""
    with (project.root / "log.txt").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            ["dvc", "repro"],
            cwd=project.root,
            env=project.environment(PFL_CHECKPOINT_SECONDS="0"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        until = time.monotonic() + 120
        while process.poll() is None and newest_checkpoint(project) < 3:
            assert time.monotonic() < until
            time.sleep(0.005)
        assert process.poll() is None, (project.root / "log.txt").read_text(encoding="utf-8")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    killed, calm = (make_project(tmp_path / name, {"specs/a.yaml": long_run()}) for name in ("killed", "calm"))
    for project in (killed, calm):
        project.compile()
    kill_while_training(killed)
    assert not list(killed.root.glob("artifacts/runs/*/*.parquet"))
    done = killed.repro()
    assert done.code == 0, done.output
    resumed = re.search(r"continued from the checkpoint after round (\d+)", done.output)
    assert resumed and 3 <= int(resumed[1]) < 120
    assert not list(killed.root.glob(".pfl/checkpoints/*/round-*"))
    calm.execute(calm.compiled())
    for name in ("rounds.parquet", "weights.safetensors"):
        (one,), (other,) = (list(project.root.glob(f"artifacts/runs/*/{name}")) for project in (killed, calm))
        assert one.read_bytes() == other.read_bytes()
    assert (killed.root / "reports/a/report.md").read_bytes() == (calm.root / "reports/a/report.md").read_bytes()
    assert killed.call("dvc", "status").stdout == "Data and pipelines are up to date.\n"


@pytest.mark.matrix
def test_an_upgrade_is_noticed_by_a_study_that_watches(tmp_path: Path) -> None:
    project = make_project(tmp_path / "study", {"specs/tiny.yaml": spec("[local]", rounds=1)}, ["tiny"])
    for name in ("pflcore", "pipeline"):
        shutil.copytree(ROOT / name, tmp_path / "site" / name, ignore=shutil.ignore_patterns("__pycache__"))
    method, site = tmp_path / "site/pflcore/methods/simple.py", str(tmp_path / "site")
    project.compile()
    assert project.repro(PYTHONPATH=site).code == 0
    project.write("pyproject.toml", '[tool.pfl]\ndefault = ["tiny"]\nwatch_upgrades = true\n')
    assert project.repro(PYTHONPATH=site).code == 255  # compiles
    passed = project.repro(PYTHONPATH=site)
    assert (passed.code, passed.ran) == (0, ["guard"]), passed.output
    method.write_text(method.read_text(encoding="utf-8") + "\nUPGRADED = True\n", encoding="utf-8")
    stopped = project.repro(PYTHONPATH=site)
    assert (stopped.code, stopped.ran) == (255, ["guard"])
    assert "specs or code changed: 1 code digest changed. Compiled; type `dvc repro` again" in stopped.output
