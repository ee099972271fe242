"""Stages: what they depend on and write, as DVC reads them; nothing of this machine in a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pipeline.spec.records import read_record, read_records, read_run
from ruamel.yaml import YAML
from support.project import Project, make_project, spec

from pflcore.errors import UserError
from pipeline.compile.emitter import GUARD
from pipeline.compile.generated import Line, to_yaml
from pipeline.spec.table import read_resolved, read_runs
from pipeline.workspace import CODE, RECORDS, run_path

KINDS = "data|partition|describe|train|evaluate|report|index"
COMMAND = re.compile(rf"pfl stage (guard|({KINDS})( [a-z0-9_./-]+)+ --seal [0-9a-f-]+)")


def test_dvc_reads_the_stages_that_were_compiled_and_nothing_of_this_machine(project: Project) -> None:
    stages, compilation = project.stages(), project.compiled()
    assert stages == {
        one.address: {"cmd": one.command, "deps": [*one.deps], "outs": [*one.outs], "always_changed": one.always}
        for one in compilation.stages
    }
    assert {stage.subject for stage in compilation.stages if stage.kind == "train"} == {*compilation.runs}
    for name, stage in stages.items():
        assert COMMAND.fullmatch(stage["cmd"]) and re.fullmatch(r"[a-z0-9_.-]+(@[a-z0-9_.-]+)?", name.partition(":")[2])
        assert all(re.fullmatch(r"(?!\.\.)[a-z0-9_.-][a-z0-9_./-]+", path) for path in (*stage["deps"], *stage["outs"]))
    assert str(project.root).encode() not in b"".join(project.generated().values())


def test_every_output_has_one_stage_and_every_stage_comes_after_the_guard(project: Project) -> None:
    stages = project.stages()
    maker = {out: name for name, stage in stages.items() for out in stage["outs"]}
    assert len(maker) == sum(len(stage["outs"]) for stage in stages.values())
    assert all(dep in maker or (project.root / dep).exists() for stage in stages.values() for dep in stage["deps"])
    after = {"dvc.yaml:guard"}
    for _ in range(6):  # data, partition, train, evaluate, report, index
        after |= {name for name, stage in stages.items() if {maker.get(dep) for dep in stage["deps"]} & after}
    assert after == {*stages}


def test_a_table_is_evaluated_from_its_runs_and_shown_from_its_frame(project: Project) -> None:
    compilation, stages = project.compiled(), project.stages()
    for name, table in compilation.tables.items():
        folder, _, stage = f"stages/{name}".rpartition("/")
        evaluate, report = stages[f"{folder}/dvc.yaml:evaluate-{stage}"], stages[f"{folder}/dvc.yaml:{stage}"]
        assert set(evaluate["deps"]) == {run_path(run, "rounds.parquet") for run in table.runs}
        assert evaluate["outs"] == [f"artifacts/tables/{name}"]
        assert [dep for dep in report["deps"] if dep.startswith("artifacts/")] == evaluate["outs"]
        assert read_resolved(project.root / f"stages/tables/{name}.json") == table
        assert read_runs(table, project.root) == {run: compilation.runs[run] for run in table.runs}


def test_a_stage_file_holds_one_federation(project: Project) -> None:
    files: dict[str, set[str]] = {}
    for run in project.compiled().runs.values():
        files.setdefault(run.federation_id, {"partition"}).add(f"train@{run.id}")
    for table in project.compiled().tables.values():
        for shown in table.partitions:  # the first seed's
            files[shown.federation].add("describe")
    assert len(files) == 4 > sum("describe" in names for names in files.values())
    stages = [name.rpartition("/dvc.yaml:") for name in project.stages() if "/federations/" in name]
    expected = {(federation, name) for federation, names in files.items() for name in names}
    assert {(Path(folder).name, name) for folder, _, name in stages} == expected


def test_records_are_known_by_their_hashes(project: Project, tmp_path: Path) -> None:
    path, edited = project.root / RECORDS, tmp_path / "records.json"
    for run in project.compiled().runs.values():
        assert read_run(path, run.id) == run
        assert read_record(path, run.federation_id) == run.federation and read_record(path, run.data_id) == run.data
    edited.write_text(path.read_text(encoding="utf-8").replace('"lr": 0.1', '"lr": 0.2'), encoding="utf-8")
    assert read_records(edited, [run.id])[run.id]["training"]["lr"] == 0.2
    with pytest.raises(UserError, match=f"{run.id}: edited by hand"):
        read_run(edited, run.id)
    edited.write_text(f'"{run.id}": {{"a": ', encoding="utf-8")
    for file, id_, message in (
        (edited, run.id, "edited by hand"),
        (path, "gone-0", "nothing of gone-0"),
        (tmp_path / "none.json", run.id, "no such file; run `pfl compile`"),
    ):
        with pytest.raises(UserError, match=message):
            read_record(file, id_)


def test_runs_that_read_or_write_more_are_groups_of_their_own(tmp_path: Path) -> None:
    tune = "{space: {training.lr: [0.001, 0.3]}, where: {method: FedAvg}, seeds: [7], trial: {training: {rounds: 3}}}"
    text = spec(training=", save_weights: true", partition="{name: iid, validation_share: 0.3}", more=f"tune: {tune}\n")
    project = make_project(tmp_path, {"specs/a.yaml": text})
    project.compile()
    stages = {name.partition(":")[2]: stage for name, stage in project.stages().items()}
    trained = {name.partition("@")[0]: stage for name, stage in sorted(stages.items()) if "train" in name}
    assert list(trained) == ["train-saved", "train-tuned-saved"]
    for stage in trained.values():
        assert [Path(out).name for out in stage["outs"]] == ["rounds.parquet", "weights.safetensors"]
    (select,) = [stage for stage in stages.values() if stage["cmd"].startswith("pfl stage select ")]
    assert trained["train-tuned-saved"]["deps"][-1:] == select["outs"] and len(select["deps"]) == 2
    assert read_record(tmp_path / RECORDS, select["cmd"].split()[3])["rounds"] == 6


def test_an_edited_method_changes_its_stage_and_what_is_shown_of_a_table_no_number(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/a.yaml": spec()}, default=["a"])
    project.compile()
    stages, code = project.stages(), (tmp_path / CODE).read_text(encoding="utf-8")
    digest = next(line for line in code.splitlines() if "fedper" in line)
    project.write(CODE, code.replace(digest, "  fedper: '012345678901'"))
    changed = [name for name, stage in project.stages().items() if stage != stages[name]]
    assert len(changed) == 1 and "train@fedper-" in changed[0]
    project.write("specs/a.yaml", spec().replace("title: Tiny", "title: Other\nnotes: [More]"))
    project.compile()
    assert [name for name, one in project.stages().items() if one["cmd"] != stages[name]["cmd"]] == [
        "stages/dvc.yaml:a"
    ]


def test_the_root_file(project: Project, tmp_path: Path) -> None:
    root = yaml.safe_load((project.root / "dvc.yaml").read_text(encoding="utf-8"))
    deps = ["specs", "pyproject.toml", "stages/tables", "stages/code.yaml"]
    assert root["stages"]["guard"] == {"cmd": "pfl stage guard", "deps": deps, "outs": [GUARD]}
    assert root["stages"]["index"]["cmd"].startswith("pfl stage index tiny hostile --seal ")
    assert root["stages"]["index"]["deps"] == ["reports/tiny/table.parquet", "reports/hostile/table.parquet"]
    assert root["params"] == ["specs/tiny.yaml", "specs/hostile.yaml"]
    assert root["metrics"] == [f"reports/{name}/metrics" for name in ("tiny", "hostile")]
    assert root["plots"] == [f"reports/{name}/figures/curves.png" for name in ("tiny", "hostile")]
    smoke = project.compiled("smoke")  # in a workspace of its own, without a guard
    assert project.workspace("smoke").root == project.root / "build/smoke"
    assert set(yaml.safe_load(smoke.files["dvc.yaml"])["stages"]) == {"index"}
    other = make_project(tmp_path, {})  # without specs, with code that lies in the workspace
    for package in ("pflcore", "pipeline"):
        (tmp_path / package).mkdir()
    other.compile()
    assert {name: stage["deps"] for name, stage in other.stages().items()} == {
        "dvc.yaml:guard": ["specs", "pflcore", "pipeline"]
    }


@pytest.mark.matrix
def test_dvc_works_with_it(project: Project) -> None:
    listed = project.call("dvc", "stage", "list", "--recursive", "--name-only", ".")
    assert {name.removeprefix("dvc.yaml:") for name in project.stages()} == set(listed.stdout.split())
    for command in (["dag", "stages/paper/dvc.yaml:table2.v1"], ["status"], ["plots", "show"]):
        done = project.call("dvc", *command)
        assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr


def test_a_string_that_looks_like_a_number_stays_a_string_to_all_who_read_yaml() -> None:
    """DVC reads YAML 1.2, others read 1.1."""
    for name in ("12e45678", "00000008", "0e123456", "-.5E+3", "0o17", "0123abcd"):
        text = to_yaml({name: Line({"a": name})})
        assert YAML(typ="safe", pure=True).load(text) == yaml.safe_load(text) == {name: {"a": name}}
        assert text.count("\n") == 1
