"""Runs that differ in seeds and numbers are trained side by side in one process, each as its own stage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import vandals
from support.project import Project, make_project, spec

from pipeline.compile.graph import Graph, Stage
from pipeline.running import local
from pipeline.running.board import Board, StageState, status_path
from pipeline.running.companies import Companies, company
from pipeline.running.request import Wish
from pipeline.running.runner import run_specs

THREE = "{FedAvg: fedavg, Prox: fedprox, Strong: {name: fedprox, mu: 0.7}}"
SEEDS = "    seed: [0, 1]\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = make_project(tmp_path, default=["tiny"])
    made.write("specs/tiny.yaml", spec(THREE, more=SEEDS))
    for name, value in made.environment(PFL_CHECKPOINT_SECONDS="0", PFL_DEVICE="cpu").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return made


def measured(project: Project) -> dict[str, pd.DataFrame]:
    """The measurements of all runs, by the id of each."""
    return {path.parent.name: pd.read_parquet(path) for path in project.root.glob("artifacts/runs/*/rounds.parquet")}


def assert_same(found: dict[str, pd.DataFrame], expected: dict[str, pd.DataFrame]) -> None:
    assert found.keys() == expected.keys()
    for name, rounds in found.items():
        counts = ["round", "client", "correct", "total"]
        assert rounds[counts].equals(expected[name][counts])
        np.testing.assert_allclose(rounds["loss"], expected[name]["loss"], rtol=1e-4)


def together(lines: str) -> list[set[str]]:
    """The runs that were side by side, as the lines say."""
    told = [line.partition(" side by side on ")[2] for line in lines.splitlines() if " side by side on " in line]
    return [set(line.partition(": ")[2].split(", ")) for line in told]


def entries(project: Project) -> list[StageState]:
    board = Board.load(status_path(project.workspace()))
    assert board
    return board.of_kind("train")


def test_what_runs_have_in_common(project: Project) -> None:
    project.write(
        "specs/other.yaml", spec("[fedavg]", partition="{name: dirichlet, alpha: 0.3}", training=", momentum: 0.5")
    )
    project.write(
        "specs/more.yaml", spec("[fedavg]", partition="{name: dirichlet, alpha: 0.3}").replace("lr: 0.1", "lr: 0.3")
    )
    runs = project.compiled().runs.values()
    kinds: dict[str, list[tuple[object, ...]]] = {}
    for run in runs:
        what = run.method, run.partition, run.training.momentum, run.training.lr
        kinds.setdefault(company(run), []).append(what)
    assert sorted(map(sorted, kinds.values())) == [
        [("fedavg", "dirichlet", 0.0, 0.3), *[("fedavg", "iid", 0.0, 0.1)] * 2],
        [("fedavg", "dirichlet", 0.5, 0.1)],
        [("fedprox", "iid", 0.0, 0.1)] * 4,
    ]


def test_runs_side_by_side_are_stages_of_their_own(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_specs(project.workspace(), Wish(jobs=1, abreast=4)) == 0
    names = {"fedavg": set[str](), "fedprox": set[str]()}
    for name in measured(project):
        names[name.partition("-")[0]].add(name)
    told = capsys.readouterr().err
    assert sorted(map(len, together(told))) == [2, 4]
    assert names["fedavg"] in together(told) and names["fedprox"] in together(told)
    assert "runs side by side on cpu: " in told and "6 runs trained" in told
    assert {(entry.state, entry.attempts, entry.round) for entry in entries(project)} == {("done", 1, 2)}
    found = measured(project)
    seconds = [json.loads((project.root / f".pfl/timings/{name}.json").read_text())["seconds"] for name in found]
    assert sum(seconds) < sum({entry.log: entry.seconds for entry in entries(project)}.values()) + 0.5  # not four times
    status = project.call("dvc", "status")
    assert "up to date" in status.stdout, status.stdout + status.stderr
    for place in ("artifacts/runs", ".dvc/cache", ".pfl/checkpoints"):
        shutil.rmtree(project.root / place, ignore_errors=True)
    for shard in project.root.glob("stages/**/dvc.lock"):
        shard.unlink()
    assert run_specs(project.workspace(), Wish(jobs=1)) == 0
    assert not together(capsys.readouterr().err)
    assert_same(found, measured(project))


def test_killed_together_they_go_on_each_from_its_own_checkpoint(project: Project) -> None:
    project.write("specs/tiny.yaml", spec("[fedavg]", rounds=40, more=SEEDS))
    command = ["pfl", "run", "-j", "1", "--abreast", "2"]
    process = subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True, start_new_session=True)
    patience = time.monotonic() + 60
    while len(list(project.root.glob(".pfl/checkpoints/*/round-*"))) < 2:
        assert process.poll() is None and time.monotonic() < patience
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(0.5)  # workers end with their scheduler
    assert not measured(project)
    again = project.call(*command)
    assert again.returncode == 0 and len(together(again.stderr)) == 1, again.stderr
    (log,) = {entry.log for entry in entries(project)}
    assert Path(log).read_text().count("continued from the checkpoint after round") == 2
    found = measured(project)
    shutil.rmtree(project.root / "artifacts/runs")
    shutil.rmtree(project.root / ".dvc/cache")
    for shard in project.root.glob("stages/**/dvc.lock"):
        shard.unlink()
    # Beside each other again: over so many rounds the rounding of clients that are trained apart leads elsewhere.
    assert run_specs(project.workspace(), Wish(jobs=1, abreast=2)) == 0
    assert_same(found, measured(project))


def test_one_that_fails_takes_nobody_along(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "work", vandals.fail_one)
    project.write("specs/tiny.yaml", spec("[fedavg]", more=SEEDS))
    assert run_specs(project.workspace(), Wish(jobs=1, abreast=2)) == 1
    told = capsys.readouterr().err
    (members,) = together(told)
    failed, done = sorted(entries(project), key=lambda entry: entry.state == "done")
    assert {failed.subject, done.subject} == members and (failed.state, done.state) == ("failed", "done")
    assert f"FAILED {failed.subject}: ValueError: enough" in told
    assert list(measured(project)) == [done.subject]


def graph(runs: Iterable[str]) -> Graph:
    """A data stage, a partition per run, the runs, and one that waits for another."""
    stages = [Stage("dvc.yaml", "data", "pfl stage data d.yaml", (), ("d",))]
    for run in runs:
        stages.append(Stage("dvc.yaml", f"part-{run}", f"pfl stage partition {run}/f.yaml", ("d",), (f"p-{run}",)))
        stages.append(Stage("dvc.yaml", f"train-{run}", f"pfl stage train {run}.yaml", (f"p-{run}",), (f"r-{run}",)))
    stages.append(Stage("dvc.yaml", "train-late", "pfl stage train late.yaml", ("r-a", "d"), ("r-late",)))
    return Graph(stages)


def test_who_goes_together() -> None:
    runs = [f"dvc.yaml:train-{one}" for one in "abcdefg"]
    companies = Companies(4, {**dict.fromkeys(runs[:6], "x"), runs[6]: "y"})
    board = {run: StageState(run, "train", run) for run in runs} | {"data": StageState("data", "data", "d")}
    assert companies.split(["data", *runs], board) == [["data"], runs[:3], runs[3:6], [runs[6]]]
    board[runs[1]].attempts = 1  # it has ended badly, so it is tried alone
    assert companies.split(runs[:3], board) == [[runs[0], runs[2]], [runs[1]]]
    assert companies.wanted([runs[0]], runs[1:]) == runs[1:4]
    assert companies.wanted(["data"], runs) == []
    assert Companies(1, companies.of).split(runs[:2], board) == [[runs[0]], [runs[1]]]
    assert Companies(1, companies.of).wanted([runs[0]], runs[1:]) == []


def test_runs_wait_for_their_company_while_that_takes_moments() -> None:
    stages = graph("ab")
    first, second, late = (f"dvc.yaml:train-{one}" for one in ("a", "b", "late"))
    board = {address: StageState(address, stage.kind, address) for address, stage in stages.stages.items()}
    companies = Companies(4, dict.fromkeys((first, second, late), "x"))
    assert companies.awaited([first], stages, board)  # for the partition of the second
    board[second].state = "cached"
    assert not companies.awaited([first], stages, board)  # nor for the third, which waits for this one
    board[second].state = "queued"
    assert not Companies(1, companies.of).awaited([first], stages, board)
    assert not companies.awaited(["dvc.yaml:data"], stages, board)
    board[second].state = "waiting"  # somebody else is at it
    assert not companies.awaited([first], stages, board)
