"""`pfl init`: what a new study consists of, and that it is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from support.project import Project, make_project, tree
from typer.testing import CliRunner

from pflcore.errors import UserError
from pflcore.registry import use_study
from pipeline.cli.commands import app
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import compare
from pipeline.spec.catalog import load_catalog
from pipeline.spec.resolve import resolve
from pipeline.spec.specs import find_specs, load_spec
from pipeline.study import create as creating
from pipeline.study.create import create
from pipeline.study.papers import needed, paper_specs
from pipeline.study.schema_file import SCHEMA
from pipeline.workspace import Workspace


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Project(tmp_path).environment().items():
        monkeypatch.setenv(name, value)


def test_a_new_study_is_complete_and_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert create(folder) == ["first"]
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    assert settings["tool"]["pfl"] == {"default": ["first"], "compile": [], "watch_upgrades": True}
    workspace = Workspace.find(folder / "specs")
    assert workspace.home == folder
    assert not compare(workspace, compile_workspace(workspace))
    assert "no_scm = True" in (folder / ".dvc/config").read_text()
    checks = yaml.safe_load((folder / ".github/workflows/study.yml").read_text())
    assert {"run": "pfl run --profile smoke"}.items() <= checks["jobs"]["specs"]["steps"][-1].items()


@pytest.mark.matrix
def test_commands_keep_the_schema_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(app, ["init", "mine"])
    assert made.exit_code == 0 and made.output.startswith("mine: a study with specs/first.yaml\ncd mine && dvc repro")
    monkeypatch.chdir(tmp_path / "mine")
    assert "our_own" not in Path(SCHEMA).read_text()
    assert CliRunner().invoke(app, ["new", "method", "our_own"]).exit_code == 0
    assert "our_own" in Path(SCHEMA).read_text()
    Path("methods/our_own.py").rename("methods/our_other.py")
    assert CliRunner().invoke(app, ["validate"]).exit_code == 0
    assert "our_own" not in Path(SCHEMA).read_text() and "our_other" in Path(SCHEMA).read_text()
    use_study(tmp_path)


def test_a_papers_table_has_the_runs_and_published_values_of_the_paper(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert create(folder, "fedtp/table2") == ["fedtp/table2"]
    assert (folder / "specs/fedtp/README.md").is_file() and not (folder / "specs/fedtp/table3.yaml").exists()
    compilation, catalog = compile_workspace(Workspace.find(folder)), load_catalog(folder)
    resolved = resolve(load_spec(find_specs(paper_specs())["fedtp/table2"], paper_specs(), catalog), catalog)
    assert resolved.table is not None and {run.id for run in resolved.runs} == set(compilation.runs)
    published = [cell.published for cell in resolved.table.cells]
    assert [cell.published for cell in compilation.tables["fedtp/table2"].cells] == published
    assert any(one is not None for one in published)
    # Editors find the schema.
    settings = json.loads((folder / ".vscode/settings.json").read_text())
    ((schema, pattern),) = settings["yaml.schemas"].items()
    assert "grid" in json.loads((folder / schema).read_text())["properties"]
    for path in folder.glob("specs/**/*.yaml"):
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / first).resolve() == (folder / schema).resolve()
    assert str(folder / "specs/fedtp/table2.yaml") in map(str, folder.glob(pattern))


@pytest.mark.parametrize(
    "paper", ["fedtp", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("fedperfix", "pfedla", "fedofa"))]
)
def test_all_of_a_paper_can_be_taken(paper: str, tmp_path: Path) -> None:
    names, files = needed(paper)
    concrete = [name for name in find_specs(paper_specs()) if name.startswith(f"{paper}/") and name in names]
    assert names == concrete and len(names) > 5
    project = make_project(tmp_path, {f"specs/{name}": text for name, text in files.items()})
    assert sorted(project.compiled().tables) == names


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_git_takes_what_a_study_consists_of_and_nothing_of_dvcs_own(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    create(tmp_path / "studies/mine")
    assert "no_scm" not in (tmp_path / "studies/mine/.dvc/config").read_text()
    for name in (".dvc/cache/files/md5/aa/b", ".dvc/tmp/lock", ".dvc/config.local", "artifacts/a", "reports/a"):
        path = tmp_path / "studies/mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    told = git(tmp_path, "add", "-An", ".")
    names = (line.split("'")[1] for line in told.splitlines())
    added = {name.removeprefix("studies/mine/") for name in names if name.startswith("studies/mine/")}
    assert {"specs/first.yaml", "dvc.yaml", ".dvc/config", "pyproject.toml"} <= added
    assert [name for name in added if name.startswith((".pfl", "artifacts", "reports", ".dvc/"))] == [".dvc/config"]


def test_where_a_study_cannot_be_is_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("scratch/\n")
    (tmp_path / "scratch").mkdir()
    with pytest.raises(UserError, match=r"mine: git ignores this folder, by \S*\.gitignore:1:scratch/; take the rule"):
        create(tmp_path / "scratch/mine")
    with pytest.raises(UserError, match=r"mine: DVC fails where a path has braces"):
        create(tmp_path / "data{v2}/mine")
    assert not (tmp_path / "scratch/mine").exists() and not (tmp_path / "data{v2}/mine").exists()


@pytest.mark.matrix
def test_what_a_study_requires_is_installed_from_a_wheel_beside_it(tmp_path: Path) -> None:
    create(tmp_path / "mine")
    wheel, about = (
        f"pfl_pipeline-{version('pfl-pipeline')}",
        f"Name: pfl-pipeline\nVersion: {version('pfl-pipeline')}\n",
    )
    with zipfile.ZipFile(tmp_path / f"mine/{wheel}-py3-none-any.whl", "w") as file:
        file.writestr(f"{wheel}.dist-info/METADATA", f"Metadata-Version: 2.1\n{about}")
        file.writestr(f"{wheel}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-index", "--no-deps", "-r", "mine/requirements.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / f"{wheel}-py3-none-any.whl").is_file(), done.stderr


def left(folder: Path) -> list[str]:
    """All files but those that DVC keeps for itself."""
    return [name for name in tree(folder) if not name.startswith(".dvc/")]


def test_nothing_is_overwritten_and_nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file"):
        with pytest.raises(UserError, match="there is something already"):
            create(tmp_path / name)
    with pytest.raises(UserError, match="unknown spec 'fedtp/table22'; did you mean 'fedtp/table2'"):
        create(tmp_path / "new", "fedtp/table22")
    with pytest.raises(UserError, match="fedtp/base: only to be extended"):
        create(tmp_path / "new", "fedtp/base")
    before = left(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(creating, "compile_workspace", fail)
    with pytest.raises(KeyboardInterrupt):
        create(tmp_path / "new")
    assert left(tmp_path) == before and not os.path.lexists(tmp_path / "new")


def test_the_marker_is_looked_for_before_folders_of_specs(tmp_path: Path) -> None:
    (tmp_path / "docs/specs").mkdir(parents=True)
    assert Workspace.find(tmp_path / "docs").home == tmp_path / "docs"
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'a'\n[tool.pfl.more]\n")
    assert Workspace.find(tmp_path / "docs").home == tmp_path / "docs"
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'a'\n  [ tool.pfl ]\n")
    assert Workspace.find(tmp_path / "docs").home == tmp_path
