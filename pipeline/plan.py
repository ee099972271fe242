"""What a compilation means in work, before anything runs: stages, runs, what is cached, time and disk."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import yaml

from pflcore.datasets import DATASETS, Dataset
from pipeline.compiler import Compilation
from pipeline.dvc import locked_stages, md5
from pipeline.run import Run
from pipeline.stages.records import options
from pipeline.workspace import Workspace

# Bytes per row of rounds.parquet, from the quickstart's artifacts; and per pixel of a dataset artifact.
_ROW_BYTES = 14
# Training and test samples of a dataset of which only the data tell.
_UNKNOWN = (10_000, 2_000)


@dataclass(frozen=True)
class Plan:
    """Counts of a compilation. `seconds` is None when no run like the missing ones has been timed on this machine.

    Attributes:
        stages: DVC stages.
        slots, runs: (spec, run) pairs, and distinct runs.
        cached: Runs whose training DVC has recorded with the present specs and code.
        visits: Training samples that the missing runs visit.
        seconds: Estimated time for the missing runs whose kind has been timed.
        untimed: Missing runs whose kind has never been timed here.
        bytes: Estimated size of all artifacts.
    """

    stages: int
    slots: int
    runs: int
    cached: int
    visits: int
    seconds: float
    untimed: int
    bytes: int


def make_plan(workspace: Workspace, compilation: Compilation) -> Plan:
    """The plan of a compilation in a workspace."""
    stages = sum(
        len(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["stages"])
        for name, text in compilation.files.items()
        if name.endswith("dvc.yaml")
    )
    cached = _cached(workspace, compilation)
    missing = [run for name, run in compilation.runs.items() if name not in cached]
    rates = _rates(workspace, compilation)
    seconds = sum(visits(run) / rates[_kind(run)] for run in missing if _kind(run) in rates)
    sizes = {run.data_id: _samples(run) * _inputs(run) for run in compilation.runs.values()}
    return Plan(
        stages=stages,
        slots=compilation.slots,
        runs=len(compilation.runs),
        cached=len(cached),
        visits=sum(visits(run) for run in missing),
        seconds=seconds,
        untimed=sum(_kind(run) not in rates for run in missing),
        bytes=sum(sizes.values()) + sum(_measurements(run) * _ROW_BYTES for run in compilation.runs.values()),
    )


def visits(run: Run) -> int:
    """Training samples that a run visits, with clients of average size."""
    training, clients = run.record["training"], run.record["clients"]
    everyone = run.record["method"].get("schedule") == "every_round"
    cohort = clients if everyone else max(1, int(clients * training["sample_rate"] + 1e-9))
    share = _samples(run, train_only=True) / clients
    steps = training["local_steps"]
    each = steps * min(share, training["batch_size"]) if steps else training["local_epochs"] * share
    return int(training["rounds"] * cohort * each)


def _cached(workspace: Workspace, compilation: Compilation) -> set[str]:
    """Runs whose train stage is locked with the present record and code, and whose result is in the workspace."""
    shards = [workspace.root / name for name in compilation.files if name.endswith("/dvc.yaml")]
    locked = locked_stages(shards)
    hashes = {name: md5(text) for name, text in compilation.files.items() if name.startswith("stages/")}
    cached = set()
    for name, run in compilation.runs.items():
        stage = locked.get(f"{run.federation_id}:train-{name}")
        if not stage:
            continue
        inputs = {dep["path"]: dep.get("md5") for dep in stage.get("deps", [])}
        fresh = all(hashes[path] == found for path, found in inputs.items() if path in hashes)
        if fresh and all((workspace.root / out["path"]).exists() for out in stage.get("outs", [])):
            cached.add(name)
    return cached


def _rates(workspace: Workspace, compilation: Compilation) -> dict[tuple[str, str], float]:
    """Sample visits per second on this machine, by (method, backbone), from the timings of past runs."""
    done: dict[tuple[str, str], float] = defaultdict(float)
    took: dict[tuple[str, str], float] = defaultdict(float)
    for name, run in compilation.runs.items():
        path = workspace.private / "timings" / f"{name}.json"
        if path.is_file():
            try:
                timing: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                rounds, seconds = float(timing["rounds"]), float(timing["seconds"])
            except (ValueError, KeyError, TypeError):  # damaged: an estimate can do without it
                continue
            done[_kind(run)] += visits(run) * rounds / run.record["training"]["rounds"]
            took[_kind(run)] += seconds
    return {kind: done[kind] / took[kind] for kind in done if took[kind] > 0 and done[kind] > 0}


def _kind(run: Run) -> tuple[str, str]:
    return run.method, json.dumps(run.record["backbone"], sort_keys=True)


def _samples(run: Run, train_only: bool = False) -> int:
    stand_in = run.record["dataset"]["stand_in"]
    train, test = (stand_in, stand_in // 4) if stand_in else _dataset(run).expected or _UNKNOWN
    return train if train_only else train + test


def _inputs(run: Run) -> int:
    """Bytes of one sample."""
    return math.prod(_dataset(run).shape)


def _dataset(run: Run) -> Dataset:
    record = run.record["dataset"]
    return DATASETS.create(run.dataset, **{k: v for k, v in options(record).items() if k != "stand_in"})


def _measurements(run: Run) -> int:
    evaluation, rounds = run.record["evaluation"], run.record["training"]["rounds"]
    count = evaluation["window"] // evaluation["every"] + 1
    if evaluation["curve_every"]:
        count += rounds // evaluation["curve_every"]
    return int(count * run.record["clients"])
