"""Showing progress: a bar on a terminal, a line now and then elsewhere; both with the time left."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest

from pflcore.engine import Progress
from pipeline import progress as module
from pipeline.progress import show_preparation, show_training


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


class Terminal(io.StringIO):
    """Standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def show(clock: Clock, first: int, rounds: int, seconds: float, accuracy: float | None = 0.5) -> None:
    """Rounds of equal length, from `first` on."""
    with show_training("a-run") as update:
        for round_ in range(first, rounds + 1):
            clock.now += seconds
            update(Progress(round_, rounds, 2.0 / round_, accuracy))


def test_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    show(Clock(monkeypatch), first=1, rounds=10, seconds=9.0)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "a-run: round 3/10, loss 0.667, accuracy 50.00 %, 63 s left",
        "a-run: round 6/10, loss 0.333, accuracy 50.00 %, 36 s left",
        "a-run: round 9/10, loss 0.222, accuracy 50.00 %, 9 s left",
        "a-run: round 10/10, loss 0.200, accuracy 50.00 %",
    ]
    assert printed.err == ""


def test_a_resumed_run_counts_its_own_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(Clock(monkeypatch), first=8, rounds=10, seconds=30.0)
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "60 s left",
        "30 s left",
        "accuracy 50.00 %",
    ]


def test_a_short_run_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    show(Clock(monkeypatch), first=1, rounds=3, seconds=0.1, accuracy=None)
    assert capsys.readouterr().out == "a-run: round 3/3, loss 0.667\n"


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error from here on."""
    fake = Terminal()
    monkeypatch.setattr(sys, "stderr", fake)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return fake


def frames(terminal: Terminal) -> list[str]:
    """What was on the terminal's last line, one after another, without escape codes."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    return [frame.strip() for frame in re.split(r"[\r\n]+", plain) if frame.strip()]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = terminal_of(monkeypatch)
    with show_training("a-run") as update:
        update(Progress(1, 3, 2.0, None))
        update(Progress(2, 3, 1.0, 0.25))
        update(Progress(3, 3, 0.5, 0.75))
    last = frames(terminal)[-1]
    assert re.fullmatch(r"a-run \S+ 3/3 loss 0\.500, accuracy 75\.00 % \d\d:\d\d", last), last
    assert capsys.readouterr().out == ""


def test_the_bar_of_a_resumed_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with show_training("a-run") as update:
        update(Progress(6, 1000, 2.0, None))
        update(Progress(7, 1000, 1.0, None))
    assert re.search(r" 7/1000 loss 1\.000 (--:--|\d+:\d\d)", frames(terminal)[-1])


def test_a_failure_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with pytest.raises(KeyboardInterrupt), show_training("a-run") as update:
        update(Progress(1, 3, 2.0, None))
        raise KeyboardInterrupt
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_preparation_in_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(monkeypatch)
    with show_preparation() as update:
        update("decoding", 0, 4000)
        for done in (1000, 2000, 3000, 4000):
            clock.now += 15
            update("decoding", done, 4000)
        update("more", 0, 10)
        clock.now += 5
        update("more", 10, 10)
    assert capsys.readouterr().out.splitlines() == [
        "decoding: 2,000/4,000, 30 s left",
        "decoding: 4,000/4,000, 0 s left",
    ]
