"""``pfl run`` on real projects: the state that `dvc repro` would reach, whatever comes in between."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
from support import vandals
from support.project import VIT, Project, make_project, spec, tree

from pflcore.errors import UserError
from pipeline.running import local
from pipeline.running.board import Board, status_path
from pipeline.running.options import RunOptions
from pipeline.running.runner import _alone, run_specs
from pipeline.spec.records import read_run
from pipeline.workspace import RECORDS, Workspace

FEDTP_NEEDS_A_TRANSFORMER = "{FedTP: fedtp, FedAvg: fedavg}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = make_project(tmp_path, default=["tiny"])
    for name, value in made.environment(PFL_CHECKPOINT_SECONDS="0", PFL_DEVICE="cpu").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return made


def board_of(project: Project) -> Board:
    board = Board.load(status_path(project.workspace()))
    assert board
    return board


def states(project: Project) -> dict[str, str]:
    return {entry.name: entry.state for entry in board_of(project).entries.values()}


def results(project: Project) -> dict[str, bytes]:
    """What runs and reports consist of; pages of papers are `pfl run`'s own."""
    files, own = tree(project.root), ("reports/papers/", "reports/index.html")
    return {
        name: text
        for name, text in files.items()
        if name.startswith(("artifacts/", "reports/")) and not name.startswith(own)
    }


def is_clean(project: Project) -> bool:
    """Whether DVC agrees that nothing is to be done."""
    status = project.call("dvc", "status")
    again = project.repro()
    assert "up to date" in status.stdout, status.stdout + status.stderr
    assert again.code == 0 and not again.ran and not again.cached, again.output
    return True


def test_it_ends_where_dvc_repro_ends(project: Project, original: Project) -> None:
    assert run_specs(project.workspace(), RunOptions(jobs=2)) == 0
    assert is_clean(project)
    found = states(project)
    assert set(found.values()) == {"done"} and len(found) == 9
    assert results(project) == results(original)
    # Now there is nothing to do, and what is lost comes from DVC's cache.
    assert run_specs(project.workspace(), RunOptions(jobs=2)) == 0
    assert set(states(project).values()) == {"cached"}
    for name in ("artifacts", "reports"):
        shutil.rmtree(project.root / name)
    for lock in [project.root / "dvc.lock", *project.root.glob("stages/**/dvc.lock")]:
        lock.unlink()
    assert run_specs(project.workspace(), RunOptions(jobs=2)) == 0
    assert set(states(project).values()) == {"cached"}
    assert results(project) == results(original) and is_clean(project)


@pytest.mark.matrix
def test_a_failure_stops_only_what_depends_on_it(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.write("specs/tiny.yaml", spec(FEDTP_NEEDS_A_TRANSFORMER))
    project.write("specs/well.yaml", spec("[fedavg]"))
    assert run_specs(project.workspace(), RunOptions(specs=("tiny", "well"), jobs=1)) == 1
    told = capsys.readouterr()
    (failed,) = board_of(project).of_state("failed")
    assert failed.kind == "train" and failed.subject.startswith("fedtp-") and failed.attempts == 1
    skipped = {entry.name for entry in board_of(project).of_state("skipped")}
    assert skipped == {"evaluate tiny", "report tiny"}
    assert f"FAILED {failed.subject}: {failed.note}" in told.err
    assert "to try the rest again: pfl run tiny well -j 1" in told.err
    assert (project.root / "reports/well/report.md").is_file() and not (project.root / "reports/tiny").exists()
    # With a correction the rest is done, and nothing else.
    project.write("specs/tiny.yaml", spec("[fedavg]"))
    assert run_specs(project.workspace(), RunOptions(specs=("tiny", "well"), jobs=1)) == 0
    assert {entry.kind for entry in board_of(project).of_state("done")} <= {"guard", "evaluate", "report"}


def test_only_some_cells(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Local: local}", more="    seed: [0, 7]\n"))
    with chdir(project.root):
        assert run_specs(project.workspace(), RunOptions(("tiny",), cells=("Fed*",), seeds=(7,))) == 0
    trained = [path.parent.name for path in project.root.glob("artifacts/runs/*/rounds.parquet")]
    records = [read_run(project.root / RECORDS, run) for run in trained]
    assert sorted((run.method, run.seed) for run in records) == [("fedavg", 7), ("fedper", 7)]
    assert not (project.root / "reports/tiny").exists()
    for wish, line in (
        (
            RunOptions(("tiny",), cells=("FedAv",)),
            "* stands for any); did you mean 'FedAvg",
        ),
        (RunOptions(("tiny",), seeds=(3,)), "no run of these cells has the seed 3"),
    ):
        with chdir(project.root), pytest.raises(UserError, match=re.escape(line)):
            run_specs(project.workspace(), wish)


@pytest.mark.matrix
def test_a_broken_spec_that_nobody_asked_for(reproduced: Project, capsys: pytest.CaptureFixture[str]) -> None:
    reproduced.write("specs/broken.yaml", "gird: {}\n")
    (reproduced.root / "reports/tiny/report.md").unlink()
    with chdir(reproduced.root):
        assert run_specs(reproduced.workspace(), RunOptions(("tiny",))) == 0
    assert "pfl: left alone: specs/broken.yaml:1: gird: unknown key" in capsys.readouterr().err
    assert "guard" not in states(reproduced) and states(reproduced)["report tiny"] == "cached"
    # It does not count as looked at: DVC still finds it.
    done = reproduced.repro()
    assert done.code == 255 and done.ran == ["guard"] and "specs/broken.yaml:1: gird" in done.output


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (vandals.vanish_once, "its process was ended by SIGKILL; trying again"),
        (vandals.exhaust_once, "MemoryError: enough; trying again, at most 1 at a time on cpu from now on"),
        (vandals.stop_after_training, "its process was ended by SIGKILL; trying again"),
    ],
)
def test_what_the_machine_did_is_tried_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: object, message: str
) -> None:
    monkeypatch.setattr(local, "work", what)
    project.write("specs/tiny.yaml", spec("[fedavg]"))
    assert run_specs(project.workspace(), RunOptions(jobs=2)) == 0
    assert message in capsys.readouterr().err
    (train,) = board_of(project).of_kind("train")
    if what is vandals.stop_after_training:  # its outputs were complete, and are not made again
        assert (train.state, train.attempts) == ("cached", 1)
    else:
        assert (train.state, train.attempts) == ("done", 2)
    assert is_clean(project)


def test_a_dry_run_says_why(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_specs(project.workspace(), RunOptions(dry=True)) == 0
    told = capsys.readouterr().out
    assert "guard: not made yet" in told and "9 of 9 stages are to be done, at most; about" in told
    assert not (project.root / "artifacts").exists() and not status_path(project.workspace()).exists()


@contextmanager
def at_work(project: Project, *command: str, until: str) -> Iterator[subprocess.Popen[str]]:
    """A program in the project, as soon as a file that matches a pattern is there; it is ended afterwards."""
    process = subprocess.Popen(
        command, cwd=project.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        patience = time.monotonic() + 60
        while not list(project.root.glob(until)):
            assert process.poll() is None and time.monotonic() < patience, process.communicate()[0]
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout:
            process.stdout.close()
        process.wait()


TRAINING = ".pfl/checkpoints/*/round-*"


@pytest.mark.matrix
def test_others_at_work_in_the_same_workspace(project: Project) -> None:
    project.write("specs/tiny.yaml", spec("[fedavg]", rounds=150))
    with at_work(project, "pfl", "run", "-j", "1", until=TRAINING) as first:
        beside = project.repro()
        assert beside.code and "is busy, it is being blocked by" in beside.output and "pfl run (" in beside.output
        until = time.monotonic() + 60
        while "/150" not in (status := project.call("pfl", "status").stdout):  # no round has ended yet
            assert first.poll() is None and time.monotonic() < until, status
        assert "1 running" in status
        second = project.call("pfl", "run", "-j", "1")
        assert second.returncode == 0, second.stderr
        assert "another pfl run is at work here (process" in second.stderr and "stages in" in second.stderr
        assert first.wait(60) == 0
    assert is_clean(project)
    assert {entry.state for entry in board_of(project).entries.values()} == {"cached"}


@pytest.mark.matrix
def test_it_waits_for_what_a_dvc_repro_is_making(project: Project) -> None:
    project.write("specs/tiny.yaml", spec("[fedavg]", rounds=150))
    project.compile()
    with at_work(project, "dvc", "repro", until=TRAINING) as first:
        beside = project.call("pfl", "run", "-j", "1")
        assert beside.returncode == 0, beside.stderr
        assert "waiting, '" in beside.stderr and "is busy" in beside.stderr and "dvc repro" in beside.stderr
        first.communicate(timeout=60)
    assert is_clean(project)


@pytest.mark.matrix
def test_an_interruption_keeps_what_is_finished(project: Project) -> None:
    project.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper}", rounds=150))
    with at_work(project, "pfl", "run", "-j", "2", until=TRAINING) as process:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert output.rstrip().endswith("pfl: interrupted; the same command goes on from the last checkpoint")
    assert "Traceback" not in output
    assert not board_of(project).alive and not board_of(project).of_state("running")
    again = project.call("pfl", "run", "-j", "2")
    assert again.returncode == 0, again.stderr
    assert all(entry.state == "cached" for entry in board_of(project).of_kind("partition"))
    assert any("continued from the checkpoint" in path.read_text() for path in (project.root / ".pfl/logs").iterdir())
    assert is_clean(project)


@pytest.mark.matrix
def test_a_run_with_more_rounds_goes_on_from_where_it_was(project: Project) -> None:
    for rounds, said in ((3, ""), (5, "continued from 3 rounds of an earlier run")):
        project.write("specs/tiny.yaml", spec("[fedtp]", backbone=VIT, rounds=rounds))
        assert project.call("pfl", "run", "-j", "1").returncode == 0
        logs = "".join(path.read_text() for path in (project.root / ".pfl/logs").iterdir())
        assert said in logs and ("earlier run" in logs) == bool(said)
        assert is_clean(project)
    (run,) = project.compiled().runs
    longer = tree(project.root / "artifacts/runs" / run)
    for folder in ("artifacts/runs", ".dvc/cache", ".pfl/states"):
        shutil.rmtree(project.root / folder)
    assert project.call("pfl", "run", "-j", "1").returncode == 0
    assert tree(project.root / "artifacts/runs" / run) == longer


def test_a_second_run_waits_for_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    workspace = Workspace(tmp_path, tmp_path)

    def second() -> bool:
        with _alone(workspace) as waited:
            return waited

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyError), _alone(workspace) as waited:
            assert not waited
            later = pool.submit(second)
            with pytest.raises(NotYet):
                later.result(timeout=0.5)
            raise KeyError  # one that fails lets the next one work
        assert later.result(timeout=60)
    assert capfd.readouterr().err == "another pfl run is at work here; waiting for its end, see `pfl status`\n"
    with _alone(workspace) as waited:
        assert not waited
