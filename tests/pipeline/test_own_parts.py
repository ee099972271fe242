"""A study's own parts in the pipeline: what specs, listings, fingerprints, stages and reports make of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.own_parts import METHOD, SCALING, own_parts
from support.project import Project, make_project

from pflcore.errors import UserError
from pflcore.registry import use_study
from pipeline.browse.listing import describe, list_kind
from pipeline.cli.common import console
from pipeline.spec.catalog import load_catalog
from pipeline.spec.editor_schema import json_schema


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Project]:
    yield make_project(tmp_path / "study", own_parts(), default=["own"])
    use_study(tmp_path)


def commands(study: Project) -> dict[str, str]:
    """Stage → command, which changes with whatever the stage is made of."""
    return {stage.name.split("-small-")[0]: stage.command for stage in study.compiled().stages}


def test_they_are_listed_described_and_completed(study: Project, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = study.workspace()
    catalog = load_catalog(workspace.home)
    parts = {"methods": "mine", "backbones": "small", "datasets": "noise", "partitions": "turns", "analyses": "count"}
    for kind, name in parts.items():
        list_kind(kind, workspace, catalog, console())
        assert f"{kind}/{name}.py" in capsys.readouterr().out
    describe("mine", workspace, catalog, console())
    shown = capsys.readouterr().out
    assert "own: methods/mine.py" in shown and "What the loss is multiplied by." in shown
    assert "mine" in str(json_schema(catalog)) and catalog.entry("method", "fedavg").origin == ""
    study.write("methods/mine.py", METHOD.replace("loss is scaled", "loss is doubled"))
    assert load_catalog(study.root).entry("method", "mine").summary == "FedAvg whose loss is doubled."
    (study.root / "methods/mine.py").unlink()
    with pytest.raises(UserError, match=r"specs/own\.yaml:12: grid\.axes\.method\.Mine: unknown method 'mine'"):
        study.compiled()


def test_an_edit_makes_exactly_its_runs_stale(study: Project, tmp_path: Path) -> None:
    parts, doubled = own_parts(), SCALING.replace("1.0", "2.0")
    mine, fedavg = "train-analysed@mine", "train-analysed@fedavg"
    first = before = commands(study)
    for name, text, expected in [
        ("methods/mine.py", METHOD.replace("self.scale *", "2 * self.scale *"), {mine}),
        ("methods/_scaling.py", doubled, {mine}),
        ("methods/_scaling.py", f"# a comment\n{doubled}", set()),
        ("methods/_other.py", "x = 1\n", set()),
        ("backbones/small.py", parts["backbones/small.py"].replace("relu", "tanh"), {mine, fedavg}),
        ("figures/plain.py", parts["figures/plain.py"].replace("Drawn", "Made"), {"own"}),
    ]:
        study.write(name, text)
        after = commands(study)
        assert before.keys() == after.keys()
        assert {stage for stage in before if before[stage] != after[stage]} == expected, name
        before = after
    study.write("datasets/noise.py", parts["datasets/noise.py"].replace("default_rng(0)", "default_rng(1)"))
    assert [name[:11] for name, command in commands(study).items() if command != before[name]] == ["data@noise-"]
    (guard,) = (stage for stage in study.compiled().stages if stage.name == "guard")
    assert {"methods", "backbones", "datasets", "partitions", "analyses", "figures"} <= set(guard.deps)
    # Two studies never share a run, though its id is the same.
    other = commands(make_project(tmp_path / "other", parts | {"methods/_scaling.py": doubled}))
    assert first.keys() == other.keys() and first[mine] != other[mine] and first[fedavg] == other[fedavg]
