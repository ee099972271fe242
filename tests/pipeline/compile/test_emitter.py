"""Stages: what they depend on and write, one shard per federation, nothing of this machine in a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from support.project import Project, make_project, several, spec, tree

from pipeline.compile.emitter import GUARD
from pipeline.compile.serialise import to_yaml
from pipeline.spec.run import Run
from pipeline.spec.table import read_resolved, read_runs
from pipeline.workspace import record_path

KINDS = "data|partition|describe|train|evaluate|report|index"
COMMAND = re.compile(rf"pfl stage (guard|({KINDS})( stages/[a-z0-9_./-]+)+ --seal [0-9a-f]{{12}})")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Several specs, compiled; not to be changed."""
    made = make_project(tmp_path_factory.mktemp("several"), several(), default=["tiny", "hostile"])
    made.compile()
    return made


def test_commands_are_safe_and_hold_nothing_of_this_machine(project: Project) -> None:
    for name, stage in project.stages().items():
        assert COMMAND.fullmatch(stage["cmd"]), name
        assert ".." not in stage["cmd"]
        assert set(stage) <= {"cmd", "wdir", "deps", "outs"}
        paths = [*stage["deps"], *stage["outs"]]
        assert all(re.fullmatch(r"[a-z0-9_./-]+", path) and not path.startswith("/") for path in paths)
        assert not any(".." in Path(path).parts for path in paths)
        file, _, stage_name = name.partition(":")
        assert re.fullmatch(r"[a-z0-9_.-]+", stage_name)
        assert (Path(file).parent / stage.get("wdir", ".")).parts.count("..") == len(Path(file).parent.parts)
    assert str(project.root).encode() not in b"".join(project.generated().values())


def test_every_output_has_one_stage_and_every_input_a_source(project: Project) -> None:
    stages = project.stages().values()
    outs = [out for stage in stages for out in stage["outs"]]
    assert len(outs) == len(set(outs))
    deps = {dep for stage in stages for dep in stage["deps"]}
    assert all(dep in outs or (project.root / dep).exists() for dep in deps)


def test_everything_comes_after_the_guard(project: Project) -> None:
    stages = project.stages()
    maker = {out: name for name, stage in stages.items() for out in stage["outs"]}

    def before(name: str) -> set[str]:
        makers = {maker[dep] for dep in stages[name]["deps"] if dep in maker}
        return makers.union(*map(before, makers))

    assert all("dvc.yaml:guard" in before(name) for name in stages if name != "dvc.yaml:guard")


def test_a_report_depends_on_the_records_of_its_runs_and_holds_none(project: Project) -> None:
    compilation, stages = project.compiled(), project.stages()
    for name, table in compilation.tables.items():
        runs = [compilation.runs[run] for run in table.runs]
        assert table.runs == {run.id: run.federation_id for run in runs}
        shard, _, stage = f"stages/{name}".rpartition("/")
        records = {record_path(run.federation_id, run.id) for run in runs}
        assert records <= set(stages[f"{shard}/dvc.yaml:{stage}"]["deps"]) & set(compilation.files)
        assert read_resolved(project.root / f"stages/tables/{name}.json") == table
        assert read_runs(table, project.root) == {run.id: run for run in runs}
        assert "local_epochs" not in compilation.files[f"stages/tables/{name}.json"]


def test_a_shard_holds_one_federation(project: Project) -> None:
    shards: dict[str, set[str]] = {}
    for run in project.compiled().runs.values():
        names = shards.setdefault(run.federation_id, {"partition"})
        names |= {f"train-{run.id}", f"evaluate-{run.id}"}
    assert len(shards) == 4
    for table in project.compiled().tables.values():
        for shown in table.partitions:  # the first seed's
            shards[shown.federation].add("describe")
    assert sum("describe" in names for names in shards.values()) < len(shards)
    for federation, names in shards.items():
        text = (project.root / f"stages/federations/{federation}/dvc.yaml").read_text(encoding="utf-8")
        assert set(yaml.safe_load(text)["stages"]) == names


def test_records_are_the_runs(project: Project) -> None:
    for run in project.compiled().runs.values():
        folder = project.root / "stages/federations" / run.federation_id
        record = yaml.safe_load((folder / f"{run.id}.yaml").read_text(encoding="utf-8"))
        assert Run(record).id == run.id and Run(record) == run
        federation = yaml.safe_load((folder / "federation.yaml").read_text(encoding="utf-8"))
        assert Run(federation).federation_id == run.federation_id
        assert Run(federation).data_id == run.data_id


def test_weights_are_an_output_when_they_are_wanted(tmp_path: Path) -> None:
    text = spec("[fedavg]", training=", save_weights: true")
    project = make_project(tmp_path, {"specs/a.yaml": text})
    project.compile()
    (train,) = [stage for name, stage in project.stages().items() if ":train-" in name]
    assert [Path(out).name for out in train["outs"]] == ["rounds.parquet", "weights.safetensors"]


def test_the_root_file(project: Project) -> None:
    root = yaml.safe_load((project.root / "dvc.yaml").read_text(encoding="utf-8"))
    assert root["stages"]["guard"] == {
        "cmd": "pfl stage guard",
        "deps": ["specs", "pyproject.toml", "stages/tables", "stages/code"],
        "outs": [GUARD],
    }
    assert root["stages"]["index"]["cmd"].startswith(
        "pfl stage index stages/tables/tiny.json stages/tables/hostile.json --seal "
    )
    assert set(root["stages"]["index"]["deps"]) >= {"reports/tiny/table.parquet", "reports/hostile/table.parquet"}
    assert root["params"] == ["specs/tiny.yaml", "specs/hostile.yaml"]
    assert root["metrics"] == [f"reports/{name}/metrics" for name in ("tiny", "hostile")]
    assert root["plots"] == [f"reports/{name}/figures/curves.png" for name in ("tiny", "hostile")]


def test_the_guard_depends_on_code_that_lies_in_the_workspace_and_is_there_without_specs(tmp_path: Path) -> None:
    project = make_project(tmp_path, {})
    for package in ("pflcore", "pipeline"):
        (tmp_path / package).mkdir()
    project.compile()
    assert set(project.stages()) == {"dvc.yaml:guard"}
    assert project.stages()["dvc.yaml:guard"]["deps"][:3] == ["specs", "pflcore", "pipeline"]


def test_a_profile_has_a_workspace_of_its_own_without_guard(project: Project) -> None:
    before = tree(project.root)
    compilation = project.compiled("smoke")
    assert project.workspace("smoke").root == project.root / "build/smoke"
    assert set(yaml.safe_load(compilation.files["dvc.yaml"])["stages"]) == {"index"}
    assert not any(GUARD in text or "pfl stage guard" in text for text in compilation.files.values())
    assert all(run.record["profile"] == "smoke" for run in compilation.runs.values())
    assert tree(project.root) == before


@pytest.mark.matrix
def test_dvc_reads_it(project: Project) -> None:
    listed = project.call("dvc", "stage", "list", "--recursive", "--name-only", ".")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert {name.removeprefix("dvc.yaml:") for name in project.stages()} == set(listed.stdout.split())
    for command in (["dag", "--dot"], ["dag", "stages/paper/dvc.yaml:table2.v1"], ["status"], ["plots", "show"]):
        done = project.call("dvc", *command)
        assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr


@given(st.from_regex(r"[0-9a-f]{8}|[0-9]{8}|[0-9]{1,6}e[0-9]{1,6}", fullmatch=True))
@example("12e45678")  # infinity
@example("0e123456")  # nothing
@example("00000008")  # eight; no number in YAML 1.1, which takes it for octal
@example("1e5")
@example("-.5E+3")
@example("1.5e7")
def test_a_string_that_looks_like_a_number_stays_a_string_to_all_who_read_yaml(name: str) -> None:
    """DVC reads YAML 1.2, others read 1.1."""
    text = to_yaml({name: [name]})
    assert YAML(typ="safe", pure=True).load(text) == yaml.safe_load(text) == {name: [name]}
