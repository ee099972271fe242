"""The base class of partition schemes, which choose a client for every sample, and what all schemes share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pflcore.data.assignment import Assignment
from pflcore.data.noise import Noise
from pflcore.data.samples import IMAGES, TEXT, Mask, Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.registry import Entry
from pflcore.seeds import generator

# Rows that are assigned separately with the same shares: training and test samples, or all samples as one.
Sides = Sequence[Rows]


@dataclass(frozen=True, kw_only=True)
class Partition(Entry, ABC):
    """Base of the partition schemes."""

    # The dataset and the number of clients for the example that ``pfl describe`` shows.
    example: ClassVar[tuple[str, int]] = ("digits", 10)

    test_share: float | None = option(
        None,
        gt=0,
        lt=1,
        help="Share of all of a client's samples drawn for its test, of texts its last; null: the dataset's split.",
    )
    test_draw: str | None = option(
        None,
        choices=("stratified",),
        help="Whether a test_share, but of a text, is drawn of each class, at least one of two samples; null: of all.",
    )
    validation_share: float = option(
        0.0, ge=0, lt=1, later=True, help="Share of training samples held back for validation, before any limit."
    )
    train_limit: int | None = option(None, ge=1, help="Most training samples of a client, drawn at random; null: all.")
    train_share: float = option(
        1.0, gt=0, le=1, later=True, help="Share of training samples that a client keeps; smaller are parts of larger."
    )
    novel_share: float = option(0.0, ge=0, lt=1, help="Share of the clients, drawn, that are novel: they never train.")
    novel_clients: tuple[int, ...] = option((), ge=0, later=True, help="Further novel clients, by number from 0.")

    @abstractmethod
    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Return the client of each sample, or -1 to leave it out: int64 [n].

        All `sides` get the same shares. `rng` is the only source of randomness. Raises :class:`UserError` if the scheme
        does not support this number of clients.
        """

    def fixed_assignment(self, samples: Samples, clients: int, seed: int) -> Assignment | None:
        """Return the assignment of a scheme that draws nothing; else None, and :meth:`split` chooses the clients."""
        return None

    def novel(self, samples: Samples, clients: int, seed: int) -> set[int]:
        """Return the clients that never train, drawn and named. Raises :class:`UserError` if one does not exist."""
        if outside := [client for client in self.novel_clients if client >= clients]:
            message = f"there is no client {outside[0]}; the {clients} clients are counted from 0"
            raise UserError(f"partition {self.name!r}: novel_clients: {message}")
        drawn = generator(seed, "partition novel").permutation(clients)[: round(self.novel_share * clients)]
        return {*drawn.tolist(), *self.novel_clients}

    def noise(self, clients: int, seed: int) -> Noise | None:
        """Return the noise on the clients' images; by default none."""
        return None


def partition(scheme: Partition, samples: Samples, clients: int, seed: int) -> Assignment:
    """Return the assignment of `samples` by `scheme`. Raises :class:`UserError` if a client gets none on a side."""
    where = f"partition {scheme.name!r}"
    if clients < 1:
        raise UserError(f"{where}: clients = {clients} must be at least 1")
    if (fixed := scheme.fixed_assignment(samples, clients, seed)) is not None:
        return fixed
    pooled = scheme.test_share is not None
    if not pooled and samples.train.all():
        advice = "set the partition's test_share"
        raise UserError(f"{where}: {samples.name} has no test samples of its own; {advice}")
    noise = scheme.noise(clients, seed)
    if noise and samples.kind != IMAGES:
        raise UserError(f"{where}: its noise is of images; {samples.name} has {samples.kind}")
    sides = [np.arange(len(samples))] if pooled else [np.flatnonzero(samples.train), np.flatnonzero(~samples.train)]
    owners = scheme.split(samples, sides, clients, generator(seed, "partition"))
    owners = _checked_owners(scheme.name, owners, len(samples), clients)
    train, used = samples.train, owners >= 0
    if scheme.test_share is not None:
        strata = owners * samples.classes + samples.labels if scheme.test_draw == "stratified" else owners
        drawn = draw_share(strata, used, scheme.test_share, generator(seed, "partition test"))
        train = ~(last_share(owners, used, scheme.test_share) if samples.kind == TEXT else drawn)
    parts = {"training": train, "test": ~train}
    if scheme.validation_share:
        share, rng = scheme.validation_share, generator(seed, "partition validation")
        drawn = stratified_sample(owners, samples.labels, train & used, share, rng)
        parts["validation"] = last_share(owners, train & used, share) if samples.kind == TEXT else drawn
        parts["training"] = train = train & ~parts["validation"]
    if scheme.train_limit is not None or scheme.train_share < 1:
        owners = _limit(scheme, owners, train, clients, generator(seed, "partition limit"))
    for side, mask in parts.items():
        counts = np.bincount(owners[mask & (owners >= 0)], minlength=clients)
        if not counts.all():
            has_minimum = hasattr(scheme, "min_samples") and getattr(scheme, "sizes", None) != "equal"
            advice = "raise min_samples or use fewer clients" if has_minimum else "use fewer clients"
            problem = f"{int((counts == 0).sum()):,} of {clients:,} clients get none"
            total = f"the {int(counts.sum()):,} {side} samples of {samples.name}"
            raise UserError(f"{where}: {problem} of {total}; {advice}")
    rows, split = np.flatnonzero(owners >= 0), np.argmax(list(parts.values()), axis=0)
    fields = {"own_split": pooled, "novel": tuple(sorted(scheme.novel(samples, clients, seed))), "noise": noise}
    return Assignment.from_rows(rows, owners[rows], split[rows], clients, scheme.name, seed, **fields)


def _checked_owners(name: str, owners: Any, samples: int, clients: int) -> Rows:
    """Return the result of a split, the client of each sample or -1. Raises :class:`UserError` for anything else."""
    is_array = isinstance(owners, np.ndarray)
    if not is_array or owners.dtype.kind not in "iu" or owners.shape != (samples,):
        actual = f"{owners.dtype} of shape {owners.shape}" if is_array else type(owners).__name__
        expected = f"an integer for each of {samples:,} samples"
        raise UserError(f"partition {name!r}: split must return {expected}, not {actual}")
    outside = owners[(owners < -1) | (owners >= clients)]
    if len(outside):
        advice = f"the {clients} clients are counted from 0, and -1 leaves a sample out"
        raise UserError(f"partition {name!r}: split returned client {outside[0]}; {advice}")
    checked: Rows = owners.astype(np.int64)
    return checked


def draw_share(strata: Rows, eligible: Mask, share: float, rng: np.random.Generator) -> Mask:
    """Return the mask of a share of the `eligible` rows drawn from each stratum; of several rows, some but not all."""
    rows = np.flatnonzero(eligible)
    keys, position, counts = np.unique(strata[rows], return_inverse=True, return_counts=True)
    drawn = np.zeros(len(strata), np.bool_)
    drawn[rows] = _rank(position, len(keys), rng) < _sizes(counts, share)[position]
    return drawn


def stratified_sample(owners: Rows, labels: Rows, eligible: Mask, share: float, rng: np.random.Generator) -> Mask:
    """Return the mask of a share drawn from each owner's `eligible` samples, with its classes in proportion.

    Of an owner's n samples, m = ``n * share`` rounded are drawn, but for n > 1 at least one and not all. Of each class
    its proportion of m is drawn, rounded down or up. All samples of an owner have the same probability. The method is
    systematic sampling: in a random order by class, every n/m-th sample from a random start.
    """
    rows = rng.permutation(np.flatnonzero(eligible))
    rows = rows[np.lexsort((labels[rows], owners[rows]))]
    _, first, position, counts = np.unique(owners[rows], return_index=True, return_inverse=True, return_counts=True)
    rank = np.arange(len(rows)) - first[position]
    count = counts[position]
    size = _sizes(counts, share)[position]
    start = rng.integers(0, counts)[position]
    drawn = np.zeros(len(owners), np.bool_)
    drawn[rows] = ((rank + 1) * size + start) // count > (rank * size + start) // count
    return drawn


def last_share(owners: Rows, eligible: Mask, share: float) -> Mask:
    """Return the mask of the last share of each owner's `eligible` rows; of several rows, some but not all.

    It is for texts: their samples overlap, so training would know nearly all of samples that are drawn.
    """
    rows = np.flatnonzero(eligible)
    rows = rows[np.argsort(owners[rows], kind="stable")]
    _, position, counts = np.unique(owners[rows], return_inverse=True, return_counts=True)
    remaining = np.cumsum(counts)[position] - np.arange(len(rows))  # of the owner's rows, from this one on
    last = np.zeros(len(owners), np.bool_)
    last[rows] = remaining <= _sizes(counts, share)[position]
    return last


def _sizes(counts: Rows, share: float) -> Rows:
    """Return the share of each count, rounded; for counts above 1 it is at least 1 and less than the count."""
    sizes: Rows = np.floor(counts * share + 0.5).astype(np.int64)
    return np.clip(sizes, np.minimum(1, counts - 1), counts - 1)


def _limit(scheme: Partition, owners: Rows, train: Mask, clients: int, rng: np.random.Generator) -> Rows:
    """Return `owners` without training samples above the limit or share; a smaller limit keeps part of a larger one."""
    rows = np.flatnonzero(train & (owners >= 0))
    counts = np.bincount(owners[rows], minlength=clients)
    limits = np.maximum(np.minimum(counts, 1), np.floor(counts * scheme.train_share + 0.5).astype(np.int64))
    if scheme.train_limit is not None:
        limits = np.minimum(limits, scheme.train_limit)
    limited = owners.copy()
    limited[rows[_rank(owners[rows], clients, rng) >= limits[owners[rows]]]] = -1
    return limited


def _rank(groups: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Return the rank of every element in a random order of its group, int64 from 0."""
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups, minlength=count)
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks
