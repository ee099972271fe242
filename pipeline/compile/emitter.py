"""Which stages runs, selections and tables need, and what each depends on.

One stage file per federation keeps DVC fast, since it rewrites the whole ``dvc.lock`` beside a ``dvc.yaml`` after each
stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pflcore import extensions
from pipeline.compile.compilation import Compilation
from pipeline.compile.fingerprint import PACKAGES, Code
from pipeline.compile.graph import ROOT
from pipeline.compile.serialise import to_json
from pipeline.compile.stage_code import (
    code_of,
    code_of_evaluation,
    code_of_report,
    code_of_run,
    measured_content,
    shown_content,
    versions,
)
from pipeline.compile.stage_files import StageFiles
from pipeline.ledger import Ledger
from pipeline.spec.catalog import Catalog
from pipeline.spec.figures import figure_names, figure_needs
from pipeline.spec.run import ABSENT, Run, weights_id
from pipeline.spec.table import ResolvedTable, train_stage
from pipeline.spec.tuning import Selection
from pipeline.workspace import (
    CODE,
    KEPT_STAGES,
    RESULTS,
    TABLES,
    Workspace,
    dataset_path,
    frame_path,
    partition_path,
    partition_report_files,
    partition_report_path,
    report_files,
    report_path,
    run_path,
    selection_path,
    shard_path,
    table_path,
    weights_path,
)

GUARD = "artifacts/guard.txt"


class Emitter:
    """Turns the runs, selections and tables of a compilation into its files and stages.

    Args:
        defaults: The specs that a bare ``dvc repro`` ends with.
        ledger: Where results are kept; None trains all runs.
        watching: Every ``dvc repro`` runs the guard, which notices what lies outside of the workspace.
    """

    def __init__(
        self,
        compilation: Compilation,
        code: Code,
        catalog: Catalog,
        defaults: list[str],
        workspace: Workspace,
        ledger: Ledger | None,
        *,
        watching: bool = False,
    ) -> None:
        self.compilation = compilation
        self.files = StageFiles(code)
        self.defaults = defaults
        self.workspace = workspace
        # Only `pfl run` makes a profile's own workspace, and it compiles each time: nothing there can go unnoticed.
        self.guarded = workspace.root == workspace.home
        self.ledger = ledger
        self.watching = watching
        compilation.made_by = {run.id: versions(code, catalog, run) for run in compilation.runs.values()}

    def emit(self) -> None:
        """Fill in the files and stages of the compilation, and which runs are kept."""
        kept = self._kept()
        for run in sorted(self.compilation.runs.values(), key=lambda run: run.id):
            if run.id not in self.compilation.kept:
                self._train(run)
        for name, selection in sorted(self.compilation.selections.items()):
            if name not in kept:
                self._select(name, selection)
        self._recall(kept)
        for name, table in sorted(self.compilation.tables.items()):
            self._report(name, table)
        if self.guarded:
            self.files.add_guard(self._compiled_from(), GUARD, self.watching)
        if self.defaults:
            self._index()
        self.compilation.files = self.files.rendered(self._shown())
        self.compilation.stages = list(self.files.stages.values())

    def _data(self, run: Run) -> str:
        """Add the stage that makes a dataset; return what it makes."""
        self.files.records[run.data_id] = run.data
        out, code = dataset_path(run.data_id), code_of_run("data", run)
        name = f"data@{run.data_id}"
        self.files.add_stage("stages/data/dvc.yaml", name, "data", [run.data_id], code, [GUARD], [out])
        return out

    def _weights(self, content: str) -> str:
        """Add the stage that reads pretrained weights; return what it makes.

        It does not depend on the file, since what has to be in it is in its record, and the guard looks after that.
        """
        id_ = weights_id(content)
        self.files.records[id_] = {"path": self.compilation.weights[content], "content": content}
        code, out = code_of("weights"), weights_path(id_)
        self.files.add_stage("stages/weights/dvc.yaml", f"weights@{id_}", "weights", [id_], code, [GUARD], [out])
        return out

    def _partition(self, run: Run) -> str:
        """Add the stage that partitions a dataset; return what it makes."""
        id_, dataset = run.federation_id, self._data(run)
        self.files.records[id_] = run.federation
        code, out = code_of_run("partition", run), partition_path(id_)
        self.files.add_stage(shard_path(id_), "partition", "partition", [id_], code, [dataset], [out])
        return out

    def _describe(self, federation: str) -> str:
        """Add the stage that shows a partition; return its page."""
        dataset = self.files.stages[f"{shard_path(federation)}:partition"].deps[0]
        deps, outs = [dataset, partition_path(federation)], partition_report_files(federation)
        self.files.add_stage(
            shard_path(federation), "describe", "describe", [federation], code_of("describe"), deps, outs
        )
        return f"{partition_report_path(federation)}/index.md"

    def _train(self, run: Run) -> None:
        self.files.records[run.id] = run.record
        deps, item = [self._data(run), self._partition(run)], {}
        if run.tuned:
            deps.append(selection_path(run.tuned))
            item["chosen"] = run.tuned
        if run.pretrained:
            deps.append(self._weights(run.pretrained))
            item["weights"] = weights_id(run.pretrained)
        outs = ["rounds.parquet"]
        outs += ["weights.safetensors"] if run.record["training"]["save_weights"] else []
        outs += ["analysis.parquet"] if run.analyses else []
        outs = [run_path(run.id, name) for name in outs]
        code, name = code_of_run("train", run), train_stage(run)
        self.files.add_stage(shard_path(run.federation_id), name, "train", [run.id], code, deps, outs, item=item)

    def _kept(self) -> dict[str, str]:
        """Return runs and selections that are taken from the ledger, each with the path of what is made of it."""
        if not self.ledger:
            return {}
        runs, made_by, ledger = self.compilation.runs, self.compilation.made_by, self.ledger
        current = [run.id for run in runs.values() if ledger.find(run, made_by[run.id]) is not None]
        kept = {run: run_path(run, "rounds.parquet") for run in current}
        self.compilation.kept |= kept.keys()
        shown = {run for table in self.compilation.tables.values() for run in table.runs}
        for name, selection in self.compilation.selections.items():
            trials = {run.id for trial in selection.trials for run in trial.runs}
            if ledger.selection(name, made_by[min(trials)]) is not None:
                kept[name] = selection_path(name)
                self.compilation.kept |= trials - shown
        return kept

    def _recall(self, kept: Mapping[str, str]) -> None:
        """Add a stage for each file of the ledger, which takes runs and selections from it."""
        outs: dict[str, list[str]] = defaultdict(list)
        for name, out in sorted(kept.items()):
            outs[str(self.ledger and self.ledger.path(name))].append(out)
        for file, own in outs.items():
            subject = file.removeprefix(f"{RESULTS}/").removesuffix(".jsonl")
            name, deps = subject.replace("/", "-"), [file, GUARD]
            self.files.add_stage(KEPT_STAGES, name, "recall", [subject], code_of("recall"), deps, own)

    def _select(self, name: str, selection: Selection) -> None:
        """Add the stage that chooses among trials."""
        self.files.records[name] = selection.record
        trials = [run_path(run.id, "rounds.parquet") for trial in selection.trials for run in trial.runs]
        for run in (run for trial in selection.trials for run in trial.runs):
            self.files.records[run.id] = run.record
        outs = [selection_path(name)]
        self.files.add_stage("stages/selections/dvc.yaml", name, "select", [name], code_of("select"), trials, outs)

    def _report(self, name: str, table: ResolvedTable) -> None:
        """Add the stages that evaluate the runs of a table, and that show it."""
        runs = [self.compilation.every_run[run] for run in table.runs]
        self.files.records.update({run.id: run.record for run in runs})
        folder, _, stage = f"stages/{name}".rpartition("/")
        file, frame = f"{folder}/dvc.yaml", frame_path(name)
        inputs = [table_path(name), GUARD] if table.counted else self._measured(table, runs)
        code, content = code_of_evaluation(table, runs), measured_content(table)
        self.files.add_stage(file, f"evaluate-{stage}", "evaluate", [name], code, inputs, [frame], content=content)
        # Of runs that are all kept the data are not needed, so their clients cannot be shown.
        dealt = [one.federation for one in table.partitions if one.federation in self.files.records]
        pages = [self._describe(federation) for federation in dealt]
        shown = [one.model_copy(update={"page": one.federation in dealt}) for one in table.partitions]
        table = self.compilation.tables[name] = table.model_copy(update={"partitions": shown})
        text = self.files.texts[table_path(name)] = to_json(table.model_dump(mode="json")) + "\n"
        code, outs = code_of_report(table), report_files(name)
        self.files.add_stage(file, stage, "report", [name], code, [frame, *pages], outs, content=shown_content(text))

    def _measured(self, table: ResolvedTable, runs: list[Run]) -> list[str]:
        """Return what the numbers of a table are made of."""
        inputs = [run_path(run.id, "rounds.parquet") for run in runs]
        if "partitions" in (figure_needs(name) for name in table.drawn if name in figure_names()):
            inputs += sorted({self._partition(run) for run in runs})
        inputs += sorted({selection_path(selection) for selection in table.tuned.values()})
        if table.analyses.keys() & set(table.drawn) or any(cell.quantity for cell in table.cells):
            inputs += [run_path(run.id, "analysis.parquet") for run in runs if run.analyses]
        return inputs

    def _index(self) -> None:
        """Add the page that a bare ``dvc repro`` ends with."""
        reports = [f"{report_path(name)}/table.parquet" for name in self.defaults]
        self.files.add_stage(ROOT, "index", "index", self.defaults, code_of("index"), reports, ["reports/index.md"])

    def _shown(self) -> dict[str, Any]:
        """Return what DVC may show of the default specs."""
        return {
            **({"params": [f"specs/{name}.yaml" for name in self.defaults]} if self.guarded else {}),
            "metrics": [f"{report_path(name)}/metrics" for name in self.defaults],
            # A picture, since what DVC draws itself needs the network.
            "plots": [f"{report_path(name)}/figures/curves.png" for name in self.defaults],
        }

    def _compiled_from(self) -> list[str]:
        """Return what compilation depends on, as far as it lies in the workspace, and what it last made of that.

        Without the latter DVC would pass over the guard when an edit is undone, as it has seen those specs before.
        """
        packages = [name for name in PACKAGES if (self.workspace.root / name).is_dir()]
        beside = [name for name in ("pyproject.toml", RESULTS) if (self.workspace.root / name).exists()]
        trained = {run.pretrained for run in self.compilation.runs.values()} - {None}
        beside += sorted(
            path for content, path in self.compilation.weights.items() if content in trained and ABSENT not in content
        )
        made = [TABLES, CODE] if self.compilation.tables else []
        return ["specs", *packages, *extensions.folders(), *beside, *made]
