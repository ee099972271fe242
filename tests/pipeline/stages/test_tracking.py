"""Viewers of curves: what they are told while a run trains, and that none of them can stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.project import Project, make_project, spec

from pflcore.artifacts import read_table
from pflcore.engine import Progress
from pflcore.errors import UserError
from pflcore.protocols import curve
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


def test_a_viewer_that_fails_is_let_go_with_a_line(
    original: Project, notes: type[Notes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PFL_TRACK", "notes")
    notes.fails = 1
    told: list[int] = []
    training(a_run(original), told)
    assert told == [1, 2] and notes.made[0].figures == {} and not notes.made[0].closed
    line = capsys.readouterr().err
    assert line == "pfl: notes is told no more of this run (ConnectionError: the server is away)\n"


def test_a_viewer_that_cannot_be_opened_costs_a_line_and_not_the_run(
    original: Project,
    notes: type[Notes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PFL_TRACK", "notes")
    notes.fails = 0
    told: list[int] = []
    training(a_run(original), told)
    assert told == [1, 2]
    assert capsys.readouterr().err == "pfl: not told of this run: notes: ConnectionError: no server there\n"


def test_an_unknown_viewer_is_one_line(original: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_TRACK", "tensorbord")
    with pytest.raises(UserError, match="unknown viewer 'tensorbord'; did you mean 'tensorboard'"):
        training(a_run(original), [])


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
