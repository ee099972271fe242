"""What a compilation means in work, before anything runs: stages, runs, what is cached, time and disk."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from pipeline.compile.compilation import Compilation
from pipeline.dvc.program import locked_stages
from pipeline.plan.estimate import Speed, dataset_of, samples, visits
from pipeline.spec.run import Run
from pipeline.workspace import Workspace

# Bytes per row of rounds.parquet, from the quickstart's artifacts; and per pixel of a dataset artifact.
_ROW_BYTES = 14


@dataclass(frozen=True)
class Plan:
    """Counts of a compilation.

    Attributes:
        stages: DVC stages.
        slots, runs: (spec, run) pairs, and distinct runs.
        new: Runs to train: neither has DVC recorded their training with the present specs and code, nor does the ledger
            hold them.
        visits: Training samples that new runs visit.
        seconds: Estimated time for the new runs whose kind has been timed.
        untimed: New runs whose kind has never been timed here.
        bytes: Estimated size of all artifacts.
        specs: The part of each spec that trains anything, as if there were no others.
    """

    stages: int
    slots: int
    runs: int
    new: int
    visits: int
    seconds: float
    untimed: int
    bytes: int
    specs: tuple[Share, ...]


@dataclass(frozen=True)
class Share:
    """What a spec has of a plan; the names mean what they mean there. Trials of what it tunes are among its runs."""

    spec: str
    runs: int
    new: int
    seconds: float
    untimed: int
    bytes: int


def make_plan(workspace: Workspace, compilation: Compilation) -> Plan:
    """The plan of a compilation in a workspace."""
    cached = _cached(workspace, compilation) | compilation.kept
    new = [run for name, run in compilation.runs.items() if name not in cached]
    speed = Speed(compilation.runs.values(), workspace.private / "timings")

    def share(spec: str, runs: list[Run]) -> Share:
        its_new = [run for run in runs if run.id not in cached]
        return Share(spec, len(runs), len(its_new), *_time(its_new, speed), _bytes(runs))

    seconds, untimed = _time(new, speed)
    by_spec = {spec: [compilation.runs[run] for run in runs] for spec, runs in compilation.runs_of_specs().items()}
    return Plan(
        stages=len(compilation.stages),
        slots=compilation.slots,
        runs=len(compilation.runs),
        new=len(new),
        visits=sum(visits(run) for run in new),
        seconds=seconds,
        untimed=untimed,
        bytes=_bytes(compilation.runs.values()),
        specs=tuple(share(spec, runs) for spec, runs in by_spec.items()),
    )


def _time(runs: list[Run], speed: Speed) -> tuple[float, int]:
    """Seconds of the runs whose kind has been timed, and how many are of other kinds."""
    known = [run for run in runs if speed.knows(run)]
    return sum(map(speed.seconds, known)), len(runs) - len(known)


def _bytes(runs: Collection[Run]) -> int:
    """The size of the artifacts of some runs and of their datasets."""
    sizes = {run.data_id: samples(run) * math.prod(dataset_of(run).shape) for run in runs}
    return sum(sizes.values()) + sum(measurements(run) * _ROW_BYTES for run in runs)


def _cached(workspace: Workspace, compilation: Compilation) -> set[str]:
    """Runs whose train stage is locked with the present record and code, and whose result is in the workspace."""
    stages = [stage for stage in compilation.stages if stage.kind == "train"]
    locked = locked_stages(workspace.root, stages)
    return {
        stage.subject
        for stage in stages
        if locked.get(stage.address, {}).get("cmd") == stage.command
        and all((workspace.root / out).exists() for out in stage.outs)
    }


def measurements(run: Run) -> int:
    """Rows of its table of rounds."""
    return len(run.evaluation.due(run.training.rounds)) * run.clients
