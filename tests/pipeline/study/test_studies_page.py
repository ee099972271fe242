"""docs/studies.md promises: its backbone is one, its spec compiles to the table shown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.project import Project, make_project
from support.tiny import CLASSES, SHAPE

from pflcore.backbones import BACKBONES
from pflcore.registry import use_study
from pipeline.study.check import Trial
from pipeline.study.create import _FIRST
from pipeline.study.parts import begin

PAGE = (Path(__file__).parents[3] / "docs/studies.md").read_text(encoding="utf-8")


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Project]:
    yield make_project(tmp_path / "study", {"specs/first.yaml": _FIRST})
    use_study(tmp_path)


def indented(begin: str) -> str:
    """The indented block that begins so."""
    (block,) = (one for one in re.findall(r"(?:^ {4}.*\n|^\n)+", PAGE, re.MULTILINE) if one.strip().startswith(begin))
    return textwrap.dedent(block).strip()


def test_the_backbone_that_it_shows_is_one(study: Project) -> None:
    ((name, text),) = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    study.write(name, text)
    use_study(study.root)
    model, groups = BACKBONES.create("small", width=8).create(SHAPE, CLASSES, 0)
    assert groups.names() == ["body", "head"] and model.head.weight.shape == (CLASSES, 8)


def test_the_tutorial_compiles_to_the_table_that_it_shows(study: Project) -> None:
    for kind, name in re.findall(r"^ {4}pfl new (\w+) (\w+)", PAGE, re.MULTILINE):
        begin(kind, name, study.root)
    study.write("specs/own.yaml", indented("extends: first.yaml") + "\n")
    compilation = study.compiled()
    rows = [line.split("|")[1].strip() for line in indented("| method ").splitlines()[2:]]
    table = compilation.tables["own"]
    assert table.labels["method"] == rows and len(table.runs) == 15
    own = ("evaluate-own", "own")
    stages = {stage.address for stage in compilation.stages if "stripes" in stage.address or stage.name in own}
    assert f"makes {len(stages) + 2} stages" in PAGE  # with the guard and the index
    assert [one for one in compilation.runs if one.startswith("calm_head-wide-stripes-")]


def test_it_lists_the_tests_that_there_are() -> None:
    trial = Trial("method", {"name": "fedavg"}, None, Path())
    named = {word for row in re.findall(r"^\| ([a-z, ]+) \| ", PAGE, re.MULTILINE) for word in row.split(", ")}
    assert set(trial.tests) <= named
    shown = re.findall(r"^ {4}ok    (\w+(?: \w+)?)  ", PAGE, re.MULTILINE)
    assert shown == list(trial.tests)
