"""``pfl stage …``: what the stages of the pipeline call. Paths are relative to the workspace, where DVC runs them.

Nothing that differs between machines is an argument, since DVC's run cache goes by the command's text.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pflcore.variables import number_of
from pipeline.compile.seal import sealed
from pipeline.workspace import (
    TABLES,
    Workspace,
    dataset_path,
    partition_path,
    partition_report_path,
    raw_data_folder,
    report_path,
    selection_path,
    weights_path,
)

stage = typer.Typer(help="What the stages of the pipeline call; not meant to be typed.", no_args_is_help=True)
Record = Annotated[Path, typer.Argument(help="The resolved file of the stage.")]
Seal = Annotated[str | None, typer.Option(help="What the stage was compiled from, as its stage file says.")]


@stage.command()
def data(record: Record, seal: Seal = None) -> None:
    """Make a dataset artifact."""
    from pipeline.progress import show_preparation
    from pipeline.stages.data import run

    with sealed("data", [record], seal), show_preparation() as show:
        line = run(record, Path(dataset_path(record.stem)), raw_data_folder(Path()), Path(".pfl/decoded"), show)
    print(line)


@stage.command()
def weights(record: Record, seal: Seal = None) -> None:
    """Read a file of pretrained weights."""
    from pipeline.stages.weights import run

    with sealed("weights", [record], seal):
        print(run(record, Path(weights_path(record.stem)), Workspace.find().home))


@stage.command()
def partition(record: Record, seal: Seal = None) -> None:
    """Make a partition artifact."""
    from pipeline.stages.partition import run

    with sealed("partition", [record], seal):
        dataset, federation = _inputs(record)
        print(run(record, dataset, federation))


@stage.command()
def describe(record: Record, seal: Seal = None) -> None:
    """Make the page of a partition."""
    from pipeline.stages.describe import run

    with sealed("describe", [record], seal):
        dataset, federation = _inputs(record)
        print(run(record, dataset, federation, Path(partition_report_path(federation.stem))))


@stage.command()
def train(record: Record, seal: Seal = None) -> None:
    """Train one run, from its last checkpoint if there is one."""
    from pipeline.progress import show_training
    from pipeline.spec.records import read_run
    from pipeline.stages.tracking import tracked
    from pipeline.stages.train import run

    with sealed("train", [record], seal) as sealed_stage:
        dataset, federation = _inputs(record)
        with show_training(record.stem) as tell, tracked(read_run(record), Path(".pfl"), tell) as on_round:
            run(
                record,
                dataset=dataset,
                partition=federation,
                selections=Path(selection_path("")).parent,
                weights=Path(weights_path("")).parent,
                code=sealed_stage.fingerprints,
                out=_run_folder(record),
                private=Path(".pfl"),
                device=os.environ.get("PFL_DEVICE", "auto"),
                executor=os.environ.get("PFL_EXECUTOR") or "auto",
                checkpoint_every=_checkpoint_seconds(),
                on_round=on_round,
                confirm=sealed_stage.confirm,
            )


@stage.command()
def recall(file: Record, seal: Seal = None) -> None:
    """Take results from a file of the ledger."""
    from pipeline.stages.recall import run

    with sealed("recall", [file], seal) as sealed_stage:
        print(run(Path(), map(Path, sealed_stage.entry.outs)))


@stage.command()
def evaluate(record: Record, seal: Seal = None) -> None:
    """Turn a run's measurements into figures."""
    from pipeline.stages.evaluate import run

    with sealed("evaluate", [record], seal):
        print(run(record, _run_folder(record)))


@stage.command()
def select(record: Record, seal: Seal = None) -> None:
    """Choose settings by what trials gave on validation samples."""
    from pipeline.stages.select import run

    with sealed("select", [record], seal):
        print(run(record, Path("artifacts/runs"), Path(selection_path(record.stem))))


@stage.command()
def report(table: Record, seal: Seal = None) -> None:
    """Render a spec's report."""
    from pipeline.stages.report import run

    spec = table.with_suffix("").as_posix().removeprefix(f"{TABLES}/")
    with sealed("report", [table], seal):
        print(run(table, Path(), Path(report_path(spec))))


@stage.command()
def index(tables: Annotated[list[Path], typer.Argument(help="Resolved tables.")], seal: Seal = None) -> None:
    """Write the page that links the default reports."""
    from pipeline.stages.index import run

    with sealed("index", tables, seal):
        print(run(tables, Path("reports")))


@stage.command()
def guard() -> None:
    """Compile, and stop when that changed anything."""
    from pipeline.stages.guard import run

    print(run(Workspace.find()))


def _checkpoint_seconds() -> float:
    """``$PFL_CHECKPOINT_SECONDS``, or a minute."""
    wanted = number_of("seconds", "PFL_CHECKPOINT_SECONDS")
    return 60.0 if wanted is None else wanted


def _run_folder(record: Path) -> Path:
    return Path("artifacts/runs") / record.stem


def _inputs(record: Path) -> tuple[Path, Path]:
    """The dataset and partition artifacts of the record of a run or a federation."""
    from pipeline.spec.records import read_record
    from pipeline.spec.run import FEDERATION, Run

    run = Run(read_record(record, *FEDERATION))
    return Path(dataset_path(run.data_id)), Path(partition_path(run.federation_id))
