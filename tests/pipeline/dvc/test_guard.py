"""What a plain ``dvc repro`` runs and what it does not: edits are noticed, and cost no more than they concern."""

import json
import re
import shutil

import pytest
from support.project import make_project, spec, tree

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.compile.compiler import GUARD, source_folder
from pipeline.stages import guard

MORE = "{FedAvg: fedavg, FedPer: fedper, FedProx: fedprox}"
STOPPED = "specs or code changed: 1 run and 1 code digest added, 1 report changed. Compiled; type `dvc repro`"


def stop(project):
    """Return what the guard says when it stops DVC."""
    with pytest.raises(UserError) as error:
        guard.run(project.workspace())
    return str(error.value)


def test_edits_stop_it_once_and_what_changes_nothing_does_not(tmp_path):
    project = make_project(tmp_path)
    project.compile()
    assert guard.run(project.workspace()) == "1 specs, 2 runs: stages are up to date"
    token, before = (project.root / GUARD).read_bytes(), project.generated()
    project.write("specs/tiny.yaml", "# A comment.\n\n" + spec().replace("clients: 3", "clients: 3   # three"))
    guard.run(project.workspace())
    assert project.generated() == before
    project.write("dvc.yaml", "stages: {}\n")  # by hand
    assert stop(project).startswith("specs or code changed: 1 stage file changed.") and project.generated() == before
    project.write("specs/tiny.yaml", spec(MORE))
    message = stop(project)
    assert message.startswith(STOPPED) and "\n" not in message
    assert guard.run(project.workspace()) == "1 specs, 3 runs: stages are up to date"
    assert (project.root / GUARD).read_bytes() == token  # so nothing that comes after it is out of date
    project.write("specs/tiny.yaml", spec("[fedpt]"))
    files = tree(project.root)
    assert stop(project).startswith("specs/tiny.yaml:11: grid.axes.method[0]: ") and tree(project.root) == files


def test_dvc_makes_every_artifact_and_a_comment_runs_the_guard_alone(reproduced):
    for pattern, (schema, count) in {
        "data/*.parquet": ("dataset/2", 1),
        "partitions/*.parquet": ("partition/2", 1),
        "runs/*/rounds.parquet": ("rounds/2", 2),
        "tables/tiny/runs.parquet": ("frame.runs/1", 1),
    }.items():
        paths = list((reproduced.root / "artifacts").glob(pattern))
        assert len(paths) == count and all(read_table(path, schema)[0].num_rows > 0 for path in paths)
    report, index = ((reproduced.root / f"reports/{name}.md").read_text("utf-8") for name in ("tiny/report", "index"))
    metrics = {path.stem: json.loads(path.read_text()) for path in reproduced.root.glob("reports/tiny/metrics/*")}
    assert set(metrics) == {"FedAvg", "FedPer"} and "| Tiny | 2 | 2 | [md](tiny/report.md)" in index
    assert all(f"{figures['last_rounds']:.2f}±" in report for figures in metrics.values())
    assert reproduced.call("dvc", "status").stdout == "Data and pipelines are up to date.\n", "it lies elsewhere now"
    reproduced.write("specs/tiny.yaml", "# A comment.\n" + spec())
    done = reproduced.repro()
    assert (done.code, done.ran) == (0, ["guard"])


@pytest.mark.matrix
def test_an_added_value_trains_its_run_and_its_removal_trains_none(reproduced):
    reproduced.write("specs/tiny.yaml", spec(MORE))
    first, second = reproduced.repro(), reproduced.repro()
    assert (first.code, first.ran) == (255, ["guard"]) and f"pfl: {STOPPED}" in first.output
    names = [re.sub(r"-[0-9a-f]{8}$", "", name) for name in second.ran]
    assert names == ["guard", "train@fedprox-convnet-digits", "evaluate-tiny", "tiny", "index"], second.output
    reproduced.write("specs/tiny.yaml", spec())
    assert reproduced.repro().ran == ["guard"]
    third = reproduced.repro()
    assert third.code == 0 and set(third.ran) <= {"guard", "evaluate-tiny", "tiny", "index"}, third.output


@pytest.mark.matrix
def test_an_upgrade_is_noticed_by_a_study_that_watches(tmp_path):
    project = make_project(tmp_path / "study", {"specs/tiny.yaml": spec("[local]", rounds=1)}, ["tiny"])
    for name in ("pflcore", "pipeline"):
        shutil.copytree(source_folder() / name, tmp_path / "site" / name)
    method, site = tmp_path / "site/pflcore/methods/simple.py", str(tmp_path / "site")
    project.write("pyproject.toml", '[tool.pfl]\ndefault = ["tiny"]\nwatch_upgrades = true\n')
    project.compile()
    assert project.repro(PYTHONPATH=site).code == 0
    assert project.repro(PYTHONPATH=site).ran == ["guard"]
    method.write_text(method.read_text(encoding="utf-8") + "\nUPGRADED = True\n", encoding="utf-8")
    stopped = project.repro(PYTHONPATH=site)
    assert (stopped.code, stopped.ran) == (255, ["guard"])
    assert "specs or code changed: 1 code digest changed. Compiled; type `dvc repro` again" in stopped.output
