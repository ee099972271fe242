"""The engine under its version: what is recorded, what is refused, and that spelling makes nothing stale."""

from __future__ import annotations

import shutil
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
from pipeline.running.request import Request, Wish
from pipeline.stages import guard
from pipeline.workspace import CODE


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


def edit(source: Path, name: str, added: str = "EDITED = 1") -> None:
    path = source / name
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{added}\n", encoding="utf-8")


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
    edit(source, "pflcore/server_view.py", "MORE = 2")
    edit(source, "pflcore/methods/simple.py")  # which would be compiled
    message = r"^pflcore\.server_view was edited, and results may have changed: type `make pins`"
    monkeypatch.chdir(project.root)
    for refused in (
        lambda: guard.run(workspace),
        lambda: Request.compiled(workspace, Wish()),
        lambda: compile_(check=True),
    ):
        with pytest.raises(UserError, match=message):
            refused()
        assert project.generated() == before
    compile_(check=False)
    out, err = capsys.readouterr()
    assert out == "1 runs: 1 code digest changed\n" and err.startswith("pfl: pflcore.server_view was edited")
    accept(source)
    assert Request.compiled(workspace, Wish()).specs == ["tiny"] and guard.run(workspace).endswith("up to date")


def test_another_version_makes_all_that_the_engine_made_stale(
    project: Project, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = project.stages()
    with monkeypatch.context() as patch, pytest.raises(UserError, match="1 code digest changed"):
        patch.setattr(stage_code, "ENGINE_VERSION", 99)
        guard.run(project.workspace())
    assert {one["cmd"].split()[2] for name, one in project.stages().items() if one != before[name]} == set(STAGES)
    replace(Engine.recorded(Code(source)), title="engine version 1").write(Code(source))  # raised, and not tested
    assert str(untested(Code(source))).startswith("pflcore was edited")


def test_a_record_that_was_merged_and_modules_that_come_and_go(source: Path) -> None:
    path = source / RECORD
    text = path.read_text(encoding="utf-8")
    for damaged in (
        "",
        text.replace("pflcore.seeds ", "pflcore.seed "),
        f"{text}pflcore.more 1234567890123456 train\n",
    ):
        path.write_text(damaged, encoding="utf-8")  # the last as if merged without a conflict
        with pytest.raises(UserError, match="merged or edited by hand; take one that was committed"):
            Engine.recorded(Code(source))
    path.write_text(text, encoding="utf-8")
    (source / "pflcore/engine/new.py").write_text("")
    assert untested(Code(source)) is None  # nobody imports it
    edit(source, "pflcore/engine/loop.py", "import pflcore.engine.new")
    assert str(untested(Code(source))).startswith("pflcore.engine.loop was edited")
    accept(source)
    assert untested(Code(source)) is None
    (source / "pflcore/engine/new.py").unlink()
    assert str(untested(Code(source))).startswith("pflcore.engine.new was edited")
