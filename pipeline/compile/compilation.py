"""What a set of specs compiles to, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from pflcore.errors import UserError
from pipeline.compile.graph import Stage
from pipeline.spec.run import Run
from pipeline.spec.schema import Resources
from pipeline.spec.table import ResolvedTable
from pipeline.spec.tuning import Selection


@dataclass
class Compilation:
    """What a set of specs compiles to; specs, runs and selections are given by their ids."""

    tables: dict[str, ResolvedTable] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)  # that are trained; those that specs share occur once
    counted: dict[str, Run] = field(default_factory=dict)  # of which no table shows more than can be counted
    slots: int = 0  # (spec, run) pairs before sharing
    files: dict[str, str] = field(default_factory=dict)  # path relative to the workspace → text
    stages: list[Stage] = field(default_factory=list)
    resources: dict[str, Resources] = field(default_factory=dict)  # of a run; of several specs, the most
    kept: set[str] = field(default_factory=set)  # runs, trials included, that the ledger makes needless to train
    made_by: dict[str, dict[str, str]] = field(default_factory=dict)  # versions of the code that a run depends on
    selections: dict[str, Selection] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)  # content of a file of pretrained weights → where it lies
    skipped: dict[str, str] = field(default_factory=dict)  # invalid specs that were not asked for → what is wrong
    idle: list[str] = field(default_factory=list)  # lines on what specs say without effect
    untested: str | None = None  # why nothing can be trained as the engine is now

    def table(self, spec: str) -> ResolvedTable:
        """Return what one of the specs shows. Raises :class:`UserError` where it is abstract."""
        if spec not in self.tables:
            raise UserError(f"specs/{spec}.yaml: abstract; name a spec that extends it")
        return self.tables[spec]

    @property
    def every_run(self) -> dict[str, Run]:
        """Those that are trained and those that are not."""
        return {**self.counted, **self.runs}

    def runs_of_specs(self) -> dict[str, list[str]]:
        """Return spec → ids of all its runs, trials of what it tunes included; of specs that train any."""
        trials = {name: [run.id for trial in one.trials for run in trial.runs] for name, one in self.selections.items()}
        return {
            spec: [*table.runs, *(run for name in {*table.tuned.values()} for run in trials[name])]
            for spec, table in self.tables.items()
            if not table.counted
        }

    def check_tested(self) -> None:
        """Raise :class:`UserError` while the engine has been edited and regression runs have not seen it."""
        if self.untested:
            raise UserError(self.untested)
