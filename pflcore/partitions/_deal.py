"""Dealing samples to clients: by shares of classes, by mixes of classes, by attributes, by draws that are repeated.

Parts end at rounded cumulative shares, which loses no sample. Released code of the papers truncates the size of each
part; schemes with a variant ``as_released`` do, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.data.samples import Attribute, Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions._base import Partition, Sides

Shares = npt.NDArray[np.float64]
WORK = 100_000_000  # shares that are drawn in all before a scheme gives up


def part_sizes(count: int, shares: Shares, truncate: bool = False) -> Rows:
    """Return sizes in proportion to `shares` [clients], with the sum `count` or each truncated: int64 [clients]."""
    total = np.cumsum(shares)
    sizes: Rows = np.diff(np.floor(total / total[-1] * count + 0.5).astype(np.int64), prepend=0)
    if truncate:
        # A share of exactly one third may be stored a little below it; the tolerance is far from half a sample.
        sizes = np.floor(shares / shares.sum() * count + 1e-9).astype(np.int64)
    return sizes


def deal(rows: Rows, sizes: Rows, owners: Rows, rng: np.random.Generator) -> None:
    """Shuffle `rows` and give ``sizes[i]`` of them to client ``i``, in `owners`; what is left over stays as it is."""
    owners[rng.permutation(rows)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)


def rows_by_class(samples: Samples, rows: Rows) -> list[Rows]:
    """Return `rows` by class, in their order."""
    return np.split(rows[np.argsort(samples.labels[rows], kind="stable")], np.cumsum(class_counts(samples, rows))[:-1])


def class_counts(samples: Samples, rows: Rows) -> Rows:
    """Return how many of `rows` are of each class: int64 [classes]."""
    return np.bincount(samples.labels[rows], minlength=samples.classes)


def deal_classes(
    samples: Samples, sides: Sides, shares: Shares, rng: np.random.Generator, truncate: bool = False
) -> Rows:
    """Give every client its share [classes, clients] of every class, the same on all sides: owners int64 [n]."""
    owners = np.full(len(samples), -1)
    for side in sides:
        for rows, share in zip(rows_by_class(samples, side), shares, strict=True):
            deal(rows, part_sizes(len(rows), share, truncate), owners, rng)
    return owners


def deal_parts(samples: Samples, sides: Sides, shares: Shares, rng: np.random.Generator) -> Rows:
    """Give every client its share [clients] of each side, at random, whatever the classes: owners int64 [n]."""
    owners = np.full(len(samples), -1)
    for rows in sides:
        deal(rows, part_sizes(len(rows), shares), owners, rng)
    return owners


class Drawn(Partition):
    """Base of schemes whose shares are drawn again until every client has enough samples."""

    smoke: ClassVar[dict[str, Any]] = {"min_samples": 1}

    alpha: float
    min_samples: int

    @staticmethod
    def concentration(default: float) -> Any:
        return option(default, help="Concentration: small is very unequal clients, large is nearly equal ones.", gt=0)

    @staticmethod
    def fewest() -> Any:
        return option(10, help="Every client gets at least this many samples on each side of the split.", ge=1)

    def redraw(
        self, samples: Samples, counts: Sequence[Rows], clients: int, draw: Callable[[], Shares | None]
    ) -> Shares:
        """Draw shares until every client has `min_samples` on every side; raise :class:`UserError` in the end.

        Most settings need a few draws; the hardest published one (CIFAR-10, 100 clients, alpha 0.1) 200 to 8,000.

        Args:
            counts: For each side the samples of every class, int64 [classes].
            draw: Makes shares float64 [classes, clients], or None for a draw that cannot be used.
        """
        problem = (
            f"{self.name}: cannot give each of {clients:,} clients min_samples = {self.min_samples} training and test "
            f"samples of {samples.name} ({len(counts[0])} classes) at alpha = {self.alpha:g}"
        )
        if min(side.sum() for side in counts) < clients * self.min_samples:  # no draw can do
            have = " and ".join(f"{side.sum():,}" for side in counts)
            raise UserError(f"{problem} (there are {have} in all); lower min_samples or clients")
        best = 0
        draws = int(np.clip(WORK // (clients * len(counts[0])), 20, 20_000))
        for _ in range(draws):
            if (shares := draw()) is None:
                continue
            sizes = [[part_sizes(*each) for each in zip(side, shares, strict=True)] for side in counts]
            smallest = int(np.sum(sizes, axis=1).min())
            best = max(best, smallest)
            if smallest >= self.min_samples:
                return shares
        raise UserError(
            f"{problem} (the best of {draws:,} draws gave the poorest client {best:,}); raise alpha, or lower "
            "min_samples or clients"
        )


def attribute_of(samples: Samples, name: str, scheme: str) -> Attribute:
    """Return an attribute that a scheme deals by. Raises :class:`UserError` when the dataset does not have it."""
    if name not in samples.attributes:
        has = f"it has {', '.join(samples.attributes) or 'none'}"
        raise UserError(f"partition {scheme!r}: {samples.name} has no attribute {name!r} ({has}); use another one")
    return samples.attributes[name]


def deal_mixes(samples: Samples, sides: Sides, mixes: Shares, groups: Rows, rng: np.random.Generator) -> Rows:
    """Give all clients equally many samples of each side, drawn by weights of their own: owners int64 [n].

    When a class runs out while a client draws, its weight goes to the other classes of its group, and when a whole
    group has run out, to the other groups, in proportion: drawing all of a client's samples of a class at once gives
    the same distribution as drawing them one by one. For clients that draw later, its weight goes to all other classes.

    Args:
        mixes: float64 [clients, classes], the weights of the classes.
        groups: int64 [classes], the group of each class; one group for all is the flat form.
    """
    owners = np.full(len(samples), -1)
    for side in sides:
        classes = [rng.permutation(rows) for rows in rows_by_class(samples, side)]
        counts = draw_counts(np.array([len(rows) for rows in classes]), mixes, groups, rng)
        for rows, taken in zip(classes, counts.T, strict=True):
            owners[rows[: taken.sum()]] = np.repeat(np.arange(len(mixes)), taken)
    return owners


def draw_counts(supply: Rows, mixes: Shares, groups: Rows, rng: np.random.Generator) -> Rows:
    """Return how many samples of each class the clients draw, all of `supply` [classes]: int64 [clients, classes]."""
    left = supply.copy()
    sizes = part_sizes(int(supply.sum()), np.ones(len(mixes)))
    members = [np.flatnonzero(groups == group) for group in range(int(groups.max()) + 1)]
    counts = np.zeros(mixes.shape, np.int64)
    for client in rng.permutation(len(mixes)):  # who comes last finds least, and that shall not go by number
        want = int(sizes[client])
        while want:
            weights = mixes[client] * (left > 0)
            if not weights.sum() > 0:  # all that the client would take has run out
                weights = left.astype(np.float64)
            sums = np.array([weights[group].sum() for group in members])
            each = [want] if len(members) == 1 else rng.multinomial(want, sums / sums.sum())
            want = 0
            for group, wanted in zip(members, each, strict=True):
                want += _take(left, counts[client], weights, group, int(wanted), rng)
    return counts


def _take(left: Rows, taken: Rows, weights: Shares, group: Rows, wanted: int, rng: np.random.Generator) -> int:
    """Draw from one group, in place; return what it could not give."""
    while wanted:
        own = weights[group] * (left[group] > 0)
        total = own.sum()
        if not total > 0:
            return wanted
        drawn = np.minimum(rng.multinomial(wanted, own / total), left[group])
        left[group] -= drawn
        taken[group] += drawn
        wanted -= int(drawn.sum())
    return 0
