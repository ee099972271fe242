"""Random command lines: carried out, or refused in a line, and nothing else is touched."""

from __future__ import annotations

import os
import random
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from support.project import Project, tree

from pipeline import cli
from pipeline.cli.commands import app

# These train, download, wait, or prepare a checkout: with the right words they do what they are for.
_LONG = {"run", "verify", "check", "fetch", "setup", "stage", "status"}
_WAITING = {"--install-completion", "--show-completion", "--cluster"}
_WORDS = [
    "", "-", "--", "-1", "0", "nan", "1e999", "é", "\udcff", "A" * 3000, "a\nb", "%s", "{}", "*", "[", "~", "..",
    "../other", "pipe", "folder", "empty", "binary", "tiny@HEAD", "@", "fedavgg", "specs", "lr=", "=1", "lr=[",
    "alpha=!!python/name:os.system", "FedAvg, *", "$(touch x)", "`touch x`",
]  # fmt: skip
_RIGHT = ["tiny", "specs/tiny.yaml", "fedavg", "digits", "dirichlet", "tiny: FedAvg", "0", "1", "alpha=1", "other.csv"]


def commands() -> dict[tuple[str, ...], Any]:
    """All that can be typed, by words, but for what takes long."""
    found: dict[tuple[str, ...], Any] = {}

    def collect(command: Any, words: tuple[str, ...]) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            collect(inner, (*words, name))
        if words and not hasattr(command, "commands") and words[0] not in _LONG:
            found[words] = command

    collect(typer.main.get_command(app), ())
    return found


def line(rng: random.Random, words: tuple[str, ...], command: Any) -> list[str]:
    """A command with some of its options and arguments, and with values that are often none for them."""
    typed = list(words)
    options = [
        option
        for option in command.params
        if option.param_type_name == "option" and not _WAITING.intersection(option.opts)
    ]
    choices = _RIGHT if rng.random() < 0.7 else _WORDS
    for option in rng.sample(options, min(rng.choice((0, 0, 1, 2)), len(options))):
        typed += [rng.choice(option.opts), *([] if option.is_flag else [rng.choice(choices)])]
    arguments = len(command.params) - len(options)
    for _ in range(max(0, min(arguments, 2) + rng.choice((-1, 0, 0, 0, 1)))):
        typed.insert(rng.randint(len(words), len(typed)), rng.choice(choices))
    return typed


@pytest.fixture
def project(reproduced: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    root = tmp_path / "around" / "project"
    shutil.copytree(reproduced.root, root, symlinks=True)
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    (root / "empty").touch()
    (root / "binary").write_bytes(bytes(range(256)))
    made = Project(root)
    for name, value in made.environment(COLUMNS="100").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(root)
    return made


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.matrix)])
def test_command_lines(
    count: int, project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rng, known, ends = random.Random(count), commands(), Counter[object]()
    assert len(known) > 10
    before = {path for path in project.root.parent.rglob("*") if project.root not in path.parents}
    data = tree(project.root / "artifacts")
    for number in range(count):
        words = rng.choice(sorted(known))
        typed = line(rng, words, known[words])
        monkeypatch.setattr(sys, "argv", ["pfl", *typed])
        monkeypatch.chdir(project.root)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                cli.main()
                code: object = 0
            except SystemExit as end:
                code = end.code or 0
            except BaseException as error:
                raise AssertionError(f"{number}: pfl {typed}: {type(error).__name__}: {error}") from error
        ends[code] += 1
        printed = capfd.readouterr()
        assert code in (0, 1, 2), (number, typed, code)
        assert "Traceback" not in printed.err and len(printed.err) < 6000, (number, typed, printed.err[:2000])
        assert printed.err or printed.out or code == 0, (number, typed)
    assert min(ends[0], ends[2]) > count / 10, ends  # some are carried out, and some are not
    outside = {path for path in project.root.parent.rglob("*") if project.root not in path.parents} - before
    assert {path.relative_to(project.root.parent).parts[0] for path in outside} <= {"other"}  # which some asked for
    assert tree(project.root / "artifacts") == data and not (project.root / "x").exists()
