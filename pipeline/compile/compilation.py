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
    """What a set of specs compiles to.

    Attributes:
        tables: Spec id → its resolved table.
        runs: Run id → run, of those that are trained; runs that several specs share occur once.
        counted: Run id → run, of those that no table shows more of than can be counted.
        slots: Number of (spec, run) pairs before sharing.
        files: Path relative to the workspace → text.
        stages: Their stages.
        resources: Run id → what it needs on a cluster; of several specs, the most.
        kept: Runs that the ledger holds, and trials of selections that it holds, so that nothing trains them.
        made_by: Run id → the versions of the code that its result depends on.
        selections: By id, what has to be chosen before some runs are trained.
        weights: What is in a file of pretrained weights → where it lies.
        skipped: Specs that are invalid and were not asked for → what is wrong with them.
        idle: Lines on what specs say without effect.
        untested: Why nothing can be trained as the engine is now; None when it can.
    """

    tables: dict[str, ResolvedTable] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    counted: dict[str, Run] = field(default_factory=dict)
    slots: int = 0
    files: dict[str, str] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    resources: dict[str, Resources] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    made_by: dict[str, dict[str, str]] = field(default_factory=dict)
    selections: dict[str, Selection] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    untested: str | None = None

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
