"""What a set of specs compiles to, as a value, and its stages as a graph: what comes before what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pflcore.errors import UserError
from pipeline.spec.run import Run
from pipeline.spec.schema import Resources
from pipeline.spec.table import ResolvedTable
from pipeline.spec.tuning import Selection


@dataclass(frozen=True)
class Stage:
    """One DVC stage; paths are relative to the workspace."""

    file: str
    name: str  # in that file, ``group@id`` for one of a group
    command: str  # ``pfl stage``, its kind, and what it is about
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    always: bool = False  # DVC runs it at every call, since more can change than what it sees

    @property
    def address(self) -> str:
        return f"{self.file}:{self.name}"

    @property
    def kind(self) -> str:
        """guard, data, weights, features, partition, describe, train, recall, select, evaluate, report or index."""
        return self.command.split()[2]

    @property
    def subject(self) -> str:
        """What it is about, for a reader: a run, a federation, a dataset, a spec."""
        return self.kind if self.kind in ("guard", "index") else self.command.split()[3]

    @property
    def seal(self) -> str:
        """What stands for the code that it works with."""
        return self.command.split()[-1]


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
    idle: list[str] = field(default_factory=list)  # a line for each setting without effect
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


class Graph:
    """Stages and what connects them: a stage comes after those that make what it depends on."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages = {stage.address: stage for stage in stages}
        maker = {out: stage.address for stage in self.stages.values() for out in stage.outs}
        self.upstream: dict[str, tuple[str, ...]] = {
            address: tuple(dict.fromkeys(maker[dep] for dep in stage.deps if dep in maker))
            for address, stage in self.stages.items()
        }

    @cached_property
    def downstream(self) -> dict[str, list[str]]:
        """Who depends on a stage directly."""
        after: dict[str, list[str]] = {address: [] for address in self.stages}
        for address, before in self.upstream.items():
            for other in before:
                after[other].append(address)
        return after

    def needed(self, targets: Iterable[str]) -> list[str]:
        """Return the targets and all they depend on, each after what it depends on; the same order every time."""
        order: dict[str, None] = {}

        def visit(address: str) -> None:
            if address not in order:
                for before in self.upstream[address]:
                    visit(before)
                order[address] = None

        for target in targets:
            visit(target)
        return list(order)

    def after(self, address: str) -> set[str]:
        """Return everything that depends on a stage, directly or not."""
        found: set[str] = set()
        waiting = [address]
        while waiting:
            new = {*self.downstream[waiting.pop()]} - found
            found |= new
            waiting += new
        return found

    def heights(self, order: list[str], seconds: Mapping[str, float]) -> dict[str, float]:
        """Return for each stage in `order` the longest expected time from its start to the end of what needs it."""
        height: dict[str, float] = {}
        for address in reversed(order):
            later = (height[other] for other in self.downstream[address] if other in height)
            height[address] = seconds.get(address, 0.0) + max(later, default=0.0)
        return height
