"""Curves of runs while they are trained: what of them is there after an interruption, and how they are shown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rich.console import Console
from support.project import Project

from pflcore.engine import Progress
from pipeline.running.board import Board, StageState
from pipeline.running.display import live_view, show_status
from pipeline.stages.live import LiveCurve, live_curves, sparkline
from pipeline.stages.tracking import tracked


def test_a_run_that_goes_on_from_a_checkpoint_goes_on_with_its_curve(tmp_path: Path) -> None:
    first = LiveCurve("a", tmp_path)
    for round_, accuracy in ((2, 10.0), (4, 20.0), (6, 30.25)):
        first.add(round_, accuracy)
    assert live_curves(tmp_path) == {"a": [(2, 10.0), (4, 20.0), (6, 30.25)]}
    again = LiveCurve("a", tmp_path)  # killed; the checkpoint was of round 4
    again.add(6, 31.0)
    again.add(8, 40.0)
    assert live_curves(tmp_path)["a"] == [(2, 10.0), (4, 20.0), (6, 31.0), (8, 40.0)]
    again.end()
    assert live_curves(tmp_path) == {}
    again.end()


def test_a_line_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    LiveCurve("a", tmp_path).add(1, 12.5)
    path = tmp_path / "live/a.csv"
    path.write_text(path.read_text("utf-8") + "nonsense\n2,1", encoding="utf-8")
    assert live_curves(tmp_path) == {"a": [(1, 12.5)]}
    (tmp_path / "live/b.csv").write_bytes(b"\xff\xfe")
    assert live_curves(tmp_path) == {"a": [(1, 12.5)]}


def test_sparklines() -> None:
    assert sparkline([]) == "" and sparkline([5.0]) == "▁" and sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([0.0, 7.0, 3.5]) == "▁█▅"
    rising = sparkline([float(n) for n in range(100)], width=8)
    assert rising == "▁▂▃▄▅▆▇█"


def test_training_notes_its_curve_and_a_kill_leaves_it(original: Project, tmp_path: Path) -> None:
    run = next(iter(original.compiled().runs.values()))
    with tracked(run, tmp_path, lambda _: None) as on_round:
        on_round(Progress(1, 2, 1.0, 0.5))
        assert live_curves(tmp_path) == {run.id: [(1, 50.0)]}
    assert live_curves(tmp_path) == {}
    with pytest.raises(KeyboardInterrupt), tracked(run, tmp_path, lambda _: None) as on_round:
        on_round(Progress(1, 2, 1.0, None))
        on_round(Progress(2, 2, 1.0, 0.75))
        raise KeyboardInterrupt
    assert live_curves(tmp_path) == {run.id: [(2, 75.0)]}


def test_status_shows_curves_where_they_can_be_printed(tmp_path: Path) -> None:
    for round_, accuracy in ((1, 10.0), (2, 80.0)):
        LiveCurve("a", tmp_path).add(round_, accuracy)
    entries = {name: StageState(name, "train", name, "running", began=time.time(), round=2, rounds=4) for name in "ab"}
    board = Board("pfl run", entries=entries, path=tmp_path / "run.json")
    console = Console(width=200, record=True, force_terminal=True)
    show_status(board, console, False)
    console.print(live_view(board))
    text = console.export_text()
    assert text.count("▁█") == 2
