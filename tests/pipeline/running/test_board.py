"""What is said while work lasts: of a run, by ``pfl status``, bars and at its end; of a stage; names of cells."""

import io
import re
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from support.mistakes import line_of, refuses

from pflcore.engine import Progress
from pflcore.errors import UserError
from pipeline import progress
from pipeline.progress import show_preparation, show_training
from pipeline.running.board import Board, Display, StageState, show_status, summary
from pipeline.running.options import cell_name, match_cells
from pipeline.timing import Timing, duration, read_timing


@pytest.fixture
def board(tmp_path):
    made = Board(title="pfl run -j 2", places=2)
    for name, state in (("a", "done"), ("b", "running"), ("c", "failed"), ("d", "queued"), ("e", "cached")):
        made.entries[name] = StageState(name, "train", f"run-{name}", state, expected=10.0)
    done, running, failed = (made.entries[name] for name in "abc")
    done.seconds, done.diverged = 20.0, True
    running.began, running.place = time.time() - 30, "gpu 1"
    for round_, accuracy in ((1, 0.1), (2, None), (3, 0.5)):
        running.record_round(round_, 9, accuracy)
    failed.note, failed.log = "the reason", str(tmp_path / "c.log")
    (tmp_path / "c.log").write_text("--- started\n" + "".join(f"line {number}\n" for number in range(9)))
    return made


def test_it_is_kept_in_a_file(board, tmp_path):
    path = tmp_path / "run.json"
    assert Board.load(path) is None
    board.path = path
    board.save(force=True)
    again = Board.load(path)
    assert again.entries == board.entries and again.title == "pfl run -j 2" and again.alive
    board.finish()
    again = Board.load(path)
    assert again.ended and not again.alive
    path.write_text('{"entries": [{"x": 1}]}')
    assert "run.json: cannot be read; the next `pfl run` writes it again" in line_of(Board.load, path)


def test_time_left_comes_from_what_has_been_trained(board):
    running = board.entries["b"]
    now = running.began + 30
    assert (running.resumed, running.accuracy) == (0, 0.5)
    assert running.remaining(now) == pytest.approx(60)
    assert board.remaining(now) == pytest.approx(60)  # the other place has less to do
    board.places = 1
    assert board.remaining(now) == pytest.approx(60 + 10)
    running.resumed = 2
    assert running.remaining(now) == pytest.approx(180)
    words = {0.04: "0.0 s", 42: "42 s", 187: "3:07 min", 7500: "2:05 h", 273_600: "3 d 4 h"}
    assert {seconds: duration(seconds) for seconds in words} == words


def test_status_and_the_end_name_what_runs_and_what_went_wrong(board):
    def shown(everything):
        console = Console(width=140, record=True, force_terminal=True, file=io.StringIO())
        show_status(board, console, everything)
        return console.export_text().splitlines()

    first, whole, _, *lines = shown(False)
    assert first.startswith("pfl run -j 2: since")
    assert whole.startswith("1 done, 1 running, 1 failed, 1 queued (1 cached), about")
    assert [line.split()[:2] for line in lines] == [["run-a", "diverged"], ["run-b", "running"], ["run-c", "failed"]]
    assert all(words in lines[1] for words in ("3/9", "50.00 %", "gpu 1")) and "the reason" in lines[2]
    assert len(shown(True)) == len(lines) + 5
    lines = summary(board)
    assert "1 done, 1 cached, 1 failed, 1 not done, 1 run trained" in lines[0] and lines[1] == "diverged: run-a"
    assert lines[2:5] == ["FAILED run-c: the reason", "    line 4", "    line 5"] and "c.log" in lines[-2]
    assert lines[-1].endswith("to try the rest again: pfl run -j 2")
    board.process = 2**22 + 1
    first, whole, _, *lines = shown(False)
    assert "was stopped (it began" in first and first.endswith("type it again to continue")
    assert whole == "1 done, 1 stopped, 1 failed, 1 queued (1 cached)" and lines[1].split()[:2] == ["run-b", "stopped"]


def test_lines_where_there_is_no_terminal(board, capsys):
    lines = Display(board)
    with lines.bars:
        lines.update()
        lines.print_end(board.entries["c"])
        lines.print_end(board.entries["a"])
        lines.next_line = 0.0
        lines.update()
    failed, trained, whole = capsys.readouterr().err.splitlines()
    assert (failed, trained) == ("FAILED run-c: the reason", "run-a: 20 s, diverged")
    assert whole.startswith("1 done, 1 running") and whole.endswith("run-b round 3/9, 50.00 %")


def test_bars_on_a_terminal(board, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in {"TERM": "xterm", "COLUMNS": "140"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    bars = Display(board)
    with bars.bars:
        bars.update()
        bars.bars.refresh()
        board.entries["b"].state = "done"
        bars.update()
        assert len(bars.bars.tasks) == 1, "the bar of all"
    shown = terminal.getvalue()
    assert "run-b" in shown and "round 3/9, 50.00 %" in shown and "run-c" not in shown
    with pytest.raises(KeyboardInterrupt), show_training("a-run") as update:
        update(Progress(7, 1000, 0.5, 0.75))
        raise KeyboardInterrupt
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    last = [frame.strip() for frame in re.split(r"[\r\n]+", plain) if frame.strip()][-1]
    assert re.fullmatch(r"a-run \S+ +7/1000 loss 0\.500, accuracy 75\.00 % (--:--|\d+:\d\d)", last), last
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is shown again"


def test_what_patterns_of_cells_mean():
    names = ["FedAvg, 50", "FedAvg, 100", "FedOFA*, 50", "k[N], 50"]
    meant = {("FedAvg, *",): names[:2], ("FedOFA*, 50",): [names[2]], ("k[N], 50", "FedAvg, 1??"): names[1::2]}
    assert {patterns: sorted(match_cells(patterns, names), key=names.index) for patterns in meant} == meant
    assert match_cells([], names) == {*names} and cell_name({"method": "FedOFA*", "clients": "50"}) in names
    with pytest.raises(UserError, match=r"^no kept cell 'FedAgv, 50' .*; did you mean 'FedAvg, 50'\?$"):
        match_cells([names[0], "FedAgv, 50"], names, "kept cell")
    refuses(r"^no cell 'x' .*, 'n11' and 988 more$", match_cells, ["x"], [f"n{number}" for number in range(1000)])


def test_a_failure_is_shown_by_its_last_attempt(tmp_path):
    log, head = tmp_path / "a.log", "--- 2026-11-26 10:00:0{}  pfl stage train a --seal 1\n"
    log.write_text(f"{head.format(1)}old 1\nold 2\n--- 2026-11-26 10:00:02  failed: old\n{head.format(3)}new\n\n")
    lines = summary(Board(entries={"a": StageState("a", "train", "a", "failed", note="why", log=str(log))}))
    assert lines[1:3] == ["FAILED a: why", "    new"] and not any("old" in line for line in lines)


def test_a_stage_says_now_and_then_how_far_it_is(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
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


def test_what_is_no_duration_is_no_timing(tmp_path):
    path = tmp_path / "run.json"
    for text, known in (
        ('{"seconds": 2.5, "device": "cpu", "rounds": 3, "core_seconds": 4}', Timing(2.5, "cpu", 3, 4)),
        ('{"seconds": 2.5, "device": "cpu", "rounds": 3}', Timing(2.5, "cpu", 3)),
        ('{"seconds": 2.5, "dev', None),
        ('{"seconds": 2.5}', None),
    ):
        path.write_text(text)
        assert read_timing(path) == known
