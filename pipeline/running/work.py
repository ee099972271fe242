"""What there is to do in a ``pfl run``, known before any of it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.compile.graph import Graph
from pipeline.running.board import StageState, duration
from pipeline.running.request import Request
from pipeline.workspace import report_path, run_path

# Expected seconds of stages other than training; only the order of work and the time left depend on them.
_SECONDS = {"data": 2.0, "partition": 0.5, "describe": 1.0, "recall": 0.2, "evaluate": 0.2, "report": 2.0}


@dataclass(frozen=True)
class Work:
    """The stages of a call of ``pfl run``, by address.

    Attributes:
        graph: All that there are.
        order: Those that are wanted, each after what it depends on.
        stale: Those of them that are not as DVC recorded them, each with the reason.
        seconds: How long each is expected to take; nothing when none is stale.
        logs: The folder of log files.
        keep_going: After a failure, start what does not depend on it.
    """

    graph: Graph
    order: list[str]
    stale: Mapping[str, str]
    seconds: Mapping[str, float]
    logs: Path
    keep_going: bool = True

    @classmethod
    def of(cls, request: Request, graph: Graph, order: list[str], stale: Mapping[str, str]) -> Work:
        """What a request asks for."""
        seconds = _seconds(request, graph, order) if stale else {}
        return cls(graph, order, stale, seconds, request.workspace.private / "logs", request.wish.keep_going)

    def states(self) -> dict[str, StageState]:
        """Every wanted stage before anything has begun."""
        stages = ((address, self.graph.stages[address]) for address in self.order)
        return {
            address: StageState(address, stage.kind, stage.subject, expected=self.seconds.get(address, 0.0))
            for address, stage in stages
        }

    def explain(self) -> str:
        """A line for each stage that is to be done, with the reason, and one about all of them."""
        due: dict[str, str] = {}
        for address in self.order:
            before = next((other for other in self.graph.upstream[address] if other in due), None)
            if address in self.stale:
                due[address] = self.stale[address]
            elif before:
                stage = self.graph.stages[before]
                due[address] = f"depends on {stage.kind} {stage.subject}"
        lines = []
        for address, why in due.items():
            stage = self.graph.stages[address]
            lines.append(f"{stage.kind if stage.kind == stage.subject else f'{stage.kind} {stage.subject}'}: {why}")
        seconds = sum(self.seconds[address] for address in due)
        time = f"; about {duration(seconds)} of work for one process" if due else ""
        return "\n".join([*lines, f"{len(due)} of {len(self.order)} stages are to be done, at most{time}"])


def wanted(request: Request, graph: Graph) -> list[str]:
    """The stages that the wanted reports or runs need, each after what it depends on.

    The guard vouches for all specs, so it has to wait while one is invalid that nobody has asked for.
    """
    makers = {out: address for address, stage in graph.stages.items() for out in stage.outs}
    targets = [makers[f"{report_path(name)}/table.parquet"] for name in request.specs]
    if request.runs is not None:
        targets = [makers[run_path(run, "rounds.parquet")] for run in request.runs]
    elif not request.wish.specs:
        targets += [address for address, stage in graph.stages.items() if stage.kind == "index"]
    order = graph.needed(targets)
    return [address for address in order if not (request.compilation.skipped and graph.stages[address].kind == "guard")]


def _seconds(request: Request, graph: Graph, order: list[str]) -> dict[str, float]:
    from pipeline.plan.estimate import Speed  # with NumPy

    runs = request.compilation.runs
    speed = Speed(runs.values(), request.workspace.private / "timings")
    seconds = {}
    for address in order:
        stage = graph.stages[address]
        trained = runs[stage.subject] if stage.kind == "train" else None
        seconds[address] = speed.seconds(trained) if trained else _SECONDS.get(stage.kind, 0.5)
    return seconds
