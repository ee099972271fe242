"""What a partition is, and what is common to all schemes, which choose an owner for every sample.

That is which of a client's samples are for training, for validation and for test, how many it may keep, and which
clients are held back as novel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pflcore.data.assignment import Assignment
from pflcore.data.noise import Noise
from pflcore.data.samples import Mask, Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.registry import Entry
from pflcore.seeds import generator

Sides = Sequence[Rows]
"""Rows that are dealt separately and in the same proportions: training and test samples, or all samples in one."""


@dataclass(frozen=True, kw_only=True)
class Partition(Entry, ABC):
    """Base of the partition schemes."""

    example: ClassVar[tuple[str, int]] = ("digits", 10)
    """A dataset and a number of clients that ``pfl describe`` shows it with."""

    test_share: float | None = option(
        None,
        help="Deal training and test samples as one, then draw this share of each client's samples for its test; "
        "null keeps the dataset's own split.",
        gt=0,
        lt=1,
    )
    test_draw: str | None = option(
        None,
        help="How a test_share is drawn: from each of a client's classes (stratified), or, when null, from all of its "
        "samples together.",
        choices=("stratified",),
    )
    validation_share: float = option(
        0.0,
        help="Share of each client's training samples that it holds back for validation, its classes in the same "
        "proportions; drawn before train_limit and train_share, which are about the rest. 0 holds back none.",
        ge=0,
        lt=1,
        later=True,
    )
    train_limit: int | None = option(
        None, help="Most training samples of a client, drawn at random; null is no limit.", ge=1
    )
    train_share: float = option(
        1.0,
        help="Share of each client's training samples that it keeps, drawn at random; of two shares the smaller one is "
        "part of the larger.",
        gt=0,
        le=1,
        later=True,
    )
    novel_share: float = option(
        0.0, help="Share of the clients, drawn at random, that never train and are measured apart.", ge=0, lt=1
    )

    @abstractmethod
    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Choose an owner for every sample.

        Args:
            samples: Labels and attributes matter, inputs do not.
            sides: What to deal, each with the same shares.
            clients: Number of clients, at least 1.
            rng: The only source of randomness.

        Returns:
            int64 [n]: the client that holds the sample, or -1 to leave it out.

        Raises:
            UserError: The scheme cannot serve this number of clients.
        """

    def dealt(self, samples: Samples, clients: int, seed: int) -> Assignment | None:
        """The whole assignment, of a scheme that draws nothing; by default None: :meth:`split` chooses owners."""
        return None

    def noise(self, clients: int, seed: int) -> Noise | None:
        """Return what is added to the clients' images; by default nothing."""
        return None


def partition(scheme: Partition, samples: Samples, clients: int, seed: int) -> Assignment:
    """Split `samples` over `clients` by `scheme`; the same arguments give the same assignment.

    Raises:
        UserError: The scheme does not fit, or leaves a client without a training or without a test sample: such a
            client could neither take part nor be evaluated.
    """
    if clients < 1:
        raise UserError(f"partition {scheme.name!r}: clients = {clients} must be at least 1")
    if (dealt := scheme.dealt(samples, clients, seed)) is not None:
        return dealt
    pooled = scheme.test_share is not None
    if not pooled and samples.train.all():
        raise UserError(
            f"partition {scheme.name!r}: {samples.name} has no test samples of its own; set the partition's test_share"
        )
    sides = [np.arange(len(samples))] if pooled else [np.flatnonzero(samples.train), np.flatnonzero(~samples.train)]
    owners = scheme.split(samples, sides, clients, generator(seed, "partition"))
    train = samples.train
    if scheme.test_share is not None:
        by_class = scheme.test_draw == "stratified"
        strata = owners * samples.classes + samples.labels if by_class else owners
        drawn = draw_share(strata, owners >= 0, scheme.test_share, generator(seed, "partition test"))
        train = ~drawn
    validation = None
    if scheme.validation_share:
        among, rng = train & (owners >= 0), generator(seed, "partition validation")
        validation = _draw_alike(owners, samples.labels, among, scheme.validation_share, rng)
        train = train & ~validation
    if scheme.train_limit is not None or scheme.train_share < 1:
        owners = _limit(scheme, owners, train, clients, generator(seed, "partition limit"))
    _check_everyone(scheme, samples, owners, train, validation, clients)
    return Assignment.from_owners(
        owners,
        train,
        clients,
        scheme.name,
        seed,
        validation=validation,
        own_split=pooled,
        novel=_novel(scheme.novel_share, clients, seed),
        noise=scheme.noise(clients, seed),
    )


def _check_everyone(
    scheme: Partition, samples: Samples, owners: Rows, train: Mask, validation: Mask | None, clients: int
) -> None:
    test = ~train if validation is None else ~(train | validation)
    for side, rows in (("training", train), ("test", test), ("validation", validation)):
        if rows is None:
            continue
        held = np.bincount(owners[rows & (owners >= 0)], minlength=clients)
        if not held.all():
            raise UserError(
                f"partition {scheme.name!r}: {int((held == 0).sum()):,} of {clients:,} clients get none of the "
                f"{int(held.sum()):,} {side} samples of {samples.name}; use fewer clients"
            )


def _novel(share: float, clients: int, seed: int) -> tuple[int, ...]:
    count = round(share * clients)
    return tuple(sorted(generator(seed, "partition novel").permutation(clients)[:count].tolist()))


def draw_share(strata: Rows, among: Mask, share: float, rng: np.random.Generator) -> Mask:
    """Draw a share of each stratum: of ``k`` members ``k * share``, rounded, but where k > 1 at least one and not all.

    Args:
        strata: int64 [n], which stratum a row is in.
        among: bool [n], the rows that count.
    """
    rows = np.flatnonzero(among)
    keys, position, counts = np.unique(strata[rows], return_inverse=True, return_counts=True)
    sizes = np.clip(np.floor(counts * share + 0.5).astype(np.int64), np.minimum(1, counts - 1), counts - 1)
    drawn = np.zeros(len(strata), np.bool_)
    drawn[rows] = _rank(position, len(keys), rng) < sizes[position]
    return drawn


def _draw_alike(owners: Rows, labels: Rows, among: Mask, share: float, rng: np.random.Generator) -> Mask:
    """Draw a share of each owner's samples with its classes in proportion.

    Of ``n`` samples ``n * share``, rounded, but where n > 1 at least one and not all; of each class as many as its part
    of them, rounded down or up. Every sample of an owner is drawn with the same probability. This is systematic
    sampling: in a random order by class every n/m-th sample is taken, from a random one on.

    Args:
        owners, labels: int64 [n].
        among: bool [n], the rows that count.
    """
    rows = rng.permutation(np.flatnonzero(among))
    rows = rows[np.lexsort((labels[rows], owners[rows]))]
    _, first, position, counts = np.unique(owners[rows], return_index=True, return_inverse=True, return_counts=True)
    sizes = np.clip(np.floor(counts * share + 0.5).astype(np.int64), np.minimum(1, counts - 1), counts - 1)
    place, count, size = np.arange(len(rows)) - first[position], counts[position], sizes[position]
    start = rng.integers(0, counts)[position]
    drawn = np.zeros(len(owners), np.bool_)
    drawn[rows] = ((place + 1) * size + start) // count > (place * size + start) // count
    return drawn


def _limit(scheme: Partition, owners: Rows, train: Mask, clients: int, rng: np.random.Generator) -> Rows:
    """Take training samples away from clients, beginning with the same ones however many are to go."""
    rows = np.flatnonzero(train & (owners >= 0))
    held = np.bincount(owners[rows], minlength=clients)
    most = np.maximum(np.minimum(held, 1), np.floor(held * scheme.train_share + 0.5).astype(np.int64))
    if scheme.train_limit is not None:
        most = np.minimum(most, scheme.train_limit)
    kept = owners.copy()
    kept[rows[_rank(owners[rows], clients, rng) >= most[owners[rows]]]] = -1
    return kept


def _rank(groups: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Return the place of every element in a random order of its group, int64 from 0."""
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups, minlength=count)
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks
