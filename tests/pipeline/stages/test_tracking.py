"""Viewers of other people's: what they are sent, and that one which fails costs a line and not the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.project import make_project, spec

from pflcore.artifacts import read_table
from pflcore.engine import Progress
from pflcore.errors import UserError
from pflcore.protocols import curve
from pipeline.spec.run import Run
from pipeline.stages import tracking
from pipeline.stages.tracking import tracked
from pipeline.workspace import run_path


@pytest.mark.parametrize("fails", [None, 0, 1])
def test_a_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, fails: int | None) -> None:
    """It fails when it is begun, or in the first round."""
    run, shown, logged = next(iter(make_project(tmp_path).compiled().runs.values())), list[int](), dict[int, Any]()

    def log(round_: int, figures: Any) -> None:
        if round_ == fails:
            raise ConnectionError("the server\nis away")
        logged[round_] = figures

    def notes(run: Run, private: Path) -> Any:
        log(0, {})
        return log, lambda: log(-1, {})

    monkeypatch.setitem(tracking.TRACKERS, "notes", notes)
    for variable in ("", "notes,"):
        monkeypatch.setenv("PFL_TRACK", variable)
        with tracked(run, Path(".pfl"), lambda progress: shown.append(progress.round)) as on_round:
            for round_ in (1, 2):
                on_round(Progress(round_, 2, 1.5 / round_, 0.25 * round_))
    assert shown == [1, 2, 1, 2]
    if fails is None:  # accuracy where models are measured, which here is after either round
        figures = {1: {"loss": 1.5, "accuracy": 25.0}, 2: {"loss": 0.75, "accuracy": 50.0}}
        assert logged == {0: {}, **figures, -1: {}}
    else:
        line = "pfl: notes: logging disabled for this run (ConnectionError: the server is away)\n"
        assert capsys.readouterr().err == line and len(logged) == fails
    monkeypatch.setenv("PFL_TRACK", "tensorbord")
    with (
        pytest.raises(UserError, match="unknown viewer 'tensorbord'; did you mean 'tensorboard'"),
        tracked(run, Path(".pfl"), print),
    ):
        pass


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
        expected = [(int(r), pytest.approx(float(a))) for r, a, _ in zip(*curve(rounds), strict=True)]
        events = EventAccumulator(str(project.root / ".pfl/tensorboard" / run.id))
        events.Reload()
        assert [(event.step, event.value) for event in events.Scalars("accuracy")] == expected
        (found,) = client.search_runs([experiment], f"tags.`pfl.run` = '{run.id}'")
        history = client.get_metric_history(found.info.run_id, "accuracy")
        assert [(one.step, one.value) for one in history] == expected and found.info.status == "FINISHED"
    # A run that trains again goes on under its name.
    tracking.mlflow(run, project.workspace().private)[1]()
    assert len(client.search_runs([experiment])) == 2
