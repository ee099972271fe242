"""``pfl stage …``: what the stages of the pipeline call. Paths are relative to the workspace, where DVC runs them.

Nothing that differs between machines is an argument, since DVC's run cache goes by the command's text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from pflcore.memory import number_of
from pflcore.registry import use_study
from pipeline import workspace as paths
from pipeline.compile import stage_code
from pipeline.compile.seal import sealed, study_home
from pipeline.spec.run import Run, read_record, read_run, weights_id

stage = typer.Typer(help="What the stages of the pipeline call; not meant to be typed.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(help="A line of stages/records.json.", metavar="ID")]
Spec = Annotated[str, typer.Argument(help="A spec, as its file below specs/ is called.")]
Seal = Annotated[str | None, typer.Option(help="The digests of the code that the stage was compiled for.")]
_RECORDS, _PRIVATE = Path(paths.RECORDS), Path(".pfl")


def _run(kind: str) -> Callable[..., object]:
    """Import what a stage does when it is known to be wanted; return it."""
    return import_module(f"pipeline.stages.{kind}").run  # type: ignore[no-any-return]


@stage.callback()
def begin() -> None:
    """Let a study's own entries be found."""
    use_study(study_home())


@stage.command()
def data(id_: Id, seal: Seal = None) -> None:
    """Make a dataset artifact."""
    from pipeline.progress import show_preparation

    record, out, raw = read_record(_RECORDS, id_), Path(paths.dataset_path(id_)), paths.raw_data_folder(Path())
    with sealed(stage_code.code_of_run("data", Run(record)), seal), show_preparation() as show:
        print(_run("data")(record["dataset"], out, raw, _PRIVATE / "decoded", show))


@stage.command()
def weights(id_: Id, seal: Seal = None) -> None:
    """Read a file of pretrained weights."""
    with sealed(stage_code.code_of("weights"), seal):
        print(_run("weights")(read_record(_RECORDS, id_), Path(paths.weights_path(id_)), study_home()))


@stage.command()
def partition(id_: Id, seal: Seal = None) -> None:
    """Make a partition artifact."""
    federation = Run(read_record(_RECORDS, id_))
    dataset = Path(paths.dataset_path(federation.data_id))
    with sealed(stage_code.code_of_run("partition", federation), seal, [dataset]):
        print(_run("partition")(federation, dataset, Path(paths.partition_path(id_))))


@stage.command()
def describe(id_: Id, seal: Seal = None) -> None:
    """Make the page of a partition."""
    federation = Run(read_record(_RECORDS, id_))
    dataset, clients = Path(paths.dataset_path(federation.data_id)), Path(paths.partition_path(id_))
    with sealed(stage_code.code_of("describe"), seal, [dataset, clients]):
        print(_run("describe")(federation, dataset, clients, Path(paths.partition_report_path(id_))))


@stage.command()
def train(id_: Id, seal: Seal = None) -> None:
    """Train one run, from its last checkpoint if there is one."""
    from pipeline.progress import show_training
    from pipeline.stages.tracking import tracked

    asked = read_run(_RECORDS, id_)
    dataset, clients = Path(paths.dataset_path(asked.data_id)), Path(paths.partition_path(asked.federation_id))
    chosen = Path(paths.selection_path(asked.tuned)) if asked.tuned else None
    pretrained = Path(paths.weights_path(weights_id(asked.pretrained))) if asked.pretrained else None
    inputs = [path for path in (dataset, clients, chosen, pretrained) if path]
    seconds = number_of("seconds", "PFL_CHECKPOINT_SECONDS")
    with (
        sealed(stage_code.code_of_run("train", asked), seal, inputs) as work,
        show_training(id_) as show,
        tracked(asked, _PRIVATE, show) as on_round,
    ):
        _run("train")(
            asked,
            dataset=dataset,
            partition=clients,
            selection=chosen,
            weights=pretrained,
            code=work.seal,
            out=Path(paths.run_path(id_, "")),
            private=_PRIVATE,
            device=os.environ.get("PFL_DEVICE", "auto"),
            executor=os.environ.get("PFL_EXECUTOR") or "auto",
            checkpoint_every=60.0 if seconds is None else seconds,
            on_round=on_round,
            confirm=work.confirm,
        )


@stage.command()
def recall(name: Annotated[str, typer.Argument(help="A file below results/.")], seal: Seal = None) -> None:
    """Take results from a file of the ledger."""
    from pipeline.parsing import parse_yaml

    with sealed(stage_code.code_of("recall"), seal, [f"{paths.RESULTS}/{name}.jsonl"]):
        stages = parse_yaml(Path(paths.KEPT_STAGES).read_bytes())["stages"]
        print(_run("recall")(Path(), map(Path, stages[name.replace("/", "-")]["outs"])))


@stage.command()
def select(id_: Id, seal: Seal = None) -> None:
    """Choose settings by what trials gave on validation samples."""
    trials = read_record(_RECORDS, id_)["trials"]
    inputs = [paths.run_path(one, "rounds.parquet") for trial in trials for one in trial["runs"]]
    with sealed(stage_code.code_of("select"), seal, inputs):
        print(_run("select")(id_, _RECORDS, Path("artifacts/runs"), Path(paths.selection_path(id_))))


@stage.command()
def evaluate(spec: Spec, seal: Seal = None) -> None:
    """Turn the measurements of a spec's runs into figures."""
    from pipeline.spec.table import read_resolved, read_runs

    table = read_resolved(Path(paths.table_path(spec)))
    code = stage_code.code_of_evaluation(table, read_runs(table, Path()).values())
    inputs = [paths.run_path(one, "rounds.parquet") for one in table.runs]
    with sealed(code, seal, inputs, stage_code.measured_content(table)):
        print(_run("evaluate")(table, Path(), Path(paths.frame_path(spec))))


@stage.command()
def report(spec: Spec, seal: Seal = None) -> None:
    """Render a spec's report."""
    from pipeline.spec.table import read_resolved

    path = Path(paths.table_path(spec))
    table, shown = read_resolved(path), stage_code.shown_content(path.read_text(encoding="utf-8"))
    with sealed(stage_code.code_of_report(table), seal, [paths.frame_path(spec)], shown):
        print(_run("report")(table, Path(), Path(paths.report_path(spec))))


@stage.command()
def index(specs: Annotated[list[str], typer.Argument(help="Specs.")], seal: Seal = None) -> None:
    """Write the page that links the default reports."""
    from pipeline.spec.table import read_resolved

    tables = [read_resolved(Path(paths.table_path(spec))) for spec in specs]
    with sealed(stage_code.code_of("index"), seal, (f"{paths.report_path(spec)}/table.parquet" for spec in specs)):
        print(_run("index")(tables, Path("reports")))


@stage.command()
def guard() -> None:
    """Compile, and stop when that changed anything."""
    print(_run("guard")(paths.Workspace.find()))
