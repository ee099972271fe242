"""What a partition is, and the cutting that the schemes share.

Every scheme here gives each sample to exactly one client. Released code of the papers truncates the size of each part,
which loses up to one sample per client and class; here parts end at rounded cumulative shares, which loses none and
keeps every part within one sample of its share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pflcore.assignment import Assignment
from pflcore.errors import UserError
from pflcore.registry import Entry
from pflcore.samples import Rows, Samples
from pflcore.seeds import generator

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Partition(Entry, ABC):
    """Base of the partition schemes."""

    @abstractmethod
    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Rows:
        """Choose an owner for every sample.

        Args:
            samples: Only its labels, split and number of classes matter.
            clients: Number of clients, at least 1.
            rng: The only source of randomness.

        Returns:
            int64 [n]: the client that holds the sample, or -1 to leave it out.

        Raises:
            UserError: The scheme cannot serve this number of clients.
        """


def partition(scheme: Partition, samples: Samples, clients: int, seed: int) -> Assignment:
    """Split `samples` over `clients` by `scheme`; the same arguments give the same assignment.

    Raises:
        UserError: The scheme does not fit, or leaves a client without a training or without a test sample: such a
            client could neither take part nor be evaluated.
    """
    if clients < 1:
        raise UserError(f"partition {scheme.name!r}: clients = {clients} must be at least 1")
    owners = scheme.split(samples, clients, generator(seed, "partition"))
    for side, train in (("training", True), ("test", False)):
        held = np.bincount(owners[(samples.train == train) & (owners >= 0)], minlength=clients)
        if not held.all():
            raise UserError(
                f"partition {scheme.name!r}: {int((held == 0).sum())} of {clients} clients get none of the "
                f"{int(held.sum())} {side} samples of {samples.name}; use fewer clients"
            )
    return Assignment.from_owners(owners, samples.train, clients, scheme.name, seed)


def part_sizes(count: int, shares: Shares) -> Rows:
    """Sizes of the parts of `count` samples in proportion to `shares` [clients]: int64 [clients], their sum `count`."""
    total = np.cumsum(shares)
    ends: Rows = np.floor(total / total[-1] * count + 0.5).astype(np.int64)
    sizes: Rows = np.diff(ends, prepend=0)
    return sizes


def deal(rows: Rows, sizes: Rows, owners: Rows, rng: np.random.Generator) -> None:
    """Shuffle `rows` and give ``sizes[i]`` of them to client ``i``, in `owners`."""
    owners[rng.permutation(rows)] = np.repeat(np.arange(len(sizes)), sizes)


def rows_by_class(samples: Samples, train: bool) -> list[Rows]:
    """The rows of every class on one side of the split, ascending."""
    return [np.flatnonzero((samples.labels == label) & (samples.train == train)) for label in range(samples.classes)]


def deal_classes(samples: Samples, shares: Shares, rng: np.random.Generator) -> Rows:
    """Give every client its share of every class, the same in training and test samples.

    Args:
        shares: float64 [classes, clients], each row with a positive sum.

    Returns:
        The owner of every sample, int64 [n].
    """
    owners = np.full(len(samples), -1)
    for train in (True, False):
        for rows, share in zip(rows_by_class(samples, train), shares, strict=True):
            deal(rows, part_sizes(len(rows), share), owners, rng)
    return owners
