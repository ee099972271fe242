"""`pfl init`: what a new study consists of, and that it is one; the pages studies.md and tutorial.md."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.command import Pfl
from support.command import pfl as pfl
from support.project import Project, make_project, tree
from support.tiny import CLASSES, SHAPE
from support.tutorial import check, follow

from pflcore.backbones import BACKBONES
from pflcore.errors import UserError
from pflcore.registry import use_study
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import compare
from pipeline.spec.catalog import load_catalog
from pipeline.spec.resolve import resolve
from pipeline.spec.specs import find_specs, load_spec
from pipeline.study import create as creating
from pipeline.study.check import Trial
from pipeline.study.create import FIRST, create, needed, paper_specs
from pipeline.study.parts import SCHEMA, begin
from pipeline.workspace import Workspace

PAGE = (Path(__file__).parents[3] / "docs/studies.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in Project(tmp_path).environment().items():
        monkeypatch.setenv(name, value)
    yield
    use_study(tmp_path)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_new_study_is_complete_and_git_takes_nothing_of_dvcs_own(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    folder = tmp_path / "studies/mine"
    assert create(folder) == ["first"]
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    assert settings["tool"]["pfl"] == {"default": ["first"], "compile": [], "watch_upgrades": True}
    workspace = Workspace.find(folder / "specs")
    assert workspace.home == folder and not compare(workspace, compile_workspace(workspace))
    assert "no_scm" not in (folder / ".dvc/config").read_text()
    checks = yaml.safe_load((folder / ".github/workflows/study.yml").read_text())
    assert {"run": "pfl run --profile smoke"}.items() <= checks["jobs"]["specs"]["steps"][-1].items()
    for name in (".dvc/cache/files/md5/aa/b", ".dvc/tmp/lock", ".dvc/config.local", "artifacts/a", "reports/a"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    told = [line.split("'")[1] for line in git(tmp_path, "add", "-An", ".").splitlines()]
    added = {name.removeprefix("studies/mine/") for name in told if name.startswith("studies/mine/")}
    assert {"specs/first.yaml", "dvc.yaml", ".dvc/config", "pyproject.toml"} <= added
    assert [name for name in added if name.startswith((".pfl", "artifacts", "reports", ".dvc/"))] == [".dvc/config"]


@pytest.mark.matrix
def test_commands_keep_the_schema_up_to_date(tmp_path: Path, pfl: Pfl) -> None:
    code, out, _ = pfl(tmp_path, "init", "mine")
    assert code == 0 and out.startswith("mine: a study with specs/first.yaml\ncd mine && dvc repro")
    folder = tmp_path / "mine"
    assert "no_scm = True" in (folder / ".dvc/config").read_text()
    assert "our_own" not in (folder / SCHEMA).read_text()
    assert pfl(folder, "new", "method", "our_own")[0] == 0 and "our_own" in (folder / SCHEMA).read_text()
    (folder / "methods/our_own.py").rename(folder / "methods/our_other.py")
    assert pfl(folder, "validate")[0] == 0
    assert "our_own" not in (folder / SCHEMA).read_text() and "our_other" in (folder / SCHEMA).read_text()


def test_a_papers_table_has_the_runs_and_published_values_of_the_paper(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert create(folder, "fedtp/table2") == ["fedtp/table2"]
    assert (folder / "specs/fedtp/README.md").is_file() and not (folder / "specs/fedtp/table3.yaml").exists()
    compilation, catalog = compile_workspace(Workspace.find(folder)), load_catalog(folder)
    resolved = resolve(load_spec(find_specs(paper_specs())["fedtp/table2"], paper_specs(), catalog), catalog)
    assert resolved.table is not None and {run.id for run in resolved.runs} == set(compilation.runs)
    published = [cell.published for cell in resolved.table.cells]
    assert [cell.published for cell in compilation.tables["fedtp/table2"].cells] == published and any(published)
    # Editors find the schema.
    ((schema, pattern),) = json.loads((folder / ".vscode/settings.json").read_text())["yaml.schemas"].items()
    assert "grid" in json.loads((folder / schema).read_text())["properties"]
    for path in folder.glob("specs/**/*.yaml"):
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / first).resolve() == (folder / schema).resolve()
    assert folder / "specs/fedtp/table2.yaml" in folder.glob(pattern)


@pytest.mark.matrix
@pytest.mark.parametrize("paper", ["fedtp", "fedperfix", "pfedla", "fedofa"])
def test_all_of_a_paper_can_be_taken(paper: str, tmp_path: Path) -> None:
    names, files = needed(paper)
    project = make_project(tmp_path, {f"specs/{name}": text for name, text in files.items()})
    assert sorted(project.compiled().tables) == names and len(names) > 5


def test_where_a_study_cannot_be_is_one_line_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    for name in (".gitignore", "mine/notes", "file"):
        Project(tmp_path).write(name, "ignored/\n")
    for folder, source, line in [
        ("ignored/mine", None, r"mine: git ignores this folder, by \S*\.gitignore:1:ignored/; take the rule"),
        ("data{v2}/mine", None, r"mine: DVC fails where a path has braces"),
        ("mine", None, "there is something already"),
        ("file", None, "there is something already"),
        ("new", "fedtp/table22", "unknown spec 'fedtp/table22'; did you mean 'fedtp/table2'"),
        ("new", "fedtp/base", "fedtp/base: only to be extended"),
    ]:
        with pytest.raises(UserError, match=line):
            create(tmp_path / folder, source)

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(creating, "compile_workspace", fail)
    with pytest.raises(KeyboardInterrupt):
        create(tmp_path / "new")
    own = (".git/", ".dvc/")
    assert [name for name in tree(tmp_path) if not name.startswith(own)] == [".gitignore", "file", "mine/notes"]


def test_the_marker_is_looked_for_before_folders_of_specs(tmp_path: Path) -> None:
    (tmp_path / "docs/specs").mkdir(parents=True)
    for text, home in (
        ("", "docs"),
        ("[project]\nname = 'a'\n[tool.pfl.more]\n", "docs"),
        ("[project]\nname = 'a'\n  [ tool.pfl ]\n", "."),
    ):
        (tmp_path / "pyproject.toml").write_text(text)
        assert Workspace.find(tmp_path / "docs").home == tmp_path / home


def indented(start: str) -> str:
    """The indented block of docs/studies.md that begins so."""
    (block,) = (one for one in re.findall(r"(?:^ {4}.*\n|^\n)+", PAGE, re.MULTILINE) if one.strip().startswith(start))
    return textwrap.dedent(block).strip()


def test_the_page_on_studies_shows_what_there_is(tmp_path: Path) -> None:
    study = make_project(tmp_path / "study", {"specs/first.yaml": FIRST})
    ((name, text),) = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    study.write(name, text)
    use_study(study.root)
    model, groups = BACKBONES.create("small", width=8).create(SHAPE, CLASSES, 0)
    assert groups.names() == ["body", "head"] and model.head.weight.shape == (CLASSES, 8)
    for kind, part in re.findall(r"^ {4}pfl new (\w+) (\w+)", PAGE, re.MULTILINE):
        begin(kind, part, study.root)
    study.write("specs/own.yaml", indented("extends: first.yaml") + "\n")
    compilation = study.compiled()
    rows = [line.split("|")[1].strip() for line in indented("| method ").splitlines()[2:]]
    table, own = compilation.tables["own"], ("evaluate-own", "own")
    assert table.labels["method"] == rows and len(table.runs) == 15
    stages = {stage.address for stage in compilation.stages if "stripes" in stage.address or stage.name in own}
    assert f"makes {len(stages) + 2} stages" in PAGE  # with the guard and the index
    tests = list(Trial("method", {"name": "fedavg"}, None, Path()).tests)
    assert re.findall(r"^ {4}ok    (\w+(?: \w+)?)  ", PAGE, re.MULTILINE) == tests


@pytest.mark.matrix
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    check(follow(tmp_path))
