"""Estimates before anything runs: numbers of stages and new runs, time, and disk space."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from pflcore.data.samples import ARRAYS
from pflcore.datasets import DATASETS, Dataset, stand_in_counts
from pflcore.datasets._user_files import UserFiles
from pflcore.errors import UserError
from pflcore.files import files_below
from pipeline.compile.compilation import Compilation
from pipeline.dvc.program import locked_stages
from pipeline.ledger import Entry, Ledger
from pipeline.spec.run import Run
from pipeline.timing import duration, read_timing
from pipeline.workspace import RECORDS, Workspace, raw_data_folder

_UNKNOWN = (10_000, 2_000)  # training and test samples of a dataset of which only the data tell
_GUESS = 20_000.0  # sample visits per second where nothing has been timed yet: only the order of runs depends on it
_ROW_BYTES = 14  # per row of rounds.parquet, from the quickstart's artifacts
Timed = tuple[Run, float, float]
"""A run, the sample visits of its timed rounds, and their seconds."""


@dataclass(frozen=True)
class Share:
    """The estimates of one spec: its runs, trials included; its new runs, which neither DVC nor the ledger has; the
    time in seconds of those whose method and backbone were timed; the number of the others; the bytes of artifacts."""

    spec: str
    runs: int
    new: int
    seconds: float
    untimed: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """Stages (0 if only some cells are planned), (spec, run) pairs, samples that new runs visit, and shares."""

    stages: int
    slots: int
    visits: int
    total: Share
    specs: tuple[Share, ...]


class Speed:
    """Sample visits per second, by method and backbone: of `runs` that left their timings in a folder of this machine,
    or else of results in the ledger that a CPU obtained."""

    def __init__(self, runs: Iterable[Run], timings: Path, entries: Iterable[Entry] = ()) -> None:
        kept: list[Timed] = []
        for entry in entries:
            if entry.facts["device"].startswith("cpu") and not entry.facts["diverged"] and entry.seconds:
                kept.append((entry.run, visits(entry.run), entry.seconds))
        local: list[Timed] = []
        for run in runs:
            timing = read_timing(timings / f"{run.id}.json")
            if timing and timing.rounds and timing.seconds:
                local.append((run, visits(run) * timing.rounds / run.training.rounds, timing.seconds))
        self.rates = _rates(kept) | _rates(local)
        self.median = statistics.median(self.rates.values()) if self.rates else _GUESS

    def knows(self, run: Run) -> bool:
        return _kind(run) in self.rates

    def seconds(self, run: Run) -> float:
        """Return the expected seconds of training; a guess when no run like it has been timed."""
        return visits(run) / self.rates.get(_kind(run), self.median)


def visits(run: Run) -> int:
    """Return how many training samples a run visits, with clients of average size."""
    training, partition = run.training, run.options("partition")
    train, test = _samples(run)
    if partition.get("test_share") is not None:
        train = (train + test) * (1 - partition["test_share"])
    per_client = train * partition.get("train_share", 1.0) / run.clients
    per_client = min(per_client, partition.get("train_limit") or math.inf)
    steps = training.local_steps
    per_round = steps * min(per_client, training.batch_size) if steps else training.local_epochs * per_client
    return int(training.rounds * run.cohort * per_round)


def make_plan(workspace: Workspace, compilation: Compilation, only: Collection[str] | None = None) -> Plan:
    """Return the plan of a compilation in a workspace, of all its runs or of these `only`."""
    cached = _cached(workspace, compilation) | compilation.kept
    ids = compilation.runs.keys() if only is None else frozenset(only)
    selected = {id_: run for id_, run in compilation.runs.items() if id_ in ids}
    timings, entries = workspace.private / "timings", list[Entry]()
    with suppress(UserError):  # a damaged line of the ledger, of a run that is not planned
        entries = Ledger(workspace.home).entries()
    speed = Speed([*compilation.runs.values(), *_recorded(workspace, timings, compilation)], timings, entries)

    def share(spec: str, runs: list[Run]) -> Share:
        new = [run for run in runs if run.id not in cached]
        seconds = [speed.seconds(run) for run in new if speed.knows(run)]
        sizes = dict[str, int]()
        for run in {run.data_id: run for run in runs}.values():
            sizes.update(_sizes(run, workspace))
        rows = sum(len(run.evaluation.due(run.training.rounds)) * run.clients for run in runs)
        disk = sum(sizes.values()) + rows * _ROW_BYTES
        return Share(spec, len(runs), len(new), sum(seconds), len(new) - len(seconds), disk)

    specs = compilation.runs_of_specs()
    return Plan(
        stages=len(compilation.stages) if only is None else 0,
        slots=compilation.slots,
        visits=sum(visits(run) for run in selected.values() if run.id not in cached),
        total=share("all, each run once", list(selected.values())),
        specs=tuple(share(spec, [selected[run] for run in runs if run in selected]) for spec, runs in specs.items()),
    )


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield ``36 of 96 runs are new (about 2:05 h here); 40 MB of artifacts``, then a line per spec, then the rest."""
    total = plan.total
    time = "time unknown" if total.untimed == total.new else f"{_time(total)} here"
    suffix = f" ({time})" if total.new else ""
    verb = "is" if total.new == 1 else "are"
    yield f"{total.new:,} of {total.runs:,} runs {verb} new{suffix}; {decimal(total.bytes)} of artifacts"
    yield ""
    rows = [("spec", "runs", "new", "time here", "disk")]
    for share in (*plan.specs, total) if len(plan.specs) > 1 else plan.specs:
        rows.append((share.spec, f"{share.runs:,}", f"{share.new:,}", _time(share), decimal(share.bytes)))
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for spec, *cells in rows:
        yield "  ".join([spec.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, others, strict=True))])
    yield ""
    stages = f"{plan.stages:,} stages; {plan.slots:,} runs if specs shared none; " if plan.stages else ""
    yield f"{stages}{plan.visits:.3g} sample visits"
    if total.untimed:
        subject = f"{total.untimed:,} of the new runs {'is' if total.untimed == 1 else 'are'}"
        yield f"{subject} of a method and backbone neither timed here nor kept in results/ from a CPU"


def _cached(workspace: Workspace, compilation: Compilation) -> set[str]:
    """Return the runs whose train stage is locked with the present record and code, and whose result is here."""
    stages = [stage for stage in compilation.stages if stage.kind == "train"]
    locked = locked_stages(workspace.root, stages)
    current = [stage for stage in stages if locked.get(stage.address, {}).get("cmd") == stage.command]
    return {stage.subject for stage in current if all((workspace.root / out).exists() for out in stage.outs)}


def _recorded(workspace: Workspace, timings: Path, compilation: Compilation) -> list[Run]:
    """Return timed runs of other specs whose records are in ``stages/records.json``."""
    timed = {path.stem for path in timings.glob("*.json")} - compilation.runs.keys()
    with suppress(OSError, ValueError, TypeError):
        records = json.loads((workspace.root / RECORDS).read_text(encoding="utf-8")) if timed else {}
        return [Run(records[name]) for name in timed & records.keys()]
    return []


def _rates(timed: Iterable[Timed]) -> dict[str, float]:
    """Return sample visits per second by kind."""
    visited, seconds = defaultdict[str, float](float), defaultdict[str, float](float)
    for run, run_visits, run_seconds in timed:
        visited[_kind(run)] += run_visits
        seconds[_kind(run)] += run_seconds
    return {kind: visited[kind] / seconds[kind] for kind in visited if visited[kind]}


def _kind(run: Run) -> str:
    return json.dumps([run.method, run.record["backbone"]], sort_keys=True)


def _samples(run: Run) -> tuple[int, int]:
    size, dataset = run.options("dataset")["stand_in"], _dataset_of(run)
    return run.client_sample_counts(
        stand_in_counts(size) if size else dataset.expected or dataset.estimated_counts or _UNKNOWN
    )


def _sizes(run: Run, workspace: Workspace) -> Iterator[tuple[str, int]]:
    """Yield the dataset of a run, and what an encoder makes of it, with their bytes: of own numbers, of the files."""
    plain, dataset = run.unencoded, _dataset_of(run)
    size = sum(_samples(plain)) * math.prod(dataset.shape) * (4 if dataset.kind == ARRAYS else 1)
    if not size and isinstance(dataset, UserFiles) and not run.options("dataset")["stand_in"]:
        folder = dataset.root(raw_data_folder(workspace.root) / dataset.name)
        size = sum(path.stat().st_size for _, path in files_below(folder))
    yield plain.data_id, size
    if run.features:
        from pipeline.report.counting import placeholder_data  # with torch, as it builds the encoder

        with suppress(UserError):  # which `pfl validate` reports
            if data := placeholder_data(run):
                yield run.data_id, sum(_samples(run)) * 4 * math.prod(data.shape)


def _dataset_of(run: Run) -> Dataset:
    return _dataset(run.dataset, tuple((k, v) for k, v in run.options("dataset").items() if k != "stand_in"))


@cache
def _dataset(name: str, options: tuple[tuple[str, Any], ...]) -> Dataset:
    """Create a dataset. Cached, as checking options is slow and thousands of runs share a dataset."""
    return DATASETS.create(name, **dict(options))


def _time(share: Share) -> str:
    """Return ``about 2:05 h``, or ``over 20:00 min`` where some runs have not been timed."""
    if not share.new:
        return "none"
    if share.untimed == share.new:
        return "unknown"
    return f"{'over' if share.untimed else 'about'} {duration(share.seconds)}"
