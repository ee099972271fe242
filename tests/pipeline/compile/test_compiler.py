"""From specs to stage files: the same bytes everywhere, one stage per run, nothing of this machine in a command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from support.project import CONVNET, VIT, Project, make_project, spec, tree

from pflcore.errors import UserError
from pipeline.compile.compiler import GUARD
from pipeline.spec.run import Run
from pipeline.spec.table import read_resolved, read_runs
from pipeline.workspace import record_path

HOSTILE = '$(reboot); `id` & "a" | <b> ${x} \\${y} %s \'\n#'
KINDS = "data|partition|describe|train|evaluate|report|index"
COMMAND = re.compile(rf"pfl stage (guard|({KINDS})( stages/[a-z0-9_./-]+)+ --seal [0-9a-f]{{12}})")


def hostile() -> str:
    """A spec whose texts are what a shell, YAML and DVC's templates would trip over."""
    text = json.dumps(HOSTILE)
    label = text.replace(r"\n", "")
    more = f"table: {{rows: [method], columns: [], caption: {text}}}\nnotes: [{text}]\n"
    return spec(f"{{{label}: fedavg, FedTP: fedtp}}", title=text, backbone=VIT, more=more)


def several() -> dict[str, str]:
    """Specs in folders, with dots, sharing runs, over several federations."""
    return {
        "specs/tiny.yaml": spec(),
        "specs/paper/table2.v1.yaml": spec(
            "[fedavg, local]", more="    partition: [iid, dirichlet]\n    seed: [0, 1]\n"
        ),
        "specs/paper/base.yaml": "abstract: true\ntitle: Base\n",
        "specs/paper/child.yaml": f"extends: ../tiny.yaml\ngrid: {{base: {{backbone: {VIT}}}}}\n",
        "specs/hostile.yaml": hostile(),
    }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path, several(), default=["tiny", "hostile"])
    made.compile()
    return made


def test_the_same_bytes_again(project: Project) -> None:
    assert project.compiled().files == project.compiled().files


def test_the_same_bytes_elsewhere(project: Project, tmp_path: Path) -> None:
    for number, cwd in (("1", "."), ("2", "specs/paper")):
        other = make_project(tmp_path / f"other folder {number}", several(), default=["tiny", "hostile"])
        done = other.call("pfl", "compile", cwd=cwd, PYTHONHASHSEED=number, LC_ALL="C", PYTHONUTF8="0")
        assert (done.returncode, done.stderr) == (0, "")
        assert other.generated() == project.generated()


def test_the_order_of_files_on_disk_does_not_matter(project: Project, tmp_path: Path) -> None:
    reversed_ = dict(reversed(several().items()))
    assert make_project(tmp_path / "b", reversed_, default=["tiny", "hostile"]).compiled().files == (
        project.compiled().files
    )


def test_commands_are_safe_and_hold_nothing_of_this_machine(project: Project, tmp_path: Path) -> None:
    for name, stage in project.stages().items():
        assert COMMAND.fullmatch(stage["cmd"]), name
        assert ".." not in stage["cmd"]
        assert set(stage) <= {"cmd", "wdir", "deps", "outs"}
        paths = [*stage["deps"], *stage["outs"]]
        assert all(re.fullmatch(r"[a-z0-9_./-]+", path) and not path.startswith("/") for path in paths)
        assert not any(".." in Path(path).parts for path in paths)
    assert str(tmp_path).encode() not in b"".join(project.generated().values())


def test_stages_run_in_the_root_and_have_names_that_dvc_takes(project: Project) -> None:
    for name, stage in project.stages().items():
        file, _, stage_name = name.partition(":")
        assert re.fullmatch(r"[a-z0-9_.-]+", stage_name)
        assert (Path(file).parent / stage.get("wdir", ".")).parts.count("..") == len(Path(file).parent.parts)


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


def test_a_shared_run_is_one_stage(project: Project) -> None:
    compilation = project.compiled()
    table = {name: set(compilation.tables[name].runs) for name in ("tiny", "paper/table2.v1")}
    shared = table["tiny"] & table["paper/table2.v1"]
    assert len(shared) == 1
    assert compilation.slots == sum(len(table.runs) for table in compilation.tables.values())
    assert len(compilation.runs) == len(set().union(*(table.runs for table in compilation.tables.values())))
    assert compilation.slots > len(compilation.runs)
    trains = [name for name in project.stages() if f":train-{next(iter(shared))}" in name]
    assert len(trains) == 1


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


RECORD = {
    "dataset": {"name": "digits", "stand_in": None},
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "clients": 10,
    "seed": 0,
    "backbone": {"name": "convnet", "channels": [8, 16]},
    "method": {"name": "fedavg"},
    "training": {"rounds": 40, "lr": 0.1},
    "evaluation": {"every": 1},
    "profile": "paper",
}


def test_ids_never_change() -> None:
    run = Run(RECORD)
    assert run.id == "fedavg-convnet-digits-c70697d7"
    assert run.federation_id == "digits-dirichlet-n10-s0-d5a4b076"
    assert run.data_id == "digits-302ab2f1"
    again = Run(dict(reversed(RECORD.items())))
    assert (again.id, again.federation_id, again.data_id) == (run.id, run.federation_id, run.data_id)


@pytest.mark.parametrize(
    ("field", "value", "same"),
    [
        ("profile", "smoke", {"federation_id", "data_id"}),
        ("method", {"name": "fedprox", "mu": 0.1}, {"federation_id", "data_id"}),
        ("training", {"rounds": 41, "lr": 0.1}, {"federation_id", "data_id"}),
        ("seed", 1, {"data_id"}),
        ("clients", 20, {"data_id"}),
        ("partition", {"name": "dirichlet", "alpha": 1.0}, {"data_id"}),
        ("dataset", {"name": "digits", "stand_in": 8}, set()),
    ],
)
def test_what_ids_depend_on(field: str, value: object, same: set[str]) -> None:
    before, after = Run(RECORD), Run({**RECORD, field: value})
    ids = ("id", "federation_id", "data_id")
    assert {name for name in ids if getattr(before, name) == getattr(after, name)} == same


def test_an_added_value_adds_its_run_only(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.compile()
    project.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Local: local}"))
    changes = project.compile()
    assert [Path(name).name.rpartition("-")[0] for name in changes.added if "federations" in name] == [
        "local-convnet-digits"
    ]
    assert [name for name in changes.added if "federations" not in name] == ["stages/code/method.local.txt"]
    assert [Path(name).name for name in changes.changed] == ["dvc.yaml"] * 3 + ["tiny.json"]
    assert changes.removed == []


def test_a_removed_spec_takes_its_files_along(project: Project, tmp_path: Path) -> None:
    rest = {name: text for name, text in several().items() if name != "specs/paper/table2.v1.yaml"}
    (tmp_path / "specs/paper/table2.v1.yaml").unlink()
    changes = project.compile()
    assert changes.removed and not changes.added
    other = make_project(tmp_path / "other", rest, default=["tiny", "hostile"])
    other.compile()
    assert project.generated() == other.generated()


def test_a_shared_run_stays_with_its_other_spec(project: Project, tmp_path: Path) -> None:
    shared = set(project.compiled().tables["tiny"].runs) & set(project.compiled().tables["paper/table2.v1"].runs)
    (tmp_path / "specs/paper/table2.v1.yaml").unlink()
    removed = {Path(name).stem for name in project.compile().removed}
    assert removed and not removed & shared


INVALID: list[tuple[dict[str, str | bytes], str]] = [
    ({"specs/z.yaml": "grid: {base: {method: fedpt}}\n"}, "unknown method 'fedpt'; did you mean 'fedtp'?"),
    ({"specs/z.yaml": spec("{FedAvg: fedavg, FedTP: fedtp}", more="    clients: [3, 0]\n")}, "must be a whole number"),
    ({"specs/code/a.yaml": spec()}, "specs/code/a.yaml: a folder of specs cannot be called 'code'; rename it"),
    ({"specs/data/a/b.yaml": spec()}, "specs/data/a/b.yaml: a folder of specs cannot be called 'data'; rename it"),
    ({"specs/federations/a.yaml": spec()}, "a folder of specs cannot be called 'federations'; rename it"),
    ({"specs/dvc.yaml": spec()}, "specs/dvc.yaml: DVC takes every dvc.yaml for a file of its own; rename it"),
    ({"specs/paper/dvc.yaml": "abstract: true\n"}, "DVC takes every dvc.yaml for a file of its own; rename it"),
    (
        {"specs/tiny/a/b.yaml": spec("[local]")},
        "specs/tiny/a/b.yaml: its report would lie inside that of specs/tiny.yaml; rename one of them",
    ),
    ({"pyproject.toml": '[tool.pfl]\ndefault = ["tinny"]\n'}, "unknown spec 'tinny'; did you mean 'tiny'?"),
    ({"pyproject.toml": '[tool.pfl]\ndefault = "tiny"\n'}, "tool.pfl.default = 'tiny' must be a list of spec names"),
    ({"pyproject.toml": "[tool]\npfl = 3\n"}, "pyproject.toml: pfl = 3 must be a table"),
    ({"pyproject.toml": "[tool\n"}, "pyproject.toml: not readable as TOML"),
    ({"pyproject.toml": b"\xff"}, "pyproject.toml: not readable as TOML"),
]


@pytest.mark.parametrize(("files", "message"), INVALID, ids=[message for _, message in INVALID])
def test_a_mistake_is_one_line_and_nothing_is_written(
    tmp_path: Path, files: dict[str, str | bytes], message: str
) -> None:
    project = make_project(tmp_path)
    project.compile()
    project.write("specs/tiny.yaml", spec("[local]"))
    for name, text in files.items():
        project.write(name, text)
    before = tree(tmp_path)
    with pytest.raises(UserError) as error:
        project.compile()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["data", "code", "federations"])
def test_a_reserved_name_of_a_file_or_an_abstract_spec_is_fine(tmp_path: Path, name: str) -> None:
    project = make_project(tmp_path, {f"specs/{name}.yaml": spec(), f"specs/{name}/base.yaml": "abstract: true\n"})
    project.compile()
    assert (tmp_path / f"stages/tables/{name}.json").is_file()


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


def test_the_guard_depends_on_code_that_lies_in_the_workspace(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    for package in ("pflcore", "pipeline"):
        (tmp_path / package).mkdir()
    project.compile()
    assert project.stages()["dvc.yaml:guard"]["deps"][:3] == ["specs", "pflcore", "pipeline"]


def test_without_pyproject_the_first_spec_is_the_default(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/b.yaml": spec(), "specs/a.yaml": spec("[local]")})
    project.compile()
    assert project.stages()["dvc.yaml:index"]["cmd"].startswith("pfl stage index stages/tables/a.json --seal ")


def test_without_specs_there_is_only_the_guard(tmp_path: Path) -> None:
    project = make_project(tmp_path, {})
    project.compile()
    assert set(project.stages()) == {"dvc.yaml:guard"}


def test_a_profile_has_a_workspace_of_its_own_without_guard(project: Project, tmp_path: Path) -> None:
    before = tree(tmp_path)
    compilation = project.compiled("smoke")
    assert project.workspace("smoke").root == tmp_path / "build/smoke"
    stages = yaml.safe_load(compilation.files["dvc.yaml"])["stages"]
    assert set(stages) == {"index"}
    assert not any(GUARD in text or "pfl stage guard" in text for text in compilation.files.values())
    assert all(run.record["profile"] == "smoke" for run in compilation.runs.values())
    assert tree(tmp_path) == before


def test_dvc_reads_it(project: Project) -> None:
    listed = project.call("dvc", "stage", "list", "--recursive", "--name-only", ".")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert {name.removeprefix("dvc.yaml:") for name in project.stages()} == set(listed.stdout.split())
    for command in (["dag", "--dot"], ["dag", "stages/paper/dvc.yaml:table2.v1"], ["status"], ["plots", "show"]):
        done = project.call("dvc", *command)
        assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr


def test_backbones_of_the_tests_are_valid(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/a.yaml": spec(more=f"    backbone: {{A: {CONVNET}, B: {VIT}}}\n")})
    assert len(project.compiled().runs) == 4
