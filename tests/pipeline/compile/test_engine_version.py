"""The engine under its version: what is recorded, what is refused, and that spelling makes nothing stale."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.project import Project, make_project, spec

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pipeline.cli.commands import compile_
from pipeline.compile import compiler, stage_code
from pipeline.compile.compiler import source_folder
from pipeline.compile.engine import RECORD, STAGES, TITLE, Engine, root_of, untested
from pipeline.compile.fingerprint import PACKAGES, Code
from pipeline.running.options import Request, RunOptions
from pipeline.stages import guard
from pipeline.workspace import CODE

EDIT = "\nEDITED = 1\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path / "project", {"specs/tiny.yaml": spec("[fedavg]")}, default=["tiny"])
    made.compile()
    return made


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the packages, which projects are compiled with."""
    folder = tmp_path / "source"
    for package in PACKAGES:
        shutil.copytree(source_folder() / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiler, "source_folder", lambda: folder)
    return folder


def edit(source: Path, name: str, added: str = EDIT) -> None:
    path = source / name
    path.write_text(path.read_text(encoding="utf-8") + added, encoding="utf-8")


def accept(source: Path) -> None:
    """Record what `make pins` does when the numbers are as known."""
    code = Code(source)
    Engine.on_disk(code).write(code)


def test_the_record_is_of_what_lies_here() -> None:
    code = Code(source_folder())
    engine = Engine.recorded(code)
    assert engine == Engine.on_disk(code) and engine.title == TITLE and untested(code) is None
    for stage in STAGES:
        assert engine.fingerprint(stage) == code.fingerprint(root_of(stage))


def test_an_edited_engine_is_refused_until_it_is_tested_and_then_makes_nothing_stale(
    project: Project, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace, before = project.workspace(), project.generated()
    assert f"engine: '{ENGINE_VERSION}'" in before[CODE].decode()
    edit(source, "pflcore/server_view.py")
    accept(source)
    assert guard.run(workspace) == "1 specs, 1 runs: stages are up to date" and project.generated() == before
    edit(source, "pflcore/server_view.py", f"{EDIT}MORE = 2\n")
    edit(source, "pflcore/methods/simple.py")  # which would be compiled
    told = "pflcore.server_view was edited, and results may have changed: type `make pins`, which finds out"
    monkeypatch.chdir(project.root)
    for refused in (
        lambda: guard.run(workspace),
        lambda: Request.compiled(workspace, RunOptions()),
        lambda: compile_(check=True),
    ):
        with pytest.raises(UserError) as error:
            refused()
        assert str(error.value) == told and project.generated() == before
    compile_(check=False)
    assert capsys.readouterr() == ("1 runs: 1 code digest changed\n", f"pfl: {told}\n")
    accept(source)
    assert Request.compiled(workspace, RunOptions()).specs == ["tiny"]
    assert guard.run(workspace).endswith("up to date")


def test_another_version_makes_all_that_the_engine_made_stale(
    project: Project, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = project.stages()
    with monkeypatch.context() as patch, pytest.raises(UserError, match="1 code digest changed"):
        patch.setattr(stage_code, "ENGINE_VERSION", 99)
        guard.run(project.workspace())
    changed = {one["cmd"].split()[2] for name, one in project.stages().items() if one != before[name]}
    assert changed == set(STAGES)
    replace(Engine.recorded(Code(source)), title="engine version 1").write(Code(source))  # raised, and not tested
    assert (untested(Code(source)) or "").startswith("pflcore was edited")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text.replace("engine version", "<<<<<<< engine version"),
        lambda text: text.replace("pflcore.seeds ", "pflcore.seed "),
        lambda text: text + "pflcore.more 1234567890123456 train\n",  # merged without a conflict
    ],
)
def test_a_record_that_was_merged_or_edited(source: Path, damage: Callable[[str], str]) -> None:
    path = source / RECORD
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(UserError, match="merged or edited by hand; take one that was committed"):
        Engine.recorded(Code(source))


def test_a_module_that_comes_or_goes_is_an_edit(source: Path) -> None:
    (source / "pflcore/engine/new.py").write_text("")
    assert untested(Code(source)) is None  # nobody imports it
    edit(source, "pflcore/engine/loop.py", "\nimport pflcore.engine.new\n")
    assert untested(Code(source)).startswith("pflcore.engine.loop was edited")  # type: ignore[union-attr]
    accept(source)
    assert untested(Code(source)) is None
    (source / "pflcore/engine/new.py").unlink()
    assert untested(Code(source)).startswith("pflcore.engine.new was edited")  # type: ignore[union-attr]
