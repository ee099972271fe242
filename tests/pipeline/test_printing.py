"""A reader who does not read, at a terminal or a pipe, holds up neither scheduling nor training."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from filelock import FileLock
from support.killing import Victim
from support.project import Project, make_project, spec

from pipeline.printing import Printer
from pipeline.progress import show_preparation
from pipeline.running.board import Board, status_path

PATIENCE = 60  # seconds that nothing here needs
FILLING = b"." * 512


def full(kind: str) -> tuple[int, int]:
    """A pipe or a terminal, by its end for reading and the one for writing; it holds all that it can."""
    reading, writing = os.pipe() if kind == "pipe" else pty.openpty()
    if kind == "terminal":
        termios.tcsetwinsize(writing, (24, 200))
    os.set_blocking(writing, False)
    for size in (len(FILLING), 1):
        with suppress(BlockingIOError):
            while True:
                os.write(writing, FILLING[:size])
    os.set_blocking(writing, True)
    return reading, writing


def rest(reading: int) -> str:
    """What comes until nobody writes any more, without what it was filled with."""
    found = b""
    with suppress(OSError):  # how a terminal ends
        while data := os.read(reading, 65536):
            found += data
    os.close(reading)
    return found.decode().lstrip(".").replace("\r\n", "\n")


def wait_for(process: subprocess.Popen[bytes], what: Callable[[], object]) -> None:
    patience = time.monotonic() + PATIENCE
    while not what():
        assert process.poll() is None and time.monotonic() < patience
        time.sleep(0.05)


@contextmanager
def started(project: Project, writing: int, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output goes where nobody reads."""
    environment = project.environment(PFL_CHECKPOINT_SECONDS="0", PFL_DEVICE="cpu", TERM="xterm")
    process = subprocess.Popen(
        command, cwd=project.root, env=environment, stdout=writing, stderr=writing, start_new_session=True
    )
    os.close(writing)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def board_of(project: Project) -> Board | None:
    return Board.load(status_path(project.workspace()))


def has_ended(project: Project) -> bool:
    board = board_of(project)
    return bool(board and board.ended)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_all_stages_end_while_nobody_reads(tmp_path: Path, kind: str) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]")}, default=["tiny"])
    reading, writing = full(kind)
    with started(project, writing, "pfl", "run", "-j", "2") as process:
        wait_for(process, lambda: has_ended(project))
        wait_for(process, (tmp_path / "reports/index.html").is_file)  # pages do not wait for him either
        board = board_of(project)
        assert board and {entry.state for entry in board.entries.values()} == {"done"}
        with FileLock(tmp_path / ".pfl/run.lock", timeout=PATIENCE):
            assert process.poll() is None  # it waits with what it has to say
        told = rest(reading)
        assert process.wait(PATIENCE) == 0
    (run,) = board.of_kind("train")
    order = [f"{run.name}: ", "report tiny: ", "stages in", "# Tiny", "All of it: reports/tiny", "reports/index.html"]
    places = [told.find(words) for words in order]
    assert -1 not in places and places == sorted(places), told


@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_nobody_reads(tmp_path: Path, number: signal.Signals) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]", rounds=2000)}, default=["tiny"])
    reading, writing = full("terminal")
    with started(project, writing, "pfl", "run", "-j", "2") as process:
        wait_for(process, lambda: list(tmp_path.glob(".pfl/checkpoints/*/round-*")))
        process.send_signal(number)
        assert process.wait(PATIENCE) == 130
        board = board_of(project)
        assert board and board.ended and not board.of_state("running")
        assert {entry.kind for entry in board.of_state("done")} >= {"guard", "data", "partition"}
    os.close(reading)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_training_ends_while_nobody_reads(tmp_path: Path, kind: str) -> None:
    victim = Victim(tmp_path, "fedavg", rounds=3)
    reading, writing = full(kind)
    with started(victim.project, writing, "pfl", "stage", "train", str(victim.record.relative_to(tmp_path))) as process:
        assert process.wait(PATIENCE) == 0
    assert (victim.out / "rounds.parquet").is_file()
    os.close(reading)


@contextmanager
def standard_output(monkeypatch: pytest.MonkeyPatch, writing: int) -> Iterator[None]:
    with open(writing, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield


def test_what_was_printed_meanwhile_comes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = full("pipe")
    with standard_output(monkeypatch, writing):
        with Printer():
            for number in range(10_000):
                print(number, file=sys.stderr if number % 2 else sys.stdout)
        print("later", flush=True)  # in turn, although its moment is over
        text = ""
        while not text.endswith("later\n"):
            text += os.read(reading, 65536).decode()
    os.close(reading)
    assert text.lstrip(".").split() == [*map(str, range(10_000)), "later"]


def test_a_reader_who_has_left_is_told_of_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with standard_output(monkeypatch, writing):
        worked = False
        with pytest.raises(BrokenPipeError), Printer(complete=True):
            print("a line")
            print("another")
            worked = True
        with Printer():
            print("nobody minds")
    assert worked


def test_a_forked_process_prints_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with standard_output(monkeypatch, writing), Printer():
        if not (child := os.fork()):
            print("from the child", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    assert rest(reading) == "from the child\n"


def test_bars_of_preparation_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = full("terminal")
    monkeypatch.setenv("TERM", "xterm")
    with standard_output(monkeypatch, writing), show_preparation() as update:
        for what in ("decoding", "resizing"):
            for done in range(5):
                update(what, done, 5)
                print(f"{what} {done}")
        told = b""
        while b"resizing 4" not in told:  # he reads again
            told += os.read(reading, 65536)
    assert "\x1b[?25h" in rest(reading)  # the cursor is shown again
