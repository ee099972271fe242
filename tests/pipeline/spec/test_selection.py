"""Which specs DVC sees: what pyproject.toml names, what was added here, and what a person may call them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import make_project, spec

from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import write
from pipeline.spec.selection import SpecSelection, add, drop, named, read_selection

KNOWN = ["alone", "paper/base", "paper/one", "paper/two", "studies/mine"]


def test_what_pyproject_names_and_what_is_added(tmp_path: Path) -> None:
    project = make_project(tmp_path, {})

    def selected(settings: str) -> SpecSelection:
        project.write("pyproject.toml", f"[tool.pfl]\n{settings}\n")
        return read_selection(project.workspace(), KNOWN)

    for settings, default, shared in (
        ("", ["alone"], KNOWN),
        ("compile = []", ["alone"], ["alone"]),
        ("default = ['paper/two']\ncompile = ['studies/*']", ["paper/two"], ["paper/two", "studies/mine"]),
        ("default = []\ncompile = ['paper/one', 'alon?']", [], ["alone", "paper/one"]),
    ):
        assert selected(settings) == SpecSelection(default, shared, [])
    for settings, message in (
        ("compile = ['paper/on']", r"tool\.pfl\.compile: unknown spec 'paper/on'; did you mean 'paper/one'\?"),
        ("default = [3]", r"tool\.pfl\.default = \[3\] must be a list of spec names"),
        ("watch_upgrades = 1", r"tool\.pfl\.watch_upgrades = 1 must be true or false"),
        ("default = [", "not readable as TOML"),
    ):
        with pytest.raises(UserError, match=rf"^pyproject\.toml: {message}"):
            selected(settings)
    add(project.workspace(), ["paper/two", "alone"])
    add(project.workspace(), ["paper/one", "gone"])
    selection = selected("default = []\ncompile = ['alone']")
    assert (selection.added, selection.compiled) == (["paper/one", "paper/two"], ["alone", "paper/one", "paper/two"])
    drop(project.workspace(), ["paper/two", "studies/mine"])
    assert selected("default = []\ncompile = ['alone']").added == ["paper/one"]
    assert named(["specs/paper/two.yaml", "alone", "alone"], KNOWN) == ["paper/two", "alone"]
    assert named(["paper/"], KNOWN) == ["paper/base", "paper/one", "paper/two"]
    with pytest.raises(UserError, match="unknown spec 'papr'; did you mean 'paper'"):
        named(["papr"], KNOWN)


def test_only_what_is_selected_has_stages_and_the_rest_may_be_broken(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/a.yaml": spec(), "specs/b.yaml": spec("[local]", rounds=3)})
    project.write("pyproject.toml", "[tool.pfl]\ncompile = []\n")
    project.compile()
    before = project.generated()
    assert b"index" in before["dvc.yaml"] and b"evaluate-b" not in before["stages/dvc.yaml"]
    add(project.workspace(), ["b"])
    project.compile()
    added = project.generated()
    assert b"evaluate-b" in added["stages/dvc.yaml"] and added["dvc.yaml"] == before["dvc.yaml"]
    project.write("specs/b.yaml", "gird: {}\n")
    with pytest.raises(UserError, match=r"specs/b\.yaml:1: gird: unknown key"):
        compile_workspace(project.workspace())
    compilation = compile_workspace(project.workspace(), wanted=["a"])
    assert list(compilation.skipped) == ["b"] and list(compilation.tables) == ["a"]
    write(project.workspace(), compilation)  # and what it was is still there
    assert {name for name in added if "stages/tables/" in name} <= set(project.generated())
    drop(project.workspace(), ["b"])
    project.compile()
    assert project.generated() == before
