"""Curves in other people's viewers: ``PFL_TRACK=tensorboard,mlflow`` shows there what is measured anyway.

It is no part of a run: nothing becomes stale by it, and of a viewer that fails a line is said while training goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.run import Run

if TYPE_CHECKING:
    from pflcore.engine import Progress


class TensorBoard:
    """Event files below ``.pfl/tensorboard/<run>``."""

    def __init__(self, run: Run, private: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        from pipeline.report.settings import settings_of

        self.writer = SummaryWriter(str(private / "tensorboard" / run.id))
        self.writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings_of(run).items()))

    def log(self, round_: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, round_)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class MLflow:
    """A run of the experiment with the name of its dataset, at ``$MLFLOW_TRACKING_URI`` or else in ``.pfl/mlflow``.

    A run that is there already goes on.
    """

    def __init__(self, run: Run, private: Path) -> None:
        where = os.environ.get("MLFLOW_TRACKING_URI")
        if not where:  # which newer versions have to be allowed
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        from pipeline.report.settings import settings_of

        self.client = MlflowClient(where or (private / "mlflow").absolute().as_uri())
        found = self.client.get_experiment_by_name(run.dataset)
        experiment = found.experiment_id if found else self.client.create_experiment(run.dataset)
        if known := self.client.search_runs([experiment], f"tags.`pfl.run` = '{run.id}'"):
            self.run = known[0].info.run_id
            return
        tags = {"pfl.run": run.id, "mlflow.runName": run.id}
        self.run = self.client.create_run(experiment, run_name=run.id, tags=tags).info.run_id
        for name, value in {**settings_of(run), "seed": run.seed}.items():
            self.client.log_param(self.run, name, value)

    def log(self, round_: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.client.log_metric(self.run, name, value, step=round_)

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: dict[str, type[TensorBoard | MLflow]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


@contextmanager
def tracked(run: Run, private: Path, show: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
    """Yield a function to call after each round, which calls `show` and the viewers of ``$PFL_TRACK``.

    Raises:
        UserError: There is no such viewer, or it is not installed.
    """
    trackers: dict[str, TensorBoard | MLflow] = {}

    @contextmanager
    def attempt(name: str) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise UserError(f"{name} is not installed ({error}); pip install 'pfl-pipeline[track]'") from None
        except Exception as error:  # of a library or a server; training is worth more
            trackers.pop(name, None)
            what = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"pfl: {name}: logging disabled for this run ({what})", file=sys.stderr)

    def on_round(progress: Progress) -> None:
        show(progress)
        figures = {"loss": progress.loss}
        if run.evaluation.is_due(progress.round, progress.rounds) and progress.accuracy is not None:
            figures["accuracy"] = 100.0 * progress.accuracy
        for name, tracker in list(trackers.items()):
            with attempt(name):
                tracker.log(progress.round, figures)

    for name in filter(None, map(str.strip, os.environ.get("PFL_TRACK", "").split(","))):
        if name not in TRACKERS:
            raise UserError(f"unknown viewer {name!r}{did_you_mean(name, list(TRACKERS))}")
        with attempt(name):
            trackers[name] = TRACKERS[name](run, private)
    try:
        yield on_round
    finally:
        for name, tracker in list(trackers.items()):
            with attempt(name):
                tracker.close()
