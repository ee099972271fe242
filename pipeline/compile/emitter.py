"""Which stages runs, selections and tables need, and what each depends on.

One shard per federation keeps DVC fast, since it rewrites the whole ``dvc.lock`` beside a ``dvc.yaml`` after each
stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pflcore import extensions
from pipeline.compile.compilation import Compilation
from pipeline.compile.fingerprint import PACKAGES
from pipeline.compile.graph import ROOT
from pipeline.compile.serialise import Records, to_json, to_yaml
from pipeline.compile.stage_files import StageFiles
from pipeline.ledger import Ledger
from pipeline.spec.figures import figure_names, figure_needs
from pipeline.spec.run import ABSENT, Run, weights_id
from pipeline.spec.table import ResolvedTable
from pipeline.spec.tuning import Selection
from pipeline.workspace import (
    KEPT_STAGES,
    RESULTS,
    TABLES,
    Workspace,
    dataset_path,
    partition_path,
    partition_report_files,
    partition_report_path,
    record_path,
    report_files,
    report_path,
    run_path,
    selection_path,
    selection_record_path,
    shard_path,
    table_path,
    weights_path,
    weights_record_path,
)

GUARD = "artifacts/guard.txt"


class Emitter:
    """Turns the runs, selections and tables of a compilation into its files and stages."""

    def __init__(
        self,
        compilation: Compilation,
        files: StageFiles,
        defaults: list[str],
        workspace: Workspace,
        ledger: Ledger | None,
        *,
        watching: bool = False,
    ) -> None:
        """Without a ledger all runs are trained; `defaults` are the specs that a bare ``dvc repro`` ends with.

        Args:
            watching: Every ``dvc repro`` runs the guard, which notices what lies outside of the workspace.
        """
        self.compilation = compilation
        self.files = files
        self.code = files.code
        self.defaults = defaults
        self.workspace = workspace
        # Only `pfl run` makes a profile's own workspace, and it compiles each time: nothing there can go unnoticed.
        self.guarded = workspace.root == workspace.home
        self.records = Records()
        self.ledger = ledger
        self.watching = watching

    def emit(self) -> None:
        """Fill in the files and stages of the compilation, which runs are kept, and what made each."""
        runs = self.compilation.runs
        self.compilation.made_by = {run.id: self.code.versions(run) for run in runs.values()}
        kept = self._kept()
        for run in sorted(runs.values(), key=lambda run: run.id):
            if run.id in self.compilation.kept and run.id not in kept:
                continue  # a trial of a selection that is kept
            if run.id in kept:
                self._add_record_of(run)
            else:
                self._data(run)
                self._partition(run)
                self._train(run)
            self._evaluate(run)
        for name, selection in sorted(self.compilation.selections.items()):
            if name not in kept:
                self._select(name, selection)
        self._recall(kept)
        for name, table in sorted(self.compilation.tables.items()):
            self._report(name, table)
        if self.guarded:
            self.files.add_stage(ROOT, "guard", "guard", [], self._compiled_from(), [GUARD], always=self.watching)
        if self.defaults:
            self._index()
        self.compilation.files = self.files.rendered(self._shown())
        self.compilation.stages = [stage for stages in self.files.stages.values() for stage in stages]

    def _data(self, run: Run) -> None:
        record = f"stages/data/{run.data_id}.yaml"
        if record in self.files.texts:
            return
        self.files.add_record(record, to_yaml(run.data["dataset"]))
        deps = [record, *self.code.of_run("data", run)]
        deps += [GUARD] if self.guarded else []
        self.files.add_stage("stages/data/dvc.yaml", run.data_id, "data", [record], deps, [dataset_path(run.data_id)])

    def _weights(self, content: str) -> str:
        """The stage that reads pretrained weights; what it makes.

        It does not depend on the file, since what has to be in it is in its record, and the guard looks after that.
        """
        name = weights_id(content)
        record = weights_record_path(name)
        self.files.add_record(record, to_yaml({"path": self.compilation.weights[content], "content": content}))
        deps = [record, *self.code.of_stage("weights"), *([GUARD] if self.guarded else [])]
        self.files.add_stage("stages/weights/dvc.yaml", name, "weights", [record], deps, [weights_path(name)])
        return weights_path(name)

    def _partition(self, run: Run) -> None:
        record = _federation_path(run.federation_id)
        if record in self.files.texts:
            return
        self.files.add_record(record, to_yaml(run.federation))
        deps = [record, *self.code.of_run("partition", run), dataset_path(run.data_id)]
        outs = [partition_path(run.federation_id)]
        self.files.add_stage(shard_path(run.federation_id), "partition", "partition", [record], deps, outs)

    def _has_partition(self, federation: str) -> bool:
        """Whether a stage deals this federation's samples, as some run of it is trained."""
        return _federation_path(federation) in self.files.texts

    def _describe(self, federation: str) -> str:
        """The stage that shows a partition; its page."""
        shard, record = shard_path(federation), _federation_path(federation)
        data = next(stage.deps[-1] for stage in self.files.stages[shard] if stage.name == "partition")
        deps = [record, *self.code.of_stage("describe"), data, partition_path(federation)]
        self.files.add_stage(shard, "describe", "describe", [record], deps, partition_report_files(federation))
        return f"{partition_report_path(federation)}/index.md"

    def _train(self, run: Run) -> None:
        record = self._add_record_of(run)
        deps = [record, *self.code.of_run("train", run), dataset_path(run.data_id), partition_path(run.federation_id)]
        deps += [selection_path(run.tuned)] if run.tuned else []
        deps += [self._weights(run.pretrained)] if run.pretrained else []
        outs = [run_path(run.id, "rounds.parquet")]
        if run.record["training"]["save_weights"]:
            outs.append(run_path(run.id, "weights.safetensors"))
        if run.analyses:
            outs.append(run_path(run.id, "analysis.parquet"))
        self.files.add_stage(shard_path(run.federation_id), f"train-{run.id}", "train", [record], deps, outs)

    def _kept(self) -> dict[str, str]:
        """Return runs and selections that are taken from the ledger, each with the path of what is made of it."""
        if not self.ledger:
            return {}
        runs, made_by = self.compilation.runs, self.compilation.made_by
        kept = {run.id: run_path(run.id, "rounds.parquet") for run in runs.values() if self._current(run)}
        self.compilation.kept |= kept.keys()
        shown = {run for table in self.compilation.tables.values() for run in table.runs}
        for name, selection in self.compilation.selections.items():
            trials = {run.id for trial in selection.trials for run in trial.runs}
            if self.ledger.selection(name, made_by[min(trials)]) is not None:
                kept[name] = selection_path(name)
                self.compilation.kept |= trials - shown
        return kept

    def _current(self, run: Run) -> bool:
        assert self.ledger is not None
        return self.ledger.find(run, self.compilation.made_by[run.id]) is not None

    def _recall(self, kept: Mapping[str, str]) -> None:
        """Add a stage for each file of the ledger, which takes runs and selections from it."""
        assert self.ledger or not kept
        outs: dict[str, list[str]] = defaultdict(list)
        for name, out in sorted(kept.items()):
            outs[str(self.ledger and self.ledger.path(name))].append(out)
        for file, own in outs.items():
            deps = [file, *self.code.of_stage("recall"), *([GUARD] if self.guarded else [])]
            name = file.removeprefix(f"{RESULTS}/").removesuffix(".jsonl").replace("/", "-")
            self.files.add_stage(KEPT_STAGES, name, "recall", [file], deps, own)

    def _add_record_of(self, run: Run) -> str:
        path = record_path(run.federation_id, run.id)
        self.files.add_record(path, self.records.to_yaml(run.record))
        return path

    def _evaluate(self, run: Run) -> None:
        record = record_path(run.federation_id, run.id)
        deps = [record, *self.code.of_stage("evaluate"), run_path(run.id, "rounds.parquet")]
        outs = [run_path(run.id, "evaluation.parquet")]
        self.files.add_stage(shard_path(run.federation_id), f"evaluate-{run.id}", "evaluate", [record], deps, outs)

    def _select(self, name: str, selection: Selection) -> None:
        """The stage that chooses among trials."""
        record = selection_record_path(name)
        self.files.add_record(record, to_yaml(selection.record))
        trials = [run_path(run.id, "evaluation.parquet") for trial in selection.trials for run in trial.runs]
        deps = [record, *self.code.of_stage("select"), *trials]
        self.files.add_stage("stages/selections/dvc.yaml", name, "select", [record], deps, [selection_path(name)])

    def _report(self, name: str, table: ResolvedTable) -> None:
        path = table_path(name)
        every = self.compilation.every_run
        runs = [every[run] for run in table.runs]
        if table.counted:
            inputs = self.code.of_counts(runs)
        else:
            inputs = [run_path(run, name) for run in table.runs for name in ("evaluation.parquet", "rounds.parquet")]
            inputs += self._figure_inputs(table)
        # Of runs that are all kept the data are not needed, so their clients cannot be shown.
        made = [one.federation for one in table.partitions if self._has_partition(one.federation)]
        pages = [self._describe(federation) for federation in made]
        shown = [one.model_copy(update={"page": one.federation in made}) for one in table.partitions]
        table = self.compilation.tables[name] = table.model_copy(update={"partitions": shown})
        self.files.texts[path] = to_json(table.model_dump(mode="json")) + "\n"
        records = [self._add_record_of(run) for run in runs]
        deps = [path, *self.code.of_stage("report"), *records, *inputs, *pages]
        folder, _, stage = f"stages/{name}".rpartition("/")
        self.files.add_stage(f"{folder}/dvc.yaml", stage, "report", [path], deps, report_files(name))

    def _figure_inputs(self, table: ResolvedTable) -> list[str]:
        """What the figures of a report need beside what the table needs, their code included."""
        drawn = table.drawn
        figures = [name for name in drawn if name in figure_names()]
        inputs = [self.code.of_figure(name) for name in figures]
        if "partitions" in map(figure_needs, figures):
            for run in map(self.compilation.runs.__getitem__, table.runs):
                self._data(run)
                self._partition(run)
            inputs += sorted({partition_path(federation) for federation in table.runs.values()})
        inputs += sorted({selection_path(selection) for selection in table.tuned.values()})
        if table.analyses.keys() & set(drawn) or any(cell.quantity for cell in table.cells):
            analysed = [run for run in table.runs if self.compilation.runs[run].analyses]
            inputs += [run_path(run, "analysis.parquet") for run in analysed]
        return inputs

    def _index(self) -> None:
        """The page that a bare ``dvc repro`` ends with."""
        inputs = [table_path(name) for name in self.defaults]
        reports = [f"{report_path(name)}/table.parquet" for name in self.defaults]
        deps = [*inputs, *self.code.of_stage("index"), *reports]
        self.files.add_stage(ROOT, "index", "index", inputs, deps, ["reports/index.md"])

    def _shown(self) -> dict[str, Any]:
        """What DVC may show of the default specs."""
        return {
            **({"params": [f"specs/{name}.yaml" for name in self.defaults]} if self.guarded else {}),
            "metrics": [f"{report_path(name)}/metrics" for name in self.defaults],
            # A picture, since what DVC draws itself needs the network.
            "plots": [f"{report_path(name)}/figures/curves.png" for name in self.defaults],
        }

    def _compiled_from(self) -> list[str]:
        """What compilation depends on, as far as it lies in the workspace, and what it last made of that.

        Without the latter DVC would pass over the guard when an edit is undone, as it has seen those specs before.
        """
        packages = [name for name in PACKAGES if (self.workspace.root / name).is_dir()]
        beside = [name for name in ("pyproject.toml", RESULTS) if (self.workspace.root / name).exists()]
        trained = {run.pretrained for run in self.compilation.runs.values()} - {None}
        beside += sorted(
            path for content, path in self.compilation.weights.items() if content in trained and ABSENT not in content
        )
        return [
            "specs",
            *packages,
            *extensions.folders(),
            *beside,
            *([TABLES, "stages/code"] if self.compilation.tables else []),
        ]


def _federation_path(federation: str) -> str:
    """The record that a federation is dealt by, relative to the workspace."""
    return f"stages/federations/{federation}/federation.yaml"
