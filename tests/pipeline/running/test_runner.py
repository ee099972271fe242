"""``pfl run`` on real projects: the state that `dvc repro` would reach, whatever comes in between."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from filelock import FileLock
from support import vandals
from support.project import VIT, Project, make_project, spec, tree

from pflcore.errors import UserError
from pipeline.dvc.finished import Finished
from pipeline.dvc.recorder import Recorder
from pipeline.running import local
from pipeline.running.board import Board, status_path
from pipeline.running.request import Wish
from pipeline.running.runner import run_specs
from pipeline.spec.records import read_run

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
    assert run_specs(project.workspace(), Wish(jobs=2)) == 0
    assert is_clean(project)
    found = states(project)
    assert set(found.values()) == {"done"} and len(found) == 10
    assert results(project) == results(original)
    # Now there is nothing to do, and what is lost comes from DVC's cache.
    assert run_specs(project.workspace(), Wish(jobs=2)) == 0
    assert set(states(project).values()) == {"cached"}
    for name in ("artifacts", "reports"):
        shutil.rmtree(project.root / name)
    for lock in [project.root / "dvc.lock", *project.root.glob("stages/**/dvc.lock")]:
        lock.unlink()
    assert run_specs(project.workspace(), Wish(jobs=2)) == 0
    assert set(states(project).values()) == {"cached"}
    assert results(project) == results(original) and is_clean(project)


@pytest.mark.matrix
def test_a_failure_stops_only_what_depends_on_it(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.write("specs/tiny.yaml", spec(FEDTP_NEEDS_A_TRANSFORMER))
    project.write("specs/well.yaml", spec("[fedavg]"))
    assert run_specs(project.workspace(), Wish(specs=("tiny", "well"), jobs=1)) == 1
    told = capsys.readouterr()
    board = board_of(project)
    (failed,) = board.of_state("failed")
    assert failed.kind == "train" and failed.subject.startswith("fedtp-") and failed.attempts == 1
    assert {entry.name for entry in board.of_state("skipped")} == {f"evaluate {failed.subject}", "report tiny"}
    assert f"FAILED {failed.subject}: {failed.note}" in told.err
    assert "to try the rest again: pfl run tiny well -j 1" in told.err
    assert "# Tiny" in told.out  # the report of the other spec
    assert (project.root / "reports/well/report.md").is_file() and not (project.root / "reports/tiny").exists()
    # With a correction the rest is done, and nothing else.
    project.write("specs/tiny.yaml", spec("[fedavg]"))
    assert run_specs(project.workspace(), Wish(specs=("tiny", "well"), jobs=1)) == 0
    done = {entry.kind for entry in board_of(project).of_state("done")}
    assert done <= {"guard", "report"}


def test_only_some_cells(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Local: local}", more="    seed: [0, 7]\n"))
    with chdir(project.root):
        assert run_specs(project.workspace(), Wish(("tiny",), cells=("Fed*",), seeds=(7,))) == 0
    trained = [path.parent.name for path in project.root.glob("artifacts/runs/*/evaluation.parquet")]
    records = [read_run(path) for run in trained for path in project.root.glob(f"stages/federations/*/{run}.yaml")]
    assert sorted((run.method, run.seed) for run in records) == [("fedavg", 7), ("fedper", 7)]
    assert not (project.root / "reports/tiny").exists()
    for wish, line in (
        (
            Wish(("tiny",), cells=("FedAv",)),
            "* stands for any); did you mean 'FedAvg",
        ),
        (Wish(("tiny",), seeds=(3,)), "no run of these cells has the seed 3"),
    ):
        with chdir(project.root), pytest.raises(UserError, match=re.escape(line)):
            run_specs(project.workspace(), wish)


def test_a_broken_spec_that_nobody_asked_for(reproduced: Project, capsys: pytest.CaptureFixture[str]) -> None:
    reproduced.write("specs/broken.yaml", "gird: {}\n")
    (reproduced.root / "reports/tiny/report.md").unlink()
    with chdir(reproduced.root):
        assert run_specs(reproduced.workspace(), Wish(("tiny",))) == 0
    assert "pfl: left alone: specs/broken.yaml:1: gird: unknown key" in capsys.readouterr().err
    assert "guard" not in states(reproduced) and states(reproduced)["report tiny"] == "cached"
    # It does not count as looked at: DVC still finds it.
    done = reproduced.repro()
    assert done.code == 255 and done.ran == ["guard"] and "specs/broken.yaml:1: gird" in done.output


@pytest.mark.matrix
def test_fail_fast_starts_nothing_more(project: Project) -> None:
    project.write("specs/tiny.yaml", spec("{FedTP: fedtp}", rounds=50))  # the longest goes first
    project.write("specs/later.yaml", spec("{FedPer: fedper, FedProx: fedprox}"))
    wish = Wish(specs=("tiny", "later"), jobs=1, keep_going=False)
    assert run_specs(project.workspace(), wish) == 1
    board = board_of(project)
    (failed,) = board.of_state("failed")
    assert failed.kind == "train" and failed.subject.startswith("fedtp-")
    trainings = [entry.state for entry in board.of_kind("train") if entry is not failed]
    assert trainings == ["queued", "queued"] and not board.of_state("running", "waiting")
    assert "--fail-fast" in board.title


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
    assert run_specs(project.workspace(), Wish(jobs=2)) == 0
    assert message in capsys.readouterr().err
    (train,) = board_of(project).of_kind("train")
    if what is vandals.stop_after_training:  # its outputs were complete, and are not made again
        assert (train.state, train.attempts) == ("cached", 1)
    else:
        assert (train.state, train.attempts) == ("done", 2)
    assert is_clean(project)


def test_what_vanishes_every_time_fails(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "work", vandals.vanish)
    assert run_specs(project.workspace(), Wish(jobs=2)) == 1
    (guard,) = board_of(project).of_state("failed")
    assert guard.kind == "guard" and guard.attempts == 3


def test_a_dry_run_says_why(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_specs(project.workspace(), Wish(dry=True)) == 0
    told = capsys.readouterr().out
    assert "guard: not made yet" in told and "10 of 10 stages are to be done, at most; about" in told
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
        while "/150" not in (status := project.call("pfl", "status").stdout):  # no round has ended yet
            assert first.poll() is None, status
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


def recorder_of(project: Project) -> Recorder:
    notes = Finished(project.root, project.root / ".pfl/finished")
    return Recorder(project.root, project.compiled().stages, notes)


def test_dvc_learns_of_a_stage_and_forgets_nothing(project: Project) -> None:
    project.compile()
    with chdir(project.root):
        recorder = recorder_of(project)
        address = "dvc.yaml:guard"
        assert recorder.stale([address]) == {address: "not made yet"}
        verdict = recorder.begin([address])[address]
        assert verdict.what == "run" and verdict.key
        # What is under way here, DVC leaves alone.
        beside = project.repro("guard")
        assert beside.code and "pfl run (guard)" in beside.output
        assert recorder.record([address]) == {
            address: "output 'artifacts/guard.txt' does not exist"
        }  # nobody has made it
        assert recorder.begin([address])[address] == verdict
        project.write("artifacts/guard.txt", "made\n")
        assert recorder.record([address]) == {}
        recorder.close()
        lock = project.root / "dvc.lock"
        assert yaml.safe_load(lock.read_text())["stages"]["guard"]["outs"][0]["path"] == "artifacts/guard.txt"
        # A lock file that was cut short is made again from the run cache, the output too.
        lock.write_bytes(lock.read_bytes()[:40])
        (project.root / "artifacts/guard.txt").unlink()
        recorder = recorder_of(project)
        assert recorder.stale([address])
        assert recorder.begin([address])[address].what == "cached"
        assert (project.root / "artifacts/guard.txt").read_text() == "made\n"
        assert recorder.begin([address])[address].what == "fresh"
        recorder.close()
    assert "guard" in yaml.safe_load(lock.read_text())["stages"]


@pytest.mark.parametrize("marks_too", [False, True])
def test_a_process_ends_that_cannot_give_back_what_it_holds(
    project: Project, marks_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its disk has become read-only: what it holds must not be left to the end of the interpreter."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), ".dvc/tmp/lock")

    project.compile()
    with chdir(project.root):
        recorder = recorder_of(project)
        recorder.begin(["dvc.yaml:guard"])
        held = [stack for stack, _ in recorder._held.values()]
        monkeypatch.setattr(type(recorder.repo.lock), "__enter__", refuse)
        if marks_too:
            monkeypatch.setattr("dvc.rwlock._edit_rwlock", refuse)
        else:
            monkeypatch.setattr("dvc.rwlock.make_lock", lambda *_, **__: nullcontext())
        with pytest.raises(UserError, match=r"\.dvc/tmp/lock: Read-only file system"):
            recorder.close()
        left = len(recorder._held)
        held[0].close()  # of which nothing is left to be done, or this would hang where the test fails
    assert (len(held), left) == (1, 0)
    marks = json.loads((project.root / ".dvc/tmp/rwlock").read_text())
    assert bool(marks.get("write")) == marks_too


def test_inputs_that_change_while_a_stage_runs_are_noticed(project: Project) -> None:
    project.compile()
    with chdir(project.root):
        recorder = recorder_of(project)
        address = "dvc.yaml:guard"
        recorder.begin([address])
        project.write("artifacts/guard.txt", "made\n")
        project.write("specs/other.yaml", spec())
        assert recorder.record([address]) == {
            address: "what it depends on changed while it ran; nothing is recorded, run it again"
        }
        assert not (project.root / "dvc.lock").exists()
        assert recorder.begin([address])[address].what == "run", "as it is told"
        project.write("artifacts/guard.txt", "made\n")
        assert recorder.record([address]) == {}
        recorder.close()
        assert (project.root / "dvc.lock").exists()


def test_what_another_process_is_making_is_left_alone(reproduced: Project) -> None:
    """Half a report that another process has written so far is not a person's, to be set aside."""
    address = next(name for name, one in reproduced.stages().items() if "stage report" in one["cmd"])
    output = reproduced.root / "reports/tiny/report.md"
    output.unlink()  # which may be a link
    output.write_text("theirs so far")
    mark = {"pid": os.getppid(), "cmd": "dvc repro theirs"}
    reproduced.write(".dvc/tmp/rwlock", json.dumps({"write": {str(output): mark}}))
    with chdir(reproduced.root):
        recorder = recorder_of(reproduced)
        verdict = recorder.begin([address])[address]
        recorder.close()
    assert verdict.what == "busy" and "dvc repro theirs" in verdict.why
    assert output.read_text() == "theirs so far" and not list(reproduced.root.glob(".pfl/replaced/*"))
    assert json.loads((reproduced.root / ".dvc/tmp/rwlock").read_text())["write"] == {str(output): mark}


def test_what_was_made_of_other_inputs_does_not_come_back(reproduced: Project) -> None:
    """The command is the same, and what it made before is in the cache."""
    with chdir(reproduced.root):
        for name, stage in reproduced.stages().items():
            for path in (reproduced.root / dep for dep in stage["deps"] if not dep.startswith("stages/")):
                if not path.is_file() or name == "guard":
                    continue
                before = path.read_bytes()
                path.unlink()  # which may be a link
                path.write_bytes(before + b" ")
                recorder, address = recorder_of(reproduced), name if ":" in name else f"dvc.yaml:{name}"
                assert recorder.begin([address])[address].what == "run", (address, path)
                recorder.give_up(address)
                path.write_bytes(before)
                assert recorder.begin([address])[address].what == "cached"
                recorder.close()


@pytest.mark.parametrize("damage", ["", "{", '{"write": 3'])
def test_a_damaged_list_of_dvc_locks_is_made_anew(project: Project, damage: str) -> None:
    project.compile()
    project.write(".dvc/tmp/rwlock", damage)
    with chdir(project.root):
        recorder = recorder_of(project)
        assert recorder.stale(["dvc.yaml:guard"])
        recorder.close()


def test_what_is_no_repository_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"DVC: .*not.* inside of a DVC repository"):
        Recorder(tmp_path, [], Finished(tmp_path, tmp_path))


def test_only_one_of_two_waits(project: Project) -> None:
    """The lock of a run that was killed does not remain."""
    (project.root / ".pfl").mkdir(exist_ok=True)
    with FileLock(project.root / ".pfl/run.lock"):
        pass
    assert run_specs(project.workspace(), Wish(dry=True)) == 0
