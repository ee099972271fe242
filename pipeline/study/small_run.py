"""Small runs: data, partition and training of milliseconds, by the functions of the stages, as numbers to compare."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.numpy import load_file

from pflcore.artifacts import read_table
from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.data.samples import Samples
from pflcore.engine import Progress
from pipeline.spec.run import Run
from pipeline.stages import data, partition, train

Entry = dict[str, Any]
Numbers = dict[str, str]
"""Quantity → its values, with spaces between them. Values with a point were computed in floating point."""

SEQUENTIAL, POOLED, STACKED, RESUMED = "sequential", "pooled", "stacked", "resumed"
"""Executors, and a run that is killed, continued, and short of memory."""

CONVNET: Entry = {"name": "convnet", "channels": [4, 6], "hidden": [12], "kernel": 3, "padding": 1}
IMAGES: Entry = {"name": "digits", "stand_in": 120}
UNEVEN: Entry = {"name": "quantity", "alpha": 1.5, "min_samples": 3}
_TRAINING: Entry = {"rounds": 3, "sample_rate": 0.75, "local_epochs": 2, "batch_size": 5, "lr": 0.1}
_FLOOR = 1e-6  # numbers that are all smaller are compared as if one were as large as this

# What decides how training is carried out, as no setting of the machine may.
_ENVIRONMENT = {"PFL_WORKERS": "2", "PFL_STACK": "3", "PFL_THREADS": "1"}
_COUNTED = (
    *("parameters", "communicated_up", "communicated_down", "stored", "received", "server", "macs", "positions"),
    "diverged",
)


@dataclass(frozen=True)
class SmallRun:
    """A run of milliseconds: uneven clients, batches that do not divide them, and not all clients in a round.

    Attributes:
        name: Its name in messages.
        method: An entry with its options, as in a resolved run; None trains nothing.
        size: Height and width to which images are scaled when they are used, which those of a stand-in never are.
        partition: None makes only the dataset.
        training, evaluation: Settings that differ from those of all small runs.
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

    @cached_property
    def run(self) -> Run:
        """The record that the stages read."""
        record = {
            "dataset": {"stand_in": None, **self.dataset},
            "partition": self.partition or {"name": "iid"},
            "clients": self.clients,
            "seed": self.seed,
            "backbone": self.backbone,
            "method": self.method or {"name": "fedavg"},
            "training": {**_TRAINING, "save_weights": True, **self.training},
            "evaluation": {"every": 1, "window": 100, **self.evaluation},
        }
        return Run(record | ({"analyses": list(self.analyses)} if self.analyses else {}))


def shown(values: Iterable[float]) -> str:
    """Format numbers that were computed in floating point, to seven digits."""
    return " ".join(f"{value:#.7g}" for value in values)


def deviation(quantity: str, one: str, other: str) -> float:
    """Return by how much `other` deviates, relative to the largest number in `one`; infinity where nothing may.

    Counts of correct predictions may differ by one in all, as a sample may lie between two classes.
    """
    pairs = list(zip(one.split(), other.split(), strict=False))
    if len(one.split()) != len(other.split()):
        return math.inf
    if quantity.startswith("correct"):
        return math.inf if sum(abs(int(a) - int(b)) for a, b in pairs) > 1 else 0.0
    computed = [(float(a), float(b)) for a, b in pairs if "." in a and "." in b]
    if any(a != b for a, b in pairs if not ("." in a and "." in b)):
        return math.inf
    scale = max([_FLOOR, *(abs(a) for a, _ in computed)])
    return max((abs(a - b) for a, b in computed), default=0.0) / scale


def differences(recorded: Numbers, found: Numbers, tolerance: float) -> dict[str, float]:
    """Return quantity → deviation of those that do not agree or that only one side has; the largest first."""
    quantities = {**recorded, **found}
    by = {name: deviation(name, recorded.get(name, ""), found.get(name, "")) for name in quantities}
    return dict(sorted(((name, size) for name, size in by.items() if size > tolerance), key=lambda item: -item[1]))


@contextmanager
def same_everywhere(threads: int = 1) -> Iterator[None]:
    """Put settings of this machine aside; two workers, stacks of three."""
    before = torch.get_num_threads()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PFL_")}
    try:
        with patch.dict(os.environ, {**kept, **_ENVIRONMENT, "PFL_THREADS": str(threads)}, clear=True):
            yield
    finally:
        torch.set_num_threads(before)


def perform(small: SmallRun, way: str, folder: Path) -> Numbers:
    """Carry out a small run, in one of four ways, and return its numbers. Datasets in `folder` are used again."""
    run, place = small.run, folder / small.name.replace("/", " ") / way
    dataset, owners = folder / f"{run.data_id}-{small.size}", place / "partition"
    place.mkdir(parents=True)
    if not dataset.exists():
        data.run(run.record["dataset"], dataset, folder / "raw")
        if small.size:
            write_samples(dataset, replace(read_samples(dataset), size=small.size))
    numbers = {"data": _of_data(dataset)}
    if not small.partition:
        return numbers
    partition.run(run, dataset, owners)
    numbers |= _of_partition(owners)
    if not small.method:
        return numbers
    said: list[str] = []

    def execute(on_round: Callable[[Progress], None] | None = None) -> None:
        train.run(
            run,
            dataset=dataset,
            partition=owners,
            code="",
            out=place,
            private=place,
            device="cpu",
            executor=SEQUENTIAL if way == RESUMED else way,
            checkpoint_every=-1.0 if way == RESUMED else 1e9,
            on_round=on_round,
            say=said.append,
        )

    if way == RESUMED:
        with patch.dict(os.environ, PFL_MEMORY="0"):  # nothing fits: data and personal models are mapped files
            with suppress(KeyboardInterrupt):
                execute(_interrupt)
            execute()
        if not any("continued from the checkpoint" in line for line in said):
            raise RuntimeError(f"it did not continue from its checkpoint: {said}")
    else:
        execute()
    return numbers | _of_run(place)


def _interrupt(progress: Progress) -> None:
    """Kill a run after its last round, which is then repeated from the checkpoint before it."""
    if progress.round == progress.rounds:
        raise KeyboardInterrupt


def _of_data(path: Path) -> str:
    return of_samples(read_samples(path))


def of_samples(samples: Samples) -> str:
    """Return the number of samples, of classes, the size, a digest of all arrays, and the normalisation."""
    attributes = [attribute.values for attribute in samples.attributes.values()]
    boxes = samples.boxes
    objects: list[np.ndarray] = [boxes.counts, boxes.labels, boxes.corners, boxes.difficult] if boxes else []
    digest = _digest(samples.inputs, samples.labels, samples.train, *attributes, *objects)
    normalisation = shown([*samples.mean, *samples.std])
    return f"{len(samples)} {samples.classes} {samples.size} {digest} {normalisation}"


def _of_partition(path: Path) -> Numbers:
    owners = read_assignment(path)
    sizes = " ".join(f"{len(mine)}+{len(tested)}" for mine, tested in zip(owners.train, owners.test, strict=True))
    numbers = {"samples": f"{sizes} {_digest(*owners.train, *owners.test)}"}
    if owners.validation:
        numbers["validation"] = f"{' '.join(map(str, map(len, owners.validation)))} {_digest(*owners.validation)}"
    if owners.novel:
        numbers["novel"] = " ".join(map(str, owners.novel))
    if owners.noise:
        numbers["noise"] = f"{owners.noise.released} {owners.noise.seed} {shown(owners.noise.std)}"
    return numbers


def _of_run(folder: Path) -> Numbers:
    table, meta = read_table(folder / "rounds.parquet", "rounds/2")
    rows = table.to_pylist()
    numbers = {"cost": " ".join(f"{name}={meta[name]}".replace(" ", "") for name in _COUNTED)}
    numbers["measured rounds"] = " ".join(map(str, sorted({row["round"] for row in rows})))
    held = sorted({(row["client"], row["population"], row["total"]) for row in rows})
    numbers["predictions"] = " ".join(f"{population}={total}" for _, population, total in held)
    for number in sorted({row["round"] for row in rows}):
        measured = [row for row in rows if row["round"] == number]
        counts, last = ([row[name] for row in measured] for name in ("correct", "last_correct"))
        numbers[f"correct, round {number}"] = " ".join(map(str, counts))
        if counts != last:
            numbers[f"correct at the end, round {number}"] = " ".join(map(str, last))
        numbers[f"loss, round {number}"] = shown(row["loss"] for row in measured)
    parts: dict[str, list[np.ndarray]] = {}
    for name, tensor in sorted(load_file(folder / "weights.safetensors").items()):
        parts.setdefault(_part(name), []).append(tensor.astype(np.float64).ravel())
    for name, tensors in parts.items():
        numbers[f"state, {name}"] = shown(_statistics(name, np.concatenate(tensors)))
    if (folder / "analysis.parquet").exists():
        found, _ = read_table(folder / "analysis.parquet", "analysis/1")
        value = found["value"].to_numpy()
        numbers["analysis"] = f"{len(value)} {shown(_statistics('analysis', value))}"
    return numbers


def _part(name: str) -> str:
    """What an entry of the final state is shown with: all of a client's own; a module of the model; of the server's."""
    owner, _, rest = name.partition(".")
    if owner == "client":
        return f"client {rest.partition('.')[0]}"
    inner = rest if owner == "server" else name
    return f"server {inner.partition('/')[0]}" if owner == "server" else inner.partition(".")[0].replace("/", " ")


def _statistics(name: str, values: np.ndarray) -> list[float]:
    """The norm, and the projection on a random direction, which notices signs and order."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    direction = np.random.default_rng(seed).standard_normal(len(values))
    return [float(np.linalg.norm(values)), float(values @ direction)]


def _digest(*arrays: np.ndarray) -> str:
    """Twelve hex digits that stand for arrays."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:12]
