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


@pytest.mark.parametrize(
    ("first", "rounds", "seconds", "lines"),
    [
        (1, 10, 9.0, ["3/10, loss 0.667, accuracy 50.00 %, 63 s left", "6/10, loss 0.333, accuracy 50.00 %, 36 s left",
                      "9/10, loss 0.222, accuracy 50.00 %, 9 s left", "10/10, loss 0.200, accuracy 50.00 %"]),
        (8, 10, 30.0, ["8/10, loss 0.250, accuracy 50.00 %, 60 s left", "9/10, loss 0.222, accuracy 50.00 %, 30 s left",
                       "10/10, loss 0.200, accuracy 50.00 %"]),  # a resumed run counts its own
    ],
)  # fmt: skip
def test_lines_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    first: int, rounds: int, seconds: float, lines: list[str],
) -> None:  # fmt: skip
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with show_training("a-run") as update:
        for round_ in range(first, rounds + 1):
            now[0] += seconds
            update(Progress(round_, rounds, 2.0 / round_, 0.5))
    with show_preparation() as show:
        show("decoding", 0, 4000)
        for done in (1000, 2000, 3000, 4000):
            now[0] += 15
            show("decoding", done, 4000)
    expected = [f"a-run: round {line}" for line in lines]
    expected += ["decoding: 2,000/4,000, 30 s left", "decoding: 4,000/4,000, 0 s left"]
    assert capsys.readouterr() == ("".join(f"{line}\n" for line in expected), "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in {"TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(KeyboardInterrupt), show_training("a-run") as update:
        update(Progress(7, 1000, 0.5, 0.75))
        raise KeyboardInterrupt
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    last = [frame.strip() for frame in re.split(r"[\r\n]+", plain) if frame.strip()][-1]
    assert re.fullmatch(r"a-run \S+ +7/1000 loss 0\.500, accuracy 75\.00 % (--:--|\d+:\d\d)", last), last
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is shown again"
