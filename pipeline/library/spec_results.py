"""The runs of one spec, their places in its table, and which of them are up to date."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pflcore.artifacts import read_table
from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import read_assignment
from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import Recorded
from pipeline.ledger import Ledger
from pipeline.report.collect import collect_frame
from pipeline.report.frame import run_labels
from pipeline.report.table import Results
from pipeline.spec.run import Run
from pipeline.spec.selection import read_selection, select_specs
from pipeline.spec.specs import find_specs
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import PAPER, Workspace, dataset_path, partition_path, run_path

TRAINED, KEPT, STALE, MISSING = "trained", "kept", "stale", "missing"
"""The state of a run: trained here with the present specs and code; in the ledger; trained with others; no result."""


@dataclass(frozen=True, eq=False)
class SpecResults:
    """A spec, compiled alone, with DVC's records of its stages in a workspace."""

    workspace: Workspace
    spec: str
    compilation: Compilation
    recorded: Recorded

    @classmethod
    def load(cls, workspace: Workspace, word: str) -> SpecResults:
        """Find a spec by its name or file. Raises :class:`UserError` for a folder and an invalid or abstract spec."""
        (name, *others) = select_specs([word], list(find_specs(workspace.specs, {})))
        if others:
            raise UserError(f"{word}: a folder of specs; name one of them: {', '.join([name, *others])}")
        compilation = compile_workspace(workspace, [name], [name])
        compilation.table(name)
        return cls(workspace, name, compilation, Recorded(workspace.root, compilation))

    @property
    def table(self) -> ResolvedTable:
        """The spec's table."""
        return self.compilation.tables[self.spec]

    @property
    def runs(self) -> list[Run]:
        """The runs of its cells in the table's order, without trials. Raises :class:`UserError` if there are none."""
        if self.table.counted:
            raise UserError(f"{self.spec}: nothing is trained for it, its numbers are counted; see study.table()")
        return [self.compilation.runs[run] for run in dict.fromkeys(run for c in self.table.cells for run in c.runs)]

    def partial_table(self) -> tuple[pa.Table, int]:
        """Return the rows of ``table/2`` from the runs so far of a spec without a report, and the number of other runs.

        Raises :class:`UserError` if a run is stale, or if there is nothing to show, not even a published value.
        """
        runs = [] if self.table.counted else self.runs
        states = Counter(map(self.state, runs))
        if states[STALE] or not (states[TRAINED] or states[KEPT] or any(cell.published for cell in self.table.cells)):
            raise UserError(f"{self.spec}: its report has not been made; type `{self.command}`")
        ledger, made_by = Ledger(self.workspace.root), self.compilation.made_by
        entries = {run.id: entry for run in runs if (entry := ledger.find(run, made_by[run.id]))}
        frame = collect_frame(self.table, self.compilation.all_runs, self.workspace.root, entries)
        return Results.from_frame(self.table, frame).to_arrow(), states[MISSING]

    @property
    def command(self) -> str:
        """The command that brings the spec up to date."""
        profile = self.workspace.profile
        return f"pfl run {self.spec}" + ("" if profile == PAPER else f" --profile {profile}")

    def state(self, run: Run) -> str:
        """Return one of :data:`TRAINED`, :data:`KEPT`, :data:`STALE`, :data:`MISSING`."""
        if run.id in self.compilation.kept:
            return KEPT
        path = run_path(run.id, "rounds.parquet")
        if not (self.workspace.root / path).is_file():
            return MISSING
        return TRAINED if self.recorded.holds(path) else STALE

    def rounds(self, run: Run) -> tuple[pa.Table, Mapping[str, Any]]:
        """Return the rows and facts of ``rounds/2`` of a run that was trained or kept."""
        if run.id not in self.compilation.kept:
            return read_table(self.workspace.root / run_path(run.id, "rounds.parquet"), "rounds/2")
        entry = Ledger(self.workspace.root).find(run, self.compilation.made_by[run.id])
        assert entry is not None  # since the compilation has it as kept
        return entry.rounds(), {**entry.facts, "kept": entry.obtained}

    def assignments(self) -> tuple[list[tuple[Run, Path, Assignment]], int]:
        """Return run, dataset and assignment of each up-to-date federation, and the number of other federations."""
        federations, assignments, root = {run.federation_id: run for run in self.runs}, [], self.workspace.root
        for federation, run in federations.items():
            needed = [dataset_path(run.data_id), partition_path(federation)]
            if all(path in self.recorded.makers and self.recorded.holds(path) for path in needed):
                assignments.append((run, root / needed[0], read_assignment(root / needed[1])))
        if not assignments:
            remedy = f"`{self.command}` makes them unless all results are kept, `pfl describe partition` draws them"
            problem = "its partitions have not been made here with the present specs and code"
            raise UserError(f"{self.spec}: {problem}; {remedy}")
        return assignments, len(federations) - len(assignments)

    def cell(self, labels: str, seed: int | None) -> Run:
        """Return the run of a cell by its labels, and by its seed if it has several. Raises :class:`UserError`."""
        cells: dict[str, list[Run]] = {}
        for run in self.runs:
            for place in run_labels(self.table, run.id):
                words = ", ".join(label for axis, label in place.items() if axis != "seed")
                cells.setdefault(words, []).append(run)
        if labels not in cells:
            suggestions = difflib.get_close_matches(labels, cells, n=1) or list(cells)
            hint = "did you mean" if len(suggestions) < len(cells) else "there are"
            raise UserError(f"{self.spec}: no cell {labels!r} with runs; {hint} {', '.join(map(repr, suggestions))}")
        chosen = [run for run in cells[labels] if seed in (None, run.seed)]
        if len(chosen) != 1:
            ids = ", ".join(f"{run.id} (seed {run.seed})" for run in cells[labels])
            raise UserError(f"{self.spec}: {labels}: {len(chosen)} runs; give a seed or an id that is one of {ids}")
        return chosen[0]


def find_run(workspace: Workspace, word: str, seed: int | None) -> tuple[SpecResults, Run]:
    """Find a run by its id, or by its cell, ``"spec: label, label"``, and by its seed if the cell has several."""
    spec, colon, labels = word.partition(":")
    if colon:
        results = SpecResults.load(workspace, spec.strip())
        return results, results.cell(labels.strip(), seed)
    specs, run_ids = list(find_specs(workspace.specs, {})), list[str]()
    if word in specs:
        raise UserError(f"{word}: a spec; name one of its runs, or a cell as {word + ': label, label'!r}")
    # The selected specs come first, since compiling all specs takes a while.
    for names in (read_selection(workspace, specs).compiled, specs):
        compilation = compile_workspace(workspace, names, ())
        for name, runs in compilation.runs_of_specs().items():
            if word in runs:
                results = SpecResults.load(workspace, name)
                return results, results.compilation.runs[word]
        run_ids = list(compilation.runs)
    near = did_you_mean(word, difflib.get_close_matches(word, run_ids))
    remedy = "name a cell, as 'first: FedPer, iid', or a run that a click on its cell in report.html shows"
    raise UserError(f"no spec asks for a run {word!r}{near}; {remedy}")
