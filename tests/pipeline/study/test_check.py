"""`pfl new` and `pfl check`: what is begun with passes, and a mistake is found by the test that is for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.own_parts import BACKBONE, METHOD
from support.project import Project
from typer.testing import CliRunner

from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition
from pflcore.registry import registry_of, use_study
from pipeline.cli.commands import app
from pipeline.study.check import check_training
from pipeline.study.parts import TEMPLATES, begin

PLAIN = METHOD.replace("from ._scaling import factor\n", "").replace("factor()", "1.0")
COUNT = "\nCOUNT = __import__('itertools').count(1)\n\n\n@METHODS"
SERVER = """
    def update_server(self, server, roles, updates):
        server = super().update_server(server, roles, updates)
        {edit}
        return server

    def loss"""
# Mistake → what to replace in the method, by what, the test that finds it, and what that says.
MISTAKES = {
    "no docstring": ('    """FedAvg whose loss is scaled."""\n', "", "described", "Mine has no docstring"),
    "no such group": ("    scale: ", '    personal = ("heads",)\n    scale: ', "fits", "did you mean 'head'?"),
    "the wrong sign": ("self.scale *", "-self.scale *", "trains", "diverged in round"),
    "a global generator": ("self.scale *", "__import__('torch').rand(()) *", "repeats", "rounds.parquet is another"),
    "memory of a process": ("self.scale *", "next(COUNT) *", "pooled", "rounds.parquet is another"),
    "a step that goes by values": (
        "return self",
        "assert float(params['head.bias'].detach().sum()) < 99\n        return self",
        "stacked",
        "methods/faulty.py:14",
    ),
    "another shape": (
        "\n    def loss",
        SERVER.format(edit="server.shared['head.bias'] = server.shared['head.bias'].view(1, -1)"),
        "state",
        "head.bias has become float32 [1, 10], and was float32 [10]",
    ),
    "a lost entry": ("\n    def loss", SERVER.format(edit="del server.shared['head.bias']"), "trains", "head.bias"),
    "one sample": ("* super", "/ (len(batch.labels) - 1) * super", "one sample", "ZeroDivisionError: float division"),
}
QUICK = ("no such group", "another shape")
BUILT_IN = [(kind, name) for kind in ("method", "backbone") for name in registry_of(kind).names()]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    project = Project(tmp_path)
    project.write("pyproject.toml", "[tool.pfl]\n")
    project.write("specs/.keep", "")
    monkeypatch.chdir(tmp_path)
    yield project
    use_study(tmp_path / "nowhere")


def failing(study: Project, kind: str, text: str) -> dict[str, str]:
    """The tests that an entry with this source does not pass, and what they say."""
    study.write(f"{kind}s/faulty.py", text)
    use_study(study.root)
    return {test: said for test, passed, said in check_training(kind, "faulty", {}) if not passed}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_what_is_begun_with_passes(kind: str, study: Project) -> None:
    path = begin(kind, "my_own", study.root)
    use_study(study.root)
    assert registry_of(kind).get("my_own").__name__ == "MyOwn" and path.read_text().startswith('"""MyOwn: ')
    if kind == "dataset":
        assert len(DATASETS.create("my_own").load(study.root)) == 600
    elif kind == "partition":
        samples = DATASETS.create("digits").load(study.root)
        assert len(partition(PARTITIONS.create("my_own"), samples, 10, 0).train) == 10
    else:
        verdicts = list(check_training(kind, "my_own", {}))
        assert len(verdicts) == 10 and [one for one in verdicts if not one[1]] == []


def test_a_name_for_a_new_part_is_free_and_a_name(study: Project) -> None:
    for kind, name, words in (
        ("method", "fedavg", "there is a method 'fedavg' already; pfl describe method fedavg"),
        ("method", "My-own", "'My-own' cannot be the name of a method"),
        ("optimiser", "mine", "pfl new optimiser: there is a file to begin with for method, backbone"),
    ):
        with pytest.raises(UserError, match=words):
            begin(kind, name, study.root)
    assert not list(study.root.glob("methods/*"))


@pytest.mark.parametrize(
    "mistake", [pytest.param(one, marks=() if one in QUICK else pytest.mark.matrix) for one in MISTAKES]
)
def test_a_mistake_in_a_method_is_found(study: Project, mistake: str) -> None:
    old, new, test, words = MISTAKES[mistake]
    failed = failing(study, "method", PLAIN.replace(old, new).replace("\n\n@METHODS", COUNT, 1))
    assert words in failed[test], failed


def test_a_mistake_in_a_backbone_is_found(study: Project) -> None:
    ungrouped = BACKBONE.replace('"head": "head"', '"head": "heads"')
    assert "state 'head.weight' matches no group" in failing(study, "backbone", ungrouped)["fits"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_nothing_is_found_in_what_is_built_in(kind: str, name: str, study: Project) -> None:
    wrong = {test: said for test, passed, said in check_training(kind, name, {}) if not passed}
    if kind == "backbone" and BACKBONES.get(name).predicts == "boxes":
        assert wrong.keys() == {"fits"} and "is a detector" in wrong["fits"]
    else:
        assert not wrong


@pytest.mark.matrix
def test_the_verdict_on_the_command_line(study: Project) -> None:
    study.write("methods/mine.py", PLAIN)
    good = CliRunner().invoke(app, ["check", "mine", "--with", "tiny_vit", "--set", "scale=0.5"])
    lines = good.output.splitlines()
    assert good.exit_code == 0 and lines[0] == "mine · method · methods/mine.py" and 10 <= len(lines) <= 13
    assert all(line.startswith("ok  ") for line in lines[1:-1]) and "mine on tiny_vit" in lines[2]
    assert lines[-1].startswith("all passed, in ")
    study.write("methods/mine.py", PLAIN.replace('    """FedAvg whose loss is scaled."""\n', ""))
    bad = CliRunner().invoke(app, ["check", "method", "mine"])
    assert bad.exit_code == 1 and "FAIL  described   Mine has no docstring" in bad.output
    assert bad.output.splitlines()[-1].startswith("1 failed, in ")
    for words, said in (
        (["min"], "is called 'min'; did you mean 'mine'?"),
        (["backbone", "mine"], "no backbone is called"),
    ):
        assert said in str(CliRunner().invoke(app, ["check", *words]).exception)
