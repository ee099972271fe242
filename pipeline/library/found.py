"""What there is of one spec: its runs, where they stand in its table, and which of them are up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Entry, Ledger
from pipeline.results.keep import Recorded
from pipeline.spec.run import Run
from pipeline.spec.selection import named
from pipeline.spec.specs import find_specs
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import Workspace, run_path

TRAINED, KEPT, STALE, MISSING = "trained", "kept", "stale", "missing"
"""What there is of a run: made here, with the present specs and code; in the ledger; made with others; nothing."""


class NotUpToDate(UserWarning):
    """Something is left out, as it has not been trained, or with code or settings that are not the present ones."""


@dataclass(frozen=True, eq=False)
class Found:
    """A compiled spec, and what the workspace has of it.

    Attributes:
        spec: Its name.
        compilation: Of this spec alone.
        recorded: What DVC has recorded.
    """

    workspace: Workspace
    spec: str
    compilation: Compilation
    recorded: Recorded

    @classmethod
    def of(cls, workspace: Workspace, word: str) -> Found:
        """Of a spec by its name or file.

        Raises:
            UserError: There is no such spec, it is a folder, it is invalid, or it is only to be extended.
        """
        (name, *others) = named([word], list(find_specs(workspace.specs)))
        if others:
            raise UserError(f"{word}: a folder of specs; name one of them: {', '.join([name, *others])}")
        compilation = compile_workspace(workspace, [name])
        compilation.table(name)
        return cls(workspace, name, compilation, Recorded(workspace.root, compilation))

    @property
    def table(self) -> ResolvedTable:
        """What the spec shows."""
        return self.compilation.tables[self.spec]

    @property
    def runs(self) -> list[Run]:
        """The runs of its cells in the table's order, without the trials of what it tunes.

        Raises:
            UserError: It has none, as all of its numbers are counted.
        """
        if self.table.counted:
            raise UserError(f"{self.spec}: nothing is trained for it, its numbers are counted; see study.table()")
        ids = dict.fromkeys(run for cell in self.table.cells for run in cell.runs)
        return [self.compilation.runs[run] for run in ids]

    def state(self, run: Run) -> str:
        """One of :data:`TRAINED`, :data:`KEPT`, :data:`STALE`, :data:`MISSING`."""
        if run.id in self.compilation.kept:
            return KEPT
        if not (self.workspace.root / run_path(run.id, "rounds.parquet")).is_file():
            return MISSING
        return TRAINED if self.recorded.is_current(run) else STALE

    def states(self) -> dict[str, str]:
        """Run id → :meth:`state`, of all runs."""
        return {run.id: self.state(run) for run in self.runs}

    def rounds(self, run: Run) -> tuple[pa.Table, Mapping[str, Any]]:
        """The ``rounds/2`` rows and facts of a run that was trained or kept. Raises :class:`UserError` if damaged."""
        if run.id in self.compilation.kept:
            entry = self._entry(run)
            return entry.rounds(), {**entry.facts, "kept": entry.obtained}
        return read_table(self.workspace.root / run_path(run.id, "rounds.parquet"), "rounds/2")

    def labels(self, run: Run) -> list[dict[str, str]]:
        """Where a run stands in the table: its label on each axis, but for those that choose a client or a quantity.

        Several for a run that has several names there, in the table's order.
        """
        beside = {*self.table.clients, *self.table.quantities}
        axes = [axis for axis in self.table.axes if axis not in beside]
        places = [tuple(cell.labels[axis] for axis in axes) for cell in self.table.cells if run.id in cell.runs]
        return [dict(zip(axes, place, strict=True)) for place in dict.fromkeys(places)]

    def nothing(self, states: Iterable[str]) -> UserError:
        """The error for a spec of which nothing is up to date."""
        why = "nothing of it is up to date, its code or data have changed" if STALE in states else "nothing is trained"
        return UserError(f"{self.spec}: {why} yet; type `{self.command}`")

    def undealt(self) -> UserError:
        """The error for a spec none of whose partitions is here and up to date."""
        return UserError(
            f"{self.spec}: its samples have not been dealt here with the present specs and code; `{self.command}` does "
            "so unless all of its results are kept, and `pfl describe partition` draws them"
        )

    @property
    def command(self) -> str:
        """What brings the spec up to date."""
        profile = self.workspace.profile
        return f"pfl run {self.spec}" + ("" if profile == "paper" else f" --profile {profile}")

    def _entry(self, run: Run) -> Entry:
        entry = Ledger(self.workspace.root).find(run, self.compilation.made_by[run.id])
        if entry is None:
            raise UserError(f"{run.id}: dropped from the ledger meanwhile")
        return entry
