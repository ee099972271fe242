"""The stages of a compilation as a graph: what comes before what, and what a request needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

ROOT = "dvc.yaml"


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
        """guard, data, weights, partition, describe, train, recall, select, evaluate, report or index."""
        return self.command.split()[2]

    @property
    def subject(self) -> str:
        """What it is about, for a reader: a run, a federation, a dataset, a spec."""
        return self.kind if self.kind in ("guard", "index") else self.command.split()[3]

    @property
    def seal(self) -> str:
        """What stands for the code that it works with."""
        return self.command.split()[-1]


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
        import networkx

        graph = networkx.DiGraph(self.upstream)
        order = (address for target in targets for address in networkx.dfs_postorder_nodes(graph, target))
        return list(dict.fromkeys(order))

    def after(self, address: str) -> set[str]:
        """Return everything that depends on a stage, directly or not."""
        import networkx

        return set(networkx.ancestors(networkx.DiGraph(self.upstream), address))

    def heights(self, order: list[str], seconds: Mapping[str, float]) -> dict[str, float]:
        """Return for each stage in `order` the longest expected time from its start to the end of what needs it."""
        height: dict[str, float] = {}
        for address in reversed(order):
            later = (height[other] for other in self.downstream[address] if other in height)
            height[address] = seconds.get(address, 0.0) + max(later, default=0.0)
        return height
