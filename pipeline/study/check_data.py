"""`pfl check` of a dataset or a partition: what loads and deals samples has to do, on the data that is here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pflcore.data.assignment import Assignment
from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS, Dataset, stand_in
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, Partition, partition
from pipeline.study.check import Failed, Verdict, described, verdicts

_APART = 0.05  # by which a stated mean or deviation of pixels may differ from that of the training samples
_SEEDS = (0, 1)


def check_dataset(name: str, options: dict[str, Any], folder: Path) -> Iterator[Verdict]:
    """Test a dataset.

    Args:
        folder: Where its raw data lies.
    """
    yield from verdicts(_DatasetTests(DATASETS.create(name, **options), folder).tests, "loads")


def check_partition(name: str, options: dict[str, Any]) -> Iterator[Verdict]:
    """Test a partition on generated samples of the dataset that it names as its example."""
    yield from verdicts(_PartitionTests(PARTITIONS.create(name, **options)).tests, "deals")


@dataclass
class _DatasetTests:
    dataset: Dataset
    folder: Path

    @property
    def tests(self) -> dict[str, Callable[[], str]]:
        return {
            "described": lambda: described("dataset", self.dataset.name),
            "loads": self.loads,
            "as stated": self.as_stated,
            "normalised": self.normalised,
            "repeats": self.repeats,
            "imitated": self.imitated,
        }

    @cached_property
    def samples(self) -> Samples:
        return self.dataset.load(self.folder)

    def loads(self) -> str:
        train = int(self.samples.train.sum())
        rest = len(self.samples) - train
        return f"{train:,} training and {rest:,} test samples, {self.samples.classes} classes"

    def as_stated(self) -> str:
        shape, stated = self.samples.inputs.shape[1:], self.dataset.shape
        if len(stated) == 3 and tuple(shape) != tuple(stated) and 0 not in stated and self.samples.size is None:
            raise Failed(f"inputs have the shape {list(shape)}, and the dataset states {list(stated)}")
        absent = set(range(self.samples.classes)) - set(np.unique(self.samples.labels[self.samples.train]).tolist())
        if absent:
            raise Failed(f"no training sample is of class {self.samples.class_names[min(absent)]!r}")
        if lacking := set(self.dataset.attributes) - set(self.samples.attributes):
            raise Failed(f"samples lack the attribute {min(lacking)!r}")
        return f"inputs of {'×'.join(map(str, shape))}, every class among the training samples"

    def normalised(self) -> str:
        if self.samples.inputs.ndim != 4:
            return "texts are not normalised"
        train = self.samples.inputs[self.samples.train].astype(np.float32) / 255
        for what, stated, found in (
            ("mean", self.samples.mean, train.mean((0, 2, 3))),
            ("std", self.samples.std, train.std((0, 2, 3))),
        ):
            if len(stated) != len(found) or np.abs(np.subtract(stated, found)).max() > _APART:
                raise Failed(f"{what} is stated as {list(stated)}, and is {np.round(found, 4).tolist()}")
        return f"mean and std as stated, within {_APART}"

    def repeats(self) -> str:
        again = self.dataset.load(self.folder)
        for name in ("inputs", "labels", "train"):
            if not np.array_equal(getattr(again, name), getattr(self.samples, name)):
                raise Failed(f"{name} are others when they are loaded again")
        return "loaded again, the same samples"

    def imitated(self) -> str:
        made = stand_in(self.dataset, 40, 10)
        return f"generated samples for trials, of {'×'.join(map(str, made.inputs.shape[1:]))}"


@dataclass
class _PartitionTests:
    scheme: Partition

    @property
    def tests(self) -> dict[str, Callable[[], str]]:
        return {
            "described": lambda: described("partition", self.scheme.name),
            "deals": self.deals,
            "apart": self.apart,
            "repeats": self.repeats,
            "seeds": self.seeds,
            "numbers": self.numbers,
        }

    @cached_property
    def samples(self) -> Samples:
        dataset = DATASETS.create(self.scheme.example[0])
        return stand_in(dataset, *(dataset.expected or (2_000, 500)), with_images=False)

    def deal(self, seed: int = 0, clients: int | None = None) -> Assignment:
        return partition(self.scheme, self.samples, clients or self.scheme.example[1], seed)

    def deals(self) -> str:
        dealt = self.deal()
        sizes = [len(rows) for rows in dealt.train]
        return f"{len(sizes)} clients have {min(sizes)} to {max(sizes)} training samples of {self.samples.name}"

    def apart(self) -> str:
        dealt = self.deal()
        rows = np.concatenate([*dealt.train, *dealt.test, *(dealt.validation or ())])
        if len(rows) != len(np.unique(rows)):
            raise Failed("a sample is dealt twice")
        return f"no sample is dealt twice; {len(self.samples) - len(rows)} of {len(self.samples)} are left out"

    def repeats(self) -> str:
        if not _same(self.deal(), self.deal()):
            raise Failed("the same seed deals otherwise: draw from `rng` alone")
        return "the same seed deals alike"

    def seeds(self) -> str:
        return f"another seed deals {'alike' if _same(*(self.deal(seed) for seed in _SEEDS)) else 'otherwise'}"

    def numbers(self) -> str:
        served, refused = [], []
        for clients in (2, 5, 20, 50):
            try:
                self.deal(clients=clients)
                served.append(str(clients))
            except UserError as error:
                refused.append(f"{clients}: {error}")
        if not served:
            raise Failed(refused[0])
        return f"{', '.join(served)} clients" + (f"; refused {refused[0]}" if refused else "")


def _same(one: Assignment, other: Assignment) -> bool:
    return all(
        np.array_equal(mine, theirs)
        for mine, theirs in zip((*one.train, *one.test), (*other.train, *other.test), strict=True)
    )
