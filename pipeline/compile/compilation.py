"""The result of compiling specs as a value, and the dependency graph of its stages."""

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
    name: str  # within the file; ``group@id`` for a stage of a group
    command: str  # ``pfl stage``, its kind, its subjects and its seal; for the guard the kind alone
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    always: bool = False  # DVC runs it at every call, because inputs that DVC does not see can change

    @property
    def address(self) -> str:
        return f"{self.file}:{self.name}"

    @property
    def kind(self) -> str:
        """guard, data, weights, features, partition, describe, train, recall, select, evaluate, report or index."""
        return self.command.split()[2]

    @property
    def subject(self) -> str:
        """The id or name of what the stage works on, for messages: a run, a federation, a dataset, a spec."""
        return self.kind if self.kind in ("guard", "index") else self.command.split()[3]

    @property
    def seal(self) -> str:
        """The digests at the end of the command, of the code that the stage runs."""
        return self.command.split()[-1]


@dataclass
class Compilation:
    """The result of compiling a set of specs. Keys of mappings are ids of specs, runs or selections, unless noted."""

    tables: dict[str, ResolvedTable] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)  # runs with a train stage or a kept result; shared ones once
    counted: dict[str, Run] = field(default_factory=dict)  # runs of tables that need no training
    slots: int = 0  # (spec, run) pairs before sharing
    files: dict[str, str] = field(default_factory=dict)  # path relative to the workspace → text
    stages: list[Stage] = field(default_factory=list)
    resources: dict[str, Resources] = field(default_factory=dict)  # of a run: the largest that a spec states
    kept: set[str] = field(default_factory=set)  # runs and trials that the ledger replaces, so they are not trained
    made_by: dict[str, dict[str, str]] = field(default_factory=dict)  # versions of the code of each run
    selections: dict[str, Selection] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)  # digest of a file of pretrained weights → its path
    skipped: dict[str, str] = field(default_factory=dict)  # invalid specs that are not required → the error
    ineffective: list[str] = field(default_factory=list)  # a line for each setting without effect
    untested: str | None = None  # why nothing can be trained with the engine on disk; None if it can

    def table(self, spec: str) -> ResolvedTable:
        """Return the resolved table of a spec. Raises :class:`UserError` if the spec is abstract."""
        if spec not in self.tables:
            raise UserError(f"specs/{spec}.yaml: abstract; name a spec that extends it")
        return self.tables[spec]

    @property
    def all_runs(self) -> dict[str, Run]:
        """All runs: :attr:`runs` and :attr:`counted`."""
        return {**self.counted, **self.runs}

    def runs_of_specs(self) -> dict[str, list[str]]:
        """Return the ids of each spec's runs, trials included. Specs whose numbers need no training are left out."""
        runs: dict[str, list[str]] = {}
        for spec, table in self.tables.items():
            if not table.counted:
                trials = [trial for name in {*table.tuned.values()} for trial in self.selections[name].trials]
                runs[spec] = [*table.runs, *(run.id for trial in trials for run in trial.runs)]
        return runs

    def check_tested(self) -> None:
        """Raise :class:`UserError` if the engine was edited and `make pins` has not checked the edit."""
        if self.untested:
            raise UserError(self.untested)


class Graph:
    """The dependency graph of stages: a stage comes after the stages that write its dependencies."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages = {stage.address: stage for stage in stages}
        producer = {out: stage.address for stage in self.stages.values() for out in stage.outs}
        self.upstream: dict[str, tuple[str, ...]] = {}
        for address, stage in self.stages.items():
            self.upstream[address] = tuple(dict.fromkeys(producer[dep] for dep in stage.deps if dep in producer))

    @cached_property
    def downstream(self) -> dict[str, list[str]]:
        """The stages that depend directly on each stage."""
        dependents: dict[str, list[str]] = {address: [] for address in self.stages}
        for address, upstream in self.upstream.items():
            for other in upstream:
                dependents[other].append(address)
        return dependents

    def needed(self, targets: Iterable[str]) -> list[str]:
        """Return the targets and everything that they depend on, dependencies first, in a deterministic order."""
        order: dict[str, None] = {}

        def visit(address: str) -> None:
            if address not in order:
                for dependency in self.upstream[address]:
                    visit(dependency)
                order[address] = None

        for target in targets:
            visit(target)
        return list(order)

    def dependents(self, address: str) -> set[str]:
        """Return all stages that depend on a stage, directly or indirectly."""
        dependents, queue = set[str](), [address]
        while queue:
            new = {*self.downstream[queue.pop()]} - dependents
            dependents |= new
            queue += new
        return dependents

    def heights(self, order: list[str], seconds: Mapping[str, float]) -> dict[str, float]:
        """Return for each stage in `order` the expected seconds of the longest chain that begins with it."""
        height: dict[str, float] = {}
        for address in reversed(order):
            dependent_heights = (height[other] for other in self.downstream[address] if other in height)
            height[address] = seconds.get(address, 0.0) + max(dependent_heights, default=0.0)
        return height
