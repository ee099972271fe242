"""Curves in other viewers: with ``PFL_TRACK=tensorboard,mlflow,wandb`` they receive the measurements of a training.

Viewers are not a part of a run. They make nothing stale, and if one fails, a line says so and training goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.report.settings import settings_of
from pipeline.spec.run import Run

if TYPE_CHECKING:
    from pflcore.engine import Progress


Log = Callable[[int, Mapping[str, float]], None]


def tensorboard(run: Run, private: Path) -> tuple[Log, Callable[[], None]]:
    """Return functions that log a round into event files below ``.pfl/tensorboard/<run>`` and that close them."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(private / "tensorboard" / run.id))
    writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings_of(run).items()))

    def log(round_: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, round_)
        writer.flush()

    return log, writer.close


def mlflow(run: Run, private: Path) -> tuple[Log, Callable[[], None]]:
    """Return functions that log a round to MLflow at ``$MLFLOW_TRACKING_URI``, by default ``.pfl/mlflow``, and close.

    The run belongs to an experiment with the name of its dataset. An existing run with the same id is continued.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:  # newer versions of MLflow refuse local files unless this is set
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri or (private / "mlflow").absolute().as_uri())
    existing = client.get_experiment_by_name(run.dataset)
    experiment = existing.experiment_id if existing else client.create_experiment(run.dataset)
    runs = client.search_runs([experiment], f"tags.`pfl.run` = '{run.id}'")
    tags = {"pfl.run": run.id, "mlflow.runName": run.id}
    mlflow_run = (runs[0] if runs else client.create_run(experiment, run_name=run.id, tags=tags)).info.run_id
    for name, value in ({} if runs else {**settings_of(run), "seed": run.seed}).items():
        client.log_param(mlflow_run, name, value)

    def log(round_: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            client.log_metric(mlflow_run, name, value, step=round_)

    return log, lambda: client.set_terminated(mlflow_run)


def wandb(run: Run, private: Path) -> tuple[Log, Callable[[], None]]:
    """Return functions that log a round to the project ``$WANDB_PROJECT``, by default the dataset's name, and close.

    An existing run with the same id is continued. ``WANDB_MODE=offline`` writes to ``.pfl/wandb``, for ``wandb sync``.
    """
    import wandb

    private.mkdir(parents=True, exist_ok=True)
    wandb_run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", run.dataset),
        id=run.id,
        name=run.id,
        resume="allow",
        dir=str(private),
        config={**settings_of(run), "seed": run.seed},
        settings=wandb.Settings(silent=True, console="off"),
    )

    def log(round_: int, figures: Mapping[str, float]) -> None:
        wandb_run.log(dict(figures), step=round_)

    return log, wandb_run.finish


TRACKERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


def requested_viewers() -> list[str]:
    """Return the viewers that ``$PFL_TRACK`` names. Raises :class:`UserError` if one is unknown."""
    names = [name for word in os.environ.get("PFL_TRACK", "").split(",") if (name := word.strip())]
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"PFL_TRACK: unknown viewer {name!r}{did_you_mean(name, list(TRACKERS))}")
    return names


def check_viewers() -> None:
    """Raise :class:`UserError` if a viewer that ``$PFL_TRACK`` names is unknown or not installed here."""
    for name in requested_viewers():
        if find_spec(name) is None:
            raise UserError(f"PFL_TRACK: {name} is not installed; pip install {name}")


@contextmanager
def track(run: Run, private: Path, show: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
    """Yield a function to call after each round, which calls `show` and the viewers of ``$PFL_TRACK``.

    Raises:
        UserError: There is no such viewer, or it is not installed.
    """
    trackers: dict[str, tuple[Log, Callable[[], None]]] = {}

    @contextmanager
    def disable_on_error(name: str) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise UserError(f"{name} is not installed ({error}); pip install {name}") from None
        except Exception as error:  # an error of a library or a server must not end the training
            trackers.pop(name, None)
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"pfl: {name}: logging disabled for this run ({problem})", file=sys.stderr)

    def on_round(progress: Progress) -> None:
        show(progress)
        figures = {"loss": progress.loss}
        if run.evaluation.is_due(progress.round, progress.rounds) and progress.accuracy is not None:
            figures["accuracy"] = 100.0 * progress.accuracy
        for name, (log, _) in list(trackers.items()):
            with disable_on_error(name):
                log(progress.round, figures)

    for name in requested_viewers():
        with disable_on_error(name):
            trackers[name] = TRACKERS[name](run, private)
    try:
        yield on_round
    finally:
        for name, (_, close) in list(trackers.items()):
            with disable_on_error(name):
                close()
