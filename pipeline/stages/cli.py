"""``pfl stage …``: what the stages of the pipeline call. Paths are relative to the workspace, where DVC runs them.

Nothing that differs between machines is an argument, since DVC's run cache goes by the command's text.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pflcore.registry import use_study
from pflcore.variables import number_of
from pipeline.compile.seal import sealed, study_home
from pipeline.compile.stage_code import (
    code_of,
    code_of_evaluation,
    code_of_report,
    code_of_run,
    measured_content,
    shown_content,
)
from pipeline.spec.records import read_record, read_run
from pipeline.spec.run import Run, weights_id
from pipeline.workspace import (
    KEPT_STAGES,
    RECORDS,
    RESULTS,
    Workspace,
    dataset_path,
    frame_path,
    partition_path,
    partition_report_path,
    raw_data_folder,
    report_path,
    run_path,
    selection_path,
    table_path,
    weights_path,
)

stage = typer.Typer(help="What the stages of the pipeline call; not meant to be typed.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(help="A line of stages/records.json.", metavar="ID")]
Spec = Annotated[str, typer.Argument(help="A spec, as its file below specs/ is called.")]
Seal = Annotated[str | None, typer.Option(help="The digests of the code that the stage was compiled for.")]
_RECORDS = Path(RECORDS)


@stage.callback()
def begin() -> None:
    """Let a study's own entries be found."""
    use_study(study_home())


@stage.command()
def data(id_: Id, seal: Seal = None) -> None:
    """Make a dataset artifact."""
    from pipeline.progress import show_preparation
    from pipeline.stages.data import run

    record = read_record(_RECORDS, id_)
    with sealed(code_of_run("data", Run(record)), seal), show_preparation() as show:
        out, scratch = Path(dataset_path(id_)), Path(".pfl/decoded")
        print(run(record["dataset"], out, raw_data_folder(Path()), scratch, show))


@stage.command()
def weights(id_: Id, seal: Seal = None) -> None:
    """Read a file of pretrained weights."""
    from pipeline.stages.weights import run

    with sealed(code_of("weights"), seal):
        print(run(read_record(_RECORDS, id_), Path(weights_path(id_)), study_home()))


@stage.command()
def partition(id_: Id, seal: Seal = None) -> None:
    """Make a partition artifact."""
    from pipeline.stages.partition import run

    federation = Run(read_record(_RECORDS, id_))
    dataset = Path(dataset_path(federation.data_id))
    with sealed(code_of_run("partition", federation), seal, [dataset]):
        print(run(federation, dataset, Path(partition_path(id_))))


@stage.command()
def describe(id_: Id, seal: Seal = None) -> None:
    """Make the page of a partition."""
    from pipeline.stages.describe import run

    federation = Run(read_record(_RECORDS, id_))
    dataset, clients = Path(dataset_path(federation.data_id)), Path(partition_path(id_))
    with sealed(code_of("describe"), seal, [dataset, clients]):
        print(run(federation, dataset, clients, Path(partition_report_path(id_))))


@stage.command()
def train(id_: Id, seal: Seal = None) -> None:
    """Train one run, from its last checkpoint if there is one."""
    from pipeline.progress import show_training
    from pipeline.stages.tracking import tracked
    from pipeline.stages.train import run

    resolved = read_run(_RECORDS, id_)
    dataset, clients = Path(dataset_path(resolved.data_id)), Path(partition_path(resolved.federation_id))
    chosen = Path(selection_path(resolved.tuned)) if resolved.tuned else None
    pretrained = Path(weights_path(weights_id(resolved.pretrained))) if resolved.pretrained else None
    inputs = [path for path in (dataset, clients, chosen, pretrained) if path]
    with (
        sealed(code_of_run("train", resolved), seal, inputs) as work,
        show_training(id_) as tell,
        tracked(resolved, Path(".pfl"), tell) as on_round,
    ):
        run(
            resolved,
            dataset=dataset,
            partition=clients,
            selection=chosen,
            weights=pretrained,
            code=work.seal,
            out=Path(run_path(id_, "")),
            private=Path(".pfl"),
            device=os.environ.get("PFL_DEVICE", "auto"),
            executor=os.environ.get("PFL_EXECUTOR") or "auto",
            checkpoint_every=_checkpoint_seconds(),
            on_round=on_round,
            confirm=work.confirm,
        )


@stage.command()
def recall(name: Annotated[str, typer.Argument(help="A file below results/.")], seal: Seal = None) -> None:
    """Take results from a file of the ledger."""
    from pipeline.parsing import parse_yaml
    from pipeline.stages.recall import run

    with sealed(code_of("recall"), seal, [f"{RESULTS}/{name}.jsonl"]):
        stages = parse_yaml(Path(KEPT_STAGES).read_bytes())["stages"]
        print(run(Path(), map(Path, stages[name.replace("/", "-")]["outs"])))


@stage.command()
def select(id_: Id, seal: Seal = None) -> None:
    """Choose settings by what trials gave on validation samples."""
    from pipeline.stages.select import run

    record = read_record(_RECORDS, id_)
    trials = [Path(run_path(one, "rounds.parquet")) for trial in record["trials"] for one in trial["runs"]]
    with sealed(code_of("select"), seal, trials):
        print(run(id_, _RECORDS, Path("artifacts/runs"), Path(selection_path(id_))))


@stage.command()
def evaluate(spec: Spec, seal: Seal = None) -> None:
    """Turn the measurements of a spec's runs into figures."""
    from pipeline.spec.table import read_resolved, read_runs
    from pipeline.stages.evaluate import run

    table = read_resolved(Path(table_path(spec)))
    code = code_of_evaluation(table, read_runs(table, Path()).values())
    inputs = [run_path(one, "rounds.parquet") for one in table.runs]
    with sealed(code, seal, inputs, measured_content(table)):
        print(run(table, Path(), Path(frame_path(spec))))


@stage.command()
def report(spec: Spec, seal: Seal = None) -> None:
    """Render a spec's report."""
    from pipeline.spec.table import read_resolved
    from pipeline.stages.report import run

    path = Path(table_path(spec))
    table = read_resolved(path)
    with sealed(code_of_report(table), seal, [frame_path(spec)], shown_content(path.read_text(encoding="utf-8"))):
        print(run(table, Path(), Path(report_path(spec))))


@stage.command()
def index(specs: Annotated[list[str], typer.Argument(help="Specs.")], seal: Seal = None) -> None:
    """Write the page that links the default reports."""
    from pipeline.spec.table import read_resolved
    from pipeline.stages.index import run

    tables = [read_resolved(Path(table_path(spec))) for spec in specs]
    with sealed(code_of("index"), seal, (f"{report_path(spec)}/table.parquet" for spec in specs)):
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
