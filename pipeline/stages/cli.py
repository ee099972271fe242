"""``pfl stage …``, the command of every stage. Paths are relative to the workspace, where DVC runs the command.

No argument differs between machines, since DVC's run cache compares the text of commands. The module of a stage is
imported only when that stage runs.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from pflcore.errors import UserError
from pflcore.memory import env_number
from pflcore.registry import use_study
from pipeline import workspace as paths
from pipeline.compile import stage_code as code
from pipeline.compile.generated import parse_yaml
from pipeline.compile.seal import sealed, study_home
from pipeline.progress import show_preparation, show_training
from pipeline.raw_data import make_note
from pipeline.spec.run import Run, read_record, weights_id
from pipeline.spec.table import read_resolved, read_runs
from pipeline.stages.tracking import track

_ROOT, _RECORDS, _PRIVATE = Path(), Path(paths.RECORDS), Path(".pfl")


def stage(
    kind: Annotated[str, typer.Argument(help="Such as train.")],
    subjects: Annotated[list[str] | None, typer.Argument(help="A line of stages/records.json, or specs.")] = None,
    seal: Annotated[str | None, typer.Option(help="The digests of the code that the stage was compiled for.")] = None,
) -> None:
    """Execute a stage of the pipeline, as DVC does; not meant to be typed."""
    use_study(study_home())
    names = subjects or []
    if not {"guard": not names, "index": len(names) > 0}.get(kind, len(names) == 1):
        raise UserError(f"pfl stage {kind}: takes {'no' if kind == 'guard' else 'one'} name")
    id_ = names[0] if names else ""
    match kind:
        case "guard":
            print(_module(kind).run(paths.Workspace.find()))
        case "data":
            record, raw = read_record(_RECORDS, id_), paths.raw_data_folder(_ROOT)
            note = make_note(_ROOT, record["dataset"])
            with sealed(code.code_of_run(kind, Run(record)), seal), show_preparation() as show:
                print(
                    _module(kind).run(record["dataset"], Path(paths.dataset_path(id_)), raw, _PRIVATE / "decoded", show)
                )
            if note:
                note.write(_ROOT, id_)
        case "weights":
            with sealed(code.code_of(kind), seal):
                print(_module(kind).run(read_record(_RECORDS, id_), Path(paths.weights_path(id_)), study_home()))
        case "features":
            encoded, device = Run(read_record(_RECORDS, id_)), os.environ.get("PFL_DEVICE", "auto")
            content = encoded.features.get("weights")
            sources = [Path(paths.dataset_path(encoded.unencoded.data_id))]
            sources += [Path(paths.weights_path(weights_id(content)))] if content else []
            with sealed(code.code_of_run(kind, encoded), seal, sources), show_preparation() as show:
                options = {"out": Path(paths.dataset_path(id_)), "scratch": _PRIVATE / "decoded", "device": device}
                print(_module(kind).run(encoded, *sources, **options, show=show))
        case "partition" | "describe":
            federation, partition = Run(read_record(_RECORDS, id_)), Path(paths.partition_path(id_))
            dataset = Path(paths.dataset_path(federation.data_id))
            if kind == "partition":
                with sealed(code.code_of_run(kind, federation), seal, [dataset]):
                    print(_module(kind).run(federation, dataset, partition))
            else:
                from pipeline.report.partitions import describe

                with sealed(code.code_of(kind), seal, [dataset, partition]):
                    print(describe(federation, dataset, partition, Path(paths.partition_report_path(id_))))
        case "train":
            _train(Run(read_record(_RECORDS, id_)), seal)
        case "recall":
            with sealed(code.code_of(kind), seal, [f"{paths.RESULTS}/{id_}.jsonl"]):
                stages = parse_yaml(Path(paths.KEPT_STAGES).read_bytes())["stages"]
                print(_module("results").recall(_ROOT, map(Path, stages[id_.replace("/", "-")]["outs"])))
        case "select":
            trials = read_record(_RECORDS, id_)["trials"]
            inputs = [paths.run_path(run, "rounds.parquet") for trial in trials for run in trial["runs"]]
            with sealed(code.code_of(kind), seal, inputs):
                print(_module("results").select(id_, _RECORDS, Path(paths.RUNS), Path(paths.selection_path(id_))))
        case "evaluate":
            from pipeline.report.collect import write_frame

            table = read_resolved(Path(paths.table_path(id_)))
            parts = code.code_of_evaluation(table, read_runs(table, _ROOT).values())
            inputs = [paths.run_path(run, "rounds.parquet") for run in table.runs]
            with sealed(parts, seal, inputs, code.measured_digest(table)):
                write_frame(table, _ROOT, Path(paths.frame_path(id_)))
        case "report":
            from pipeline.report.write import build_report

            path = Path(paths.table_path(id_))
            table, content = read_resolved(path), code.table_digest(path.read_text(encoding="utf-8"))
            with sealed(code.code_of_report(table), seal, [paths.frame_path(id_)], content):
                build_report(table, _ROOT, Path(paths.report_path(id_)))
        case "index":
            tables = [read_resolved(Path(paths.table_path(spec))) for spec in names]
            with sealed(code.code_of(kind), seal, (f"{paths.report_path(spec)}/table.parquet" for spec in names)):
                print(_module("results").index(tables, Path("reports")))
        case _:
            raise UserError(f"{kind} {id_} is no stage of this pipeline; run `pfl compile`")


def _module(name: str) -> Any:
    return import_module(f"pipeline.stages.{name}")


def _train(run: Run, seal: str | None) -> None:
    """Train a run, from its last checkpoint if it has one."""
    dataset, partition = Path(paths.dataset_path(run.data_id)), Path(paths.partition_path(run.federation_id))
    chosen = Path(paths.selection_path(run.tuned)) if run.tuned else None
    pretrained = Path(paths.weights_path(weights_id(run.pretrained))) if run.pretrained else None
    inputs = [path for path in (dataset, partition, chosen, pretrained) if path]
    seconds = env_number("seconds", "PFL_CHECKPOINT_SECONDS")
    with (
        sealed(code.code_of_run("train", run), seal, inputs) as (code_seal, confirm),
        show_training(run.id) as show,
        track(run, _PRIVATE, show) as on_round,
    ):
        _module("train").run(
            run,
            dataset=dataset,
            partition=partition,
            selection=chosen,
            weights=pretrained,
            code=code_seal,
            out=Path(paths.RUNS, run.id),
            private=_PRIVATE,
            device=os.environ.get("PFL_DEVICE", "auto"),
            executor=os.environ.get("PFL_EXECUTOR") or "auto",
            checkpoint_every=60.0 if seconds is None else seconds,
            on_round=on_round,
            confirm=confirm,
        )
