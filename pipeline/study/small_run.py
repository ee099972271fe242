"""Small runs: data, partition and training of milliseconds, by the functions of the stages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from pflcore.data.sample_files import read_samples, write_samples
from pflcore.engine import Progress
from pipeline.spec.run import Run
from pipeline.stages import data, features, partition, train

Entry = dict[str, Any]

SEQUENTIAL, POOLED, STACKED, RESUMED = "sequential", "pooled", "stacked", "resumed"
"""Executors, and a run that is killed, continued, and short of memory."""

CONVNET: Entry = {"name": "convnet", "channels": [4, 6], "hidden": [12], "kernel": 3, "padding": 1}
IMAGES: Entry = {"name": "digits", "stand_in": 120}
UNEVEN: Entry = {"name": "quantity", "alpha": 1.5, "min_samples": 3}
_TRAINING: Entry = {"rounds": 3, "sample_rate": 0.75, "local_epochs": 2, "batch_size": 5, "lr": 0.1}
# Settings that determine how training is computed, in place of those of the machine.
_ENVIRONMENT = {"PFL_WORKERS": "2", "PFL_STACK": "3", "PFL_THREADS": "1"}


@dataclass(frozen=True)
class SmallRun:
    """A run of milliseconds: uneven clients, batches that do not divide them, and not all clients in a round.

    Without a method nothing is trained, without a partition only data are made. Images are scaled to `size`.
    `training` and `evaluation` have the settings that differ from those of all small runs.
    """

    name: str
    method: Entry | None = None
    backbone: Entry = field(default_factory=lambda: CONVNET)
    dataset: Entry = field(default_factory=lambda: IMAGES)
    size: int | None = None
    partition: Entry | None = field(default_factory=lambda: UNEVEN)
    clients: int = 5
    seed: int = 2
    training: Entry = field(default_factory=dict)
    evaluation: Entry = field(default_factory=dict)
    analyses: tuple[Entry, ...] = ()
    condition: Entry | None = None

    @cached_property
    def run(self) -> Run:
        """The record that the stages read."""
        record = {
            "dataset": {"stand_in": None, **self.dataset},
            "partition": self.partition or {"name": "iid"},
            **{name: getattr(self, name) for name in ("clients", "seed", "backbone")},
            "method": self.method or {"name": "fedavg"},
            "training": {**_TRAINING, "save_weights": True, **self.training},
            "evaluation": {"every": 1, "window": 100, **self.evaluation},
        }
        record |= {"condition": self.condition} if self.condition else {}
        return Run(record | ({"analyses": list(self.analyses)} if self.analyses else {}))


@contextmanager
def fixed_environment(threads: int = 1) -> Iterator[None]:
    """Replace the settings of this machine by two workers and stacks of three."""
    before = torch.get_num_threads()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PFL_")}
    try:
        with patch.dict(os.environ, {**environment, **_ENVIRONMENT, "PFL_THREADS": str(threads)}, clear=True):
            yield
    finally:
        torch.set_num_threads(before)


def perform(small: SmallRun, mode: str, folder: Path) -> Path:
    """Execute a small run in one of the four modes above, and return its folder. Datasets in `folder` are reused."""
    run, out = small.run, folder / small.name.replace("/", " ") / mode
    dataset, assignment, messages = folder / f"{run.data_id}-{small.size}", out / "partition", list[str]()
    out.mkdir(parents=True)
    unencoded = folder / f"{run.unencoded.data_id}-{small.size}"
    if not unencoded.exists():
        data.run(run.unencoded.record["dataset"], unencoded, folder / "raw")
        if small.size:
            write_samples(unencoded, replace(read_samples(unencoded), size=small.size))
    if not dataset.exists():
        features.run(run, unencoded, out=dataset, device="cpu")
    if small.partition:
        partition.run(run, dataset, assignment)

    def interrupt(progress: Progress) -> None:
        if progress.round == progress.rounds:  # the next call repeats it from the checkpoint before it
            raise KeyboardInterrupt

    inputs: Entry = {"dataset": dataset, "partition": assignment, "code": "", "out": out, "private": out}
    inputs |= {"device": "cpu", "executor": SEQUENTIAL if mode == RESUMED else mode, "say": messages.append}
    if small.method and mode != RESUMED:
        train.run(run, **inputs, checkpoint_every=1e9)
    elif small.method:
        with patch.dict(os.environ, PFL_MEMORY="0"):  # nothing fits: data and personal models are mapped files
            with suppress(KeyboardInterrupt):
                train.run(run, **inputs, checkpoint_every=-1.0, on_round=interrupt)
            train.run(run, **inputs, checkpoint_every=-1.0)
        if not any("continued from the checkpoint" in line for line in messages):
            raise RuntimeError(f"it did not continue from its checkpoint: {messages}")
    return out
