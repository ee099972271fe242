"""From specs to stage files: the same bytes everywhere, a run once for all that share it, nothing after a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import CONVNET, VIT, Project, make_project, several, spec, tree

from pflcore.errors import UserError


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


def test_without_pyproject_the_first_spec_is_the_default(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/b.yaml": spec(), "specs/a.yaml": spec("[local]")})
    project.compile()
    assert project.stages()["dvc.yaml:index"]["cmd"].startswith("pfl stage index stages/tables/a.json --seal ")


def test_backbones_of_the_tests_are_valid(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/a.yaml": spec(more=f"    backbone: {{A: {CONVNET}, B: {VIT}}}\n")})
    assert len(project.compiled().runs) == 4
