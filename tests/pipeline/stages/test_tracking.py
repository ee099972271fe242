"""Curves of runs while they are trained: what viewers are told, what an interruption leaves, how it is shown."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pipeline.stages.live import LiveCurve, live_curves, sparkline
from rich.console import Console
from support.project import Project, make_project, spec

from pflcore.artifacts import read_table
from pflcore.engine import Progress
from pflcore.errors import UserError
from pflcore.protocols import curve
from pipeline.running.board import Board, StageState
from pipeline.running.display import live_view, show_status
from pipeline.spec.run import Run
from pipeline.stages import tracking
from pipeline.stages.tracking import open_sinks, tracked
from pipeline.workspace import run_path


class Notes:
    """A viewer that remembers, and fails in the round that it is told to."""

    made: ClassVar[list[Notes]] = []
    fails: ClassVar[int | None] = None

    def __init__(self, run: Run, private: Path) -> None:
        if Notes.fails == 0:
            raise ConnectionError("no server\nthere")
        self.run, self.closed = run, False
        self.figures: dict[int, dict[str, float]] = {}
        Notes.made.append(self)

    def log(self, round_: int, figures: Any) -> None:
        if round_ == Notes.fails:
            raise ConnectionError("the server\nis away")
        self.figures[round_] = dict(figures)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> type[Notes]:
    monkeypatch.setattr(Notes, "made", [])
    monkeypatch.setattr(Notes, "fails", None)
    monkeypatch.setitem(tracking.SINKS, "notes", Notes)
    return Notes


def a_run(project: Project) -> Run:
    return next(iter(project.compiled().runs.values()))


def training(run: Run, told: list[int]) -> None:
    with tracked(run, Path(".pfl"), lambda progress: told.append(progress.round)) as on_round:
        for round_ in (1, 2):
            on_round(Progress(round_, 2, 1.5 / round_, 0.25 * round_))


def test_who_is_asked_for_is_told_of_every_round(
    original: Project, notes: type[Notes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = a_run(original), list[int]()
    training(run, told)
    assert told == [1, 2] and not notes.made  # nobody is asked for
    monkeypatch.setenv("PFL_TRACK", "notes,")
    training(run, told)
    (viewer,) = notes.made
    # Accuracy where models are measured, which here is after either round.
    assert viewer.figures == {1: {"loss": 1.5, "accuracy": 25.0}, 2: {"loss": 0.75, "accuracy": 50.0}}
    assert viewer.closed and told == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("fails", "line"),
    [
        (0, "not told of this run: notes: ConnectionError: no server there"),
        (1, "notes is told no more of this run (ConnectionError: the server is away)"),
    ],
)
def test_a_viewer_that_fails_costs_a_line_and_not_the_run(
    original: Project,
    notes: type[Notes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fails: int,
    line: str,
) -> None:
    monkeypatch.setenv("PFL_TRACK", "notes")
    notes.fails = fails
    told: list[int] = []
    training(a_run(original), told)
    assert told == [1, 2] and not any(one.figures or one.closed for one in notes.made)
    assert capsys.readouterr().err == f"pfl: {line}\n"


def test_an_unknown_viewer_is_one_line(original: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_TRACK", "tensorbord")
    with pytest.raises(UserError, match="unknown viewer 'tensorbord'; did you mean 'tensorboard'"):
        training(a_run(original), [])


# --- the curves that `pfl status` shows ------------------------------------------------------------------------------


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
    assert sparkline([]) == "" and sparkline([5.0, 5.0]) == "▁▁"
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


@pytest.mark.slow
def test_tensorboard_and_mlflow_show_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    project = make_project(tmp_path, {"specs/tiny.yaml": spec()}, ["tiny"])
    done = project.call("pfl", "run", "tiny", PFL_TRACK="tensorboard,mlflow", PFL_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    client = MlflowClient((project.root / ".pfl/mlflow").as_uri())
    experiment = client.get_experiment_by_name("digits").experiment_id
    for run in project.compiled().runs.values():
        rounds = read_table(project.root / run_path(run.id, "rounds.parquet"), "rounds/2")[0]
        expected = [(int(r), float(a)) for r, a, _ in zip(*curve(rounds), strict=True)]
        events = EventAccumulator(str(project.root / ".pfl/tensorboard" / run.id))
        events.Reload()
        shown = [(event.step, event.value) for event in events.Scalars("accuracy")]
        assert shown == [(round_, pytest.approx(value)) for round_, value in expected]
        (found,) = client.search_runs([experiment], f"tags.`pfl.run` = '{run.id}'")
        history = client.get_metric_history(found.info.run_id, "accuracy")
        assert [(one.step, one.value) for one in history] == [(r, pytest.approx(a)) for r, a in expected]
        assert found.data.params["method"] == run.method and found.info.status == "FINISHED"
    # A run that trains again goes on under its name.
    assert len(client.search_runs([experiment])) == 2
    (sink,) = open_sinks(["mlflow"], run, project.workspace().private)
    sink.close()
    assert len(client.search_runs([experiment])) == 2
