"""The state of a ``pfl run``: kept in a file, shown by ``pfl status``, by bars and at the end; names of cells."""

import io
import time

import pytest
from rich.console import Console

from pflcore.errors import UserError
from pipeline.running import board as module
from pipeline.running.board import Board, Display, StageState, show_status, summary
from pipeline.running.options import cell_name, cells_meant
from pipeline.timing import duration


@pytest.fixture
def board(tmp_path):
    made = Board(title="pfl run -j 2", places=2)
    for name, state in (("a", "done"), ("b", "running"), ("c", "failed"), ("d", "queued"), ("e", "cached")):
        made.entries[name] = StageState(name, "train", f"run-{name}", state, expected=10.0)
    done, running, failed = (made.entries[name] for name in "abc")
    done.seconds, done.diverged = 20.0, True
    running.began, running.place = time.time() - 30, "gpu 1"
    for round_, accuracy in ((1, 0.1), (2, None), (3, 0.5)):
        running.progressed(round_, 9, accuracy)
    failed.note, failed.log = "the reason", str(tmp_path / "c.log")
    (tmp_path / "c.log").write_text("--- started\n" + "".join(f"line {number}\n" for number in range(9)))
    return made


def test_it_is_kept_in_a_file(board, tmp_path):
    path = tmp_path / "run.json"
    assert Board.load(path) is None
    board.path = path
    board.save(now=True)
    again = Board.load(path)
    assert again.entries == board.entries and again.title == "pfl run -j 2" and again.alive
    board.finish()
    again = Board.load(path)
    assert again.ended and not again.alive
    path.write_text('{"entries": [{"x": 1}]}')
    with pytest.raises(UserError, match=r"run\.json: cannot be read; the next `pfl run` writes it again"):
        Board.load(path)


def test_time_left_comes_from_what_has_been_trained(board):
    running = board.entries["b"]
    now = running.began + 30
    assert (running.resumed, running.accuracy) == (0, 0.5)
    assert running.left(now) == pytest.approx(60)
    assert board.left(now) == pytest.approx(60)  # the other place has less to do
    board.places = 1
    assert board.left(now) == pytest.approx(60 + 10)
    running.resumed = 2
    assert running.left(now) == pytest.approx(180)
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


def test_bars_on_a_terminal_and_lines_elsewhere(board, monkeypatch, capsys):
    with Display(board) as lines:
        lines.tick()
        lines.ended(board.entries["c"])
        lines.ended(board.entries["a"])
        lines.next_line = 0.0
        lines.tick()
    failed, trained, whole = capsys.readouterr().err.splitlines()
    assert (failed, trained) == ("FAILED run-c: the reason", "run-a: 20 s, diverged")
    assert whole.startswith("1 done, 1 running") and whole.endswith("run-b round 3/9, 50.00 %")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(module.sys, "stderr", terminal)
    for name, value in {"TERM": "xterm", "COLUMNS": "140"}.items():
        monkeypatch.setenv(name, value)
    with Display(board) as bars:
        bars.tick()
        bars.bars.refresh()
        board.entries["b"].state = "done"
        bars.tick()
        assert len(bars.bars.tasks) == 1, "the bar of all"
    shown = terminal.getvalue()
    assert "run-b" in shown and "round 3/9, 50.00 %" in shown and "run-c" not in shown


def test_what_patterns_of_cells_mean():
    names = ["FedAvg, 50", "FedAvg, 100", "FedOFA*, 50", "k[N], 50"]
    meant = {("FedAvg, *",): names[:2], ("FedOFA*, 50",): [names[2]], ("k[N], 50", "FedAvg, 1??"): names[1::2]}
    assert {patterns: sorted(cells_meant(patterns, names), key=names.index) for patterns in meant} == meant
    assert cells_meant([], names) == {*names} and cell_name({"method": "FedOFA*", "clients": "50"}) in names
    with pytest.raises(UserError, match=r"^no kept cell 'FedAgv, 50' .*; did you mean 'FedAvg, 50'\?$"):
        cells_meant([names[0], "FedAgv, 50"], names, "kept cell")
    with pytest.raises(UserError, match=r"^no cell 'x' .*, 'n11' and 988 more$"):
        cells_meant(["x"], [f"n{number}" for number in range(1000)])


def test_a_failure_is_shown_by_its_last_attempt(tmp_path):
    log, head = tmp_path / "a.log", "--- 2026-11-26 10:00:0{}  pfl stage train a --seal 1\n"
    log.write_text(f"{head.format(1)}old 1\nold 2\n--- 2026-11-26 10:00:02  failed: old\n{head.format(3)}new\n\n")
    lines = summary(Board(entries={"a": StageState("a", "train", "a", "failed", note="why", log=str(log))}))
    assert lines[1:3] == ["FAILED a: why", "    new"] and not any("old" in line for line in lines)
