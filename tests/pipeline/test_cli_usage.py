"""What a user of ``pfl`` meets beside the commands' own work: wrong usage, variants, broken specs, cleaning."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from filelock import FileLock
from support.command import Pfl
from support.command import pfl as pfl
from support.project import Project, make_project, spec, tree

from pipeline.running.board import Board, StageState, summary


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, default=["tiny"])


USAGE = {
    "run --sed 1": "no such option: --sed; did you mean '--seed'?",
    "rnu": "no such command 'rnu'; did you mean 'run'?",
    "results lst": "no such command 'lst'; did you mean 'list'?",
    "run --seed x": "invalid value for '--seed': Input should be a valid integer",
    "run --jobs": "option '--jobs' requires an argument",
    "nothing": "no such command 'nothing'; see `pfl --help`",
    "list": "missing argument 'what'; see `pfl list --help`",
}


def test_wrong_usage_is_one_line_and_no_usage_is_help(project: Project, pfl: Pfl) -> None:
    for words, message in USAGE.items():
        code, out, err = pfl(project.root, *words.split())
        assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"pfl: {message}"), words
    code, out, err = pfl(project.root)
    assert code == 2 and "Usage: pfl" in out and not err
    code, out, err = pfl(project.root, "run", "--help")
    assert code == 0 and "--seed" in out and not err


def test_a_failure_is_shown_by_its_last_attempt(tmp_path: Path) -> None:
    log, head = tmp_path / "a.log", "--- 2026-11-26 10:00:0{}  pfl stage train a --seal 1\n"
    log.write_text(f"{head.format(1)}old 1\nold 2\n--- 2026-11-26 10:00:02  failed: old\n{head.format(3)}new\n\n")
    entry = StageState("a", "train", "a", "failed", note="why", log=str(log))
    assert summary(Board(entries={"a": entry}))[1:3] == ["FAILED a: why", "    new"]
    assert not any("old" in line for line in summary(Board(entries={"a": entry})))


def test_a_broken_spec_stops_no_command_that_does_not_need_it(project: Project, pfl: Pfl) -> None:
    project.write("specs/bad.yaml", "gird: {}\n")
    project.write("specs/Copy of tiny.yaml", "")
    bad = "specs/bad.yaml:1: gird: unknown key; did you mean 'grid'?"
    misnamed = "specs/Copy of tiny.yaml: the name 'Copy of tiny' is not allowed"
    both = [f"pfl: left alone: {misnamed}", f"pfl: left alone: {bad}"]
    for words, expected in {
        "run tiny --dry-run": both,
        "list specs": both,
        "report": both,
        "results list": both,
        "plan tiny": both[:1],
        "describe partition tiny": [],
        "compile": [f"pfl: {misnamed}"],
        "validate": [f"pfl: {misnamed}"],
        "stage guard": [f"pfl: {misnamed}"],
    }.items():
        code, _, err = pfl(project.root, *words.split())
        lines = err.splitlines()
        assert code == (2 if expected[:1] == [f"pfl: {misnamed}"] else 0), words
        assert len(lines) == len(expected) and all(map(str.startswith, lines, expected)), words
    (project.root / "specs/Copy of tiny.yaml").unlink()
    for words in ("compile", "validate", "stage guard", "run bad"):
        assert pfl(project.root, *words.split()) == (2, "", f"pfl: {bad}\n"), words


VARIANT = """\
# Written by `pfl run two --set …`; it can be edited.
extends: ../two.yaml
title: Two; training.rounds=3, method.mu=0.25
grid:
  overrides+:
  - when: {}
    set:
      training:
        rounds: 3
  - when:
      method:
      - Prox
    set:
      method:
        mu: 0.25
"""
REFUSED = {
    "two --set training.rouds=3": "--set training.rouds: unknown option; did you mean 'rounds'?",
    "two --set method.muu=3": "--set method.muu: no method of two has this option; did you mean 'mu'?",
    "two --set traning.rounds=3": "--set traning: unknown run field; did you mean 'training'?",
    "two --set method.mu=-1": "--set method.mu: -1 must be at least 0",
    "two --set clients=x": "--set clients: 'x' must be a whole number, at least 1",
    "two --set clients": "--set 'clients': must be SETTING=VALUE, such as training.rounds=20",
    "two --set clients=[1": "--set 'clients=[1': the value is not YAML",
    "two --set method=local": "specs/two.yaml:11: grid.axes.method: has no effect",
    "two tiny --set clients=4": "--set makes a variant of one spec; name it",
    "two --set training.rounds=3 --set method.mu=0.25": "specs/added/{}.yaml: has been edited; type `pfl run added/{}`",
}


def test_a_variant_is_a_spec_that_extends_another(project: Project, pfl: Pfl) -> None:
    project.write("specs/two.yaml", spec("{FedAvg: fedavg, Prox: {name: fedprox, mu: 0.5}}", title="Two"))
    name = "two-training.rounds-3-method.mu-0.25"
    words = ["run", "two", "--set", "training.rounds=3", "--set", "method.mu=0.25", "--dry-run"]
    for _ in range(2):  # the same words are the same variant
        code, out, _ = pfl(project.root, *words)
        assert code == 0 and out.startswith(f"specs/added/{name}.yaml: ") and f"report added/{name}" in out
    path = project.root / f"specs/added/{name}.yaml"
    assert path.read_text("utf-8") == VARIANT
    runs = project.compiled().every_run.values()
    made = {run.record["method"].get("mu") for run in runs if run.record["training"]["rounds"] == 3}
    assert made == {None, 0.25}
    path.write_text(VARIANT.replace("0.25", "0.125"), "utf-8")
    for words_, message in REFUSED.items():
        code, _, err = pfl(project.root, "run", *words_.split())
        assert code == 2 and err.startswith(f"pfl: {message.format(name, name)}") and err.count("\n") == 1, words_
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_cleaning_removes_what_no_spec_asks_for(project: Project, pfl: Pfl, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("specs/gone.yaml", spec("[fedavg, local]"))
    assert project.call("pfl", "run", "--all").returncode == 0
    before, whole = tree(project.root), pfl(project.root, "clean")[1]
    assert whole == "nothing to remove: specs ask for all that is here\n"
    local = next(run.id for run in project.compiled().runs.values() if run.method == "local")
    path, mine = f"artifacts/runs/{local}/rounds.parquet", project.write("artifacts/mine.txt", "mine")
    project.write(f".pfl/checkpoints/{local}-01234567/round-000001.safetensors", "x")
    (project.root / "specs/gone.yaml").unlink()
    code, out, _ = pfl(project.root, "clean", "--dry-run")
    places = [f".pfl/checkpoints/{local}-01234567", f"artifacts/runs/{local}", "artifacts/tables/gone"]
    assert code == 0 and [line.split()[-1] for line in out.splitlines()[:-1]] == places
    assert out.splitlines()[0].split()[:2] == ["1", "byte"] and (project.root / path).is_file()
    for answer in ("", "n\n"):  # the end of the input, and no
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        code, _, err = pfl(project.root, "clean")
        assert (code, err) == ((0, "") if answer else (130, "\npfl: interrupted\n")) and (project.root / path).is_file()
    marks = {"read": {}, "write": {str(project.root / "artifacts/data"): {"pid": os.getppid(), "cmd": "dvc repro"}}}
    project.write(".dvc/tmp/rwlock", json.dumps(marks))
    code, _, err = pfl(project.root, "clean", "--yes")
    assert code == 2 and err.startswith("pfl: DVC: ") and "dvc repro" in err and err.count("\n") == 1
    project.write(".dvc/tmp/rwlock", "{}")
    with FileLock(project.root / ".pfl/run.lock"):
        assert "another pfl run is at work here" in pfl(project.root, "clean", "--yes")[2]
    assert (project.root / path).is_file() and pfl(project.root, "clean", "--yes")[0] == 0
    after, kept = tree(project.root), before.keys() - {"specs/gone.yaml"}
    artifacts = {name for name in kept if name.startswith("artifacts/") and "gone" not in name and local not in name}
    assert {name for name in after if name.startswith("artifacts/")} == {*artifacts, "artifacts/mine.txt"}
    assert all(after[name] == before[name] for name in {*artifacts, "reports/gone/report.md", "reports/tiny/table.csv"})
    assert before[path] not in after.values() and mine.is_file(), "DVC's cache has no copy"
    project.write("specs/bad.yaml", "gird: {}\n")
    assert pfl(project.root, "clean", "--yes")[2].startswith("pfl: specs/bad.yaml:1: gird: unknown key")
