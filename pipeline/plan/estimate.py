"""How much work a run is, and how long that takes on this machine, from what past runs took."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pflcore.datasets import DATASETS, Dataset, stand_in_counts
from pipeline.spec.run import Run
from pipeline.timing import read_timing

# Training and test samples of a dataset of which only the data tell.
_UNKNOWN = (10_000, 2_000)
# Sample visits per second where nothing has been timed yet: only the order of runs depends on it.
_GUESS = 20_000.0

Kind = tuple[str, str]


def visits(run: Run) -> int:
    """Training samples that a run visits, with clients of average size."""
    training, everyone = run.training, run.options("method").get("schedule") == "every_round"
    cohort = run.clients if everyone else training.cohort_size(run.clients)
    share = held(run)[0] / run.clients
    steps = training.local_steps
    each = steps * min(share, training.batch_size) if steps else training.local_epochs * share
    return int(training.rounds * cohort * each)


def held(run: Run) -> tuple[float, float]:
    """Training and test samples of all clients together, where a partition deals out the whole dataset."""
    train, test = _samples(run)
    partition = run.options("partition")
    drawn = partition.get("test_share")
    if drawn is not None:
        train, test = (train + test) * (1 - drawn), (train + test) * drawn
    limit = partition.get("train_limit")
    each = train * partition.get("train_share", 1.0) / run.clients
    return (each if limit is None else min(each, limit)) * run.clients, test


def samples(run: Run) -> int:
    """Samples of a run's dataset."""
    return sum(_samples(run))


def _samples(run: Run) -> tuple[int, int]:
    size, dataset = run.options("dataset")["stand_in"], dataset_of(run)
    return stand_in_counts(size) if size else dataset.expected or dataset.about or _UNKNOWN


def dataset_of(run: Run) -> Dataset:
    """A run's dataset."""
    return _dataset(run.dataset, tuple((k, v) for k, v in run.options("dataset").items() if k != "stand_in"))


@cache
def _dataset(name: str, options: tuple[tuple[str, Any], ...]) -> Dataset:
    """To check options takes long, and thousands of runs share a dataset."""
    return DATASETS.create(name, **dict(options))


def kind_of(run: Run) -> Kind:
    """Runs of one kind visit about as many samples per second."""
    return run.method, json.dumps(run.record["backbone"], sort_keys=True)


class Speed:
    """Sample visits per second on this machine, by kind of run.

    Args:
        runs: Those whose timings count, as far as there are any.
        timings: The folder of timings that training leaves behind.
    """

    def __init__(self, runs: Iterable[Run], timings: Path) -> None:
        done: dict[Kind, float] = defaultdict(float)
        took: dict[Kind, float] = defaultdict(float)
        for run in runs:
            timing = read_timing(timings / f"{run.id}.json")
            if timing and timing.rounds > 0 and timing.seconds > 0:
                done[kind_of(run)] += visits(run) * timing.rounds / run.training.rounds
                took[kind_of(run)] += timing.seconds
        self.rates = {kind: done[kind] / took[kind] for kind in done if done[kind] > 0}
        self._any = sum(done.values()) / sum(took.values()) if self.rates else _GUESS

    def knows(self, run: Run) -> bool:
        """Whether a run like this one has been timed here."""
        return kind_of(run) in self.rates

    def seconds(self, run: Run) -> float:
        """Expected seconds of training; a guess when no run like it has been timed here."""
        return visits(run) / self.rates.get(kind_of(run), self._any)
