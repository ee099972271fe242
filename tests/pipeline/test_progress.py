"""What work says of itself while it lasts, and how long it took."""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pflcore.engine import Progress
from pipeline import progress as module
from pipeline.progress import show_preparation, show_training
from pipeline.timing import Timing, read_timing


def test_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for first, seconds in ((1, 9.0), (8, 30.0)):  # the latter a run that was resumed, which counts its own
        with show_training("a-run") as update:
            for round_ in range(first, 11):
                now[0] += seconds
                update(Progress(round_, 10, 2.0 / round_, 0.5))
    with show_preparation() as show:
        show("decoding", 0, 4000)
        for done in (1000, 2000, 3000, 4000):
            now[0] += 15
            show("decoding", done, 4000)
    rounds = [
        ("3/10, loss 0.667", ", 63 s left"), ("6/10, loss 0.333", ", 36 s left"), ("9/10, loss 0.222", ", 9 s left"),
        ("10/10, loss 0.200", ""), ("8/10, loss 0.250", ", 60 s left"), ("9/10, loss 0.222", ", 30 s left"),
        ("10/10, loss 0.200", ""),
    ]  # fmt: skip
    expected = [f"a-run: round {words}, accuracy 50.00 %{left}" for words, left in rounds]
    expected += ["decoding: 2,000/4,000, 30 s left", "decoding: 4,000/4,000, 0 s left"]
    assert capsys.readouterr() == ("".join(f"{line}\n" for line in expected), "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True
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


def test_what_is_no_duration_is_no_timing(tmp_path: Path) -> None:
    path = tmp_path / "run.json"  # which anybody may have edited
    for seconds, work, known in (("2.5", "null", Timing(2.5, "cpu", 3)), ("2.5", "4", Timing(2.5, "cpu", 3, 4))):
        path.write_text(f'{{"seconds": {seconds}, "device": "cpu", "rounds": 3, "core_seconds": {work}}}')
        assert read_timing(path) == known
    for seconds, work in (("Infinity", 0), ("NaN", 0), ("-1", 0), (2.5, "Infinity"), (10**400, 0), ('"2.5"', 0)):
        path.write_text(f'{{"seconds": {seconds}, "device": "cpu", "rounds": 3, "core_seconds": {work}}}')
        assert read_timing(path) is None
