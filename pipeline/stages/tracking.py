"""Curves in other people's viewers: TensorBoard and MLflow are told what is measured anyway.

``PFL_TRACK=tensorboard,mlflow`` tells them while runs train. It is no part of a run: nothing becomes stale by it, and a
viewer that fails is let go with a line while training goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.run import Run
from pipeline.stages.live import LiveCurve

if TYPE_CHECKING:
    from pflcore.engine import Progress

Figures = Mapping[str, float]
"""``accuracy`` in percent and ``loss``, as far as they are known."""


class Sink(Protocol):
    """What is told of one run."""

    def log(self, round_: int, figures: Figures) -> None:
        """What was measured after a round."""

    def close(self) -> None:
        """The run has ended, or is interrupted."""


class TensorBoard:
    """Event files below ``.pfl/tensorboard/<run>``."""

    def __init__(self, run: Run, private: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        from pipeline.report.settings import settings_of

        self.writer = SummaryWriter(str(private / "tensorboard" / run.id))
        text = "\n".join(f"    {name}: {value}" for name, value in settings_of(run).items())
        self.writer.add_text("settings", text)

    def log(self, round_: int, figures: Figures) -> None:
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
        for name, value in settings_of(run).items():
            self.client.log_param(self.run, name, value)
        self.client.log_param(self.run, "seed", run.seed)

    def log(self, round_: int, figures: Figures) -> None:
        for name, value in figures.items():
            self.client.log_metric(self.run, name, value, step=round_)

    def close(self) -> None:
        self.client.set_terminated(self.run)


SINKS: dict[str, Callable[..., Sink]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def open_sinks(names: list[str], run: Run, private: Path) -> list[Sink]:
    """Open viewers by their names. One that cannot be told anything now, as its server does not answer, costs a line.

    Raises:
        UserError: There is no such viewer, or it is not installed.
    """
    sinks = []
    for name in names:
        if name not in SINKS:
            raise UserError(f"unknown viewer {name!r}{did_you_mean(name, list(SINKS))}")
        try:
            sinks.append(SINKS[name](run, private))
        except ImportError as error:
            raise UserError(f"{name} is not installed ({error}); pip install 'pfl-pipeline[track]'") from None
        except Exception as error:  # of a library or a server; whatever it is
            print(f"pfl: not told of this run: {name}: {_line(error)}", file=sys.stderr)
    return sinks


@contextmanager
def tracked(run: Run, private: Path, tell: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
    """Yield a function to call after each round, which calls `tell`, the viewers of ``$PFL_TRACK``, and notes the curve
    so far for `pfl status`.

    Raises:
        UserError: As :func:`open_sinks`.
    """
    names = [name.strip() for name in os.environ.get("PFL_TRACK", "").split(",") if name.strip()]
    sinks, curve = open_sinks(names, run, private), LiveCurve(run.id, private)

    def each(call: Callable[[Sink], None]) -> None:
        for sink in list(sinks):
            try:
                call(sink)
            except Exception as error:  # of a library or a server; training is worth more
                sinks.remove(sink)
                name = type(sink).__name__.lower()
                print(f"pfl: {name} is told no more of this run ({_line(error)})", file=sys.stderr)

    def on_round(progress: Progress) -> None:
        tell(progress)
        figures = {"loss": progress.loss}
        if run.evaluation.is_due(progress.round, progress.rounds) and progress.accuracy is not None:
            figures["accuracy"] = 100.0 * progress.accuracy
            with contextlib.suppress(OSError):  # a disk that is full will be told of by what matters more
                curve.add(progress.round, figures["accuracy"])
        each(lambda sink: sink.log(progress.round, figures))

    try:
        yield on_round
    finally:
        each(lambda sink: sink.close())
    with contextlib.suppress(OSError):
        curve.end()


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
