"""Assignment of samples to clients: by shares of classes, by mixes of classes, by attributes, by repeated draws.

Parts end at rounded cumulative shares, so no sample is lost. The papers' released code truncates the size of each part;
schemes with a variant ``as_released`` do so, too.
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
MAX_SHARES = 100_000_000  # shares to draw in total before a scheme gives up


def part_sizes(count: int, shares: Shares, truncate: bool = False) -> Rows:
    """Return sizes in proportion to `shares` [clients]: int64 [clients], with the sum `count`, or each truncated."""
    total = np.cumsum(shares)
    sizes: Rows = np.diff(np.floor(total / total[-1] * count + 0.5).astype(np.int64), prepend=0)
    if truncate:
        # The tolerance corrects shares that rounding stores slightly too small, such as one third.
        sizes = np.floor(shares / shares.sum() * count + 1e-9).astype(np.int64)
    return sizes


def assign(rows: Rows, sizes: Rows, owners: Rows, rng: np.random.Generator) -> None:
    """Shuffle `rows` and assign ``sizes[i]`` of them to client ``i``, in `owners` in place; the rest is unchanged."""
    owners[rng.permutation(rows)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)


def rows_by_class(samples: Samples, rows: Rows) -> list[Rows]:
    """Return the rows of each class, in the given order."""
    return np.split(rows[np.argsort(samples.labels[rows], kind="stable")], np.cumsum(class_counts(samples, rows))[:-1])


def class_counts(samples: Samples, rows: Rows) -> Rows:
    """Return the number of `rows` in each class: int64 [classes]."""
    return np.bincount(samples.labels[rows], minlength=samples.classes)


def assign_by_class(
    samples: Samples, sides: Sides, shares: Shares, rng: np.random.Generator, truncate: bool = False
) -> Rows:
    """Return owners, int64 [n], with `shares` [classes, clients] of every class, the same on all sides."""
    owners = np.full(len(samples), -1)
    for side in sides:
        for rows, class_shares in zip(rows_by_class(samples, side), shares, strict=True):
            assign(rows, part_sizes(len(rows), class_shares, truncate), owners, rng)
    return owners


def assign_counts(samples: Samples, sides: Sides, counts: Sequence[Rows], rng: np.random.Generator) -> Rows:
    """Return owners, int64 [n], with the `counts` of a side, int64 [clients, classes], drawn from each class."""
    owners = np.full(len(samples), -1)
    for side, side_counts in zip(sides, counts, strict=True):
        for rows, sizes in zip(rows_by_class(samples, side), side_counts.T, strict=True):
            assign(rows, sizes, owners, rng)
    return owners


def assign_parts(samples: Samples, sides: Sides, shares: Shares, rng: np.random.Generator) -> Rows:
    """Return owners, int64 [n], with `shares` [clients] of each side, drawn at random without regard to classes."""
    owners = np.full(len(samples), -1)
    for rows in sides:
        assign(rows, part_sizes(len(rows), shares), owners, rng)
    return owners


class ResampledPartition(Partition):
    """Base of the schemes that draw shares until every client has enough samples."""

    smoke: ClassVar[dict[str, Any]] = {"min_samples": 1}

    alpha: float
    min_samples: int

    @staticmethod
    def concentration(default: float) -> Any:
        return option(default, help="Concentration: small is very unequal clients, large is nearly equal ones.", gt=0)

    @staticmethod
    def minimum() -> Any:
        text = "Fewest samples of a client, on each side of the dataset's split, or, with test_share, in all."
        return option(10, help=text, ge=1)

    def resample(
        self, samples: Samples, counts: Sequence[Rows], clients: int, draw: Callable[[], Shares | None]
    ) -> Shares:
        """Return shares that give every client `min_samples` on every side; raise :class:`UserError` if no draw does.

        Most settings need a few draws; the hardest published one (CIFAR-10, 100 clients, alpha 0.1) needs 200 to 8,000.

        Args:
            counts: For each side the number of samples of every class, int64 [classes].
            draw: Returns shares, float64 [classes, clients], or None for a draw that cannot be used.
        """
        request = f"each of {clients:,} clients min_samples = {self.min_samples} training and test samples"
        data = f"{samples.name} ({len(counts[0])} classes) at alpha = {self.alpha:g}"
        problem = f"{self.name}: cannot give {request} of {data}"
        if min(side.sum() for side in counts) < clients * self.min_samples:  # no draw can succeed
            totals = " and ".join(f"{side.sum():,}" for side in counts)
            raise UserError(f"{problem} (there are {totals} in all); lower min_samples or clients")
        best = 0
        draws = int(np.clip(MAX_SHARES // (clients * len(counts[0])), 20, 20_000))
        for _ in range(draws):
            if (shares := draw()) is None:
                continue
            sizes = [[part_sizes(*pair) for pair in zip(side, shares, strict=True)] for side in counts]
            smallest = int(np.sum(sizes, axis=1).min())
            best = max(best, smallest)
            if smallest >= self.min_samples:
                return shares
        result = f"the best of {draws:,} draws gave the poorest client {best:,}"
        raise UserError(f"{problem} ({result}); raise alpha, or lower min_samples or clients")


def get_attribute(samples: Samples, name: str, scheme: str) -> Attribute:
    """Return an attribute of the samples. Raises :class:`UserError` if the dataset does not have it."""
    if name not in samples.attributes:
        names = ", ".join(samples.attributes) or "none"
        problem = f"{samples.name} has no attribute {name!r} (it has {names})"
        raise UserError(f"partition {scheme!r}: {problem}; use another one")
    return samples.attributes[name]


def assign_mixtures(samples: Samples, rows: Rows, mixtures: Shares, groups: Rows, rng: np.random.Generator) -> Rows:
    """Return owners, int64 [n], by which clients draw equally many of the `rows`, with weights of their own.

    If a class runs out while a client draws, its weight goes to the other classes of its group. If a whole group runs
    out, its weight goes to the other groups in proportion. The distribution is that of drawing samples one by one. For
    clients that draw later, the weight of a class that has run out goes to all other classes.

    Args:
        mixtures: float64 [clients, classes], each client's weights of the classes.
        groups: int64 [classes], the group of each class; one group for all is the flat form.
    """
    owners = np.full(len(samples), -1)
    by_class = [rng.permutation(class_rows) for class_rows in rows_by_class(samples, rows)]
    counts = draw_counts(np.array([*map(len, by_class)]), mixtures, groups, rng)
    for class_rows, sizes in zip(by_class, counts.T, strict=True):
        owners[class_rows[: sizes.sum()]] = np.repeat(np.arange(len(mixtures)), sizes)
    return owners


def draw_counts(supply: Rows, mixtures: Shares, groups: Rows, rng: np.random.Generator) -> Rows:
    """Return how many samples of each class the clients draw: int64 [clients, classes]; they draw all of `supply`."""
    remaining = supply.copy()
    sizes = part_sizes(int(supply.sum()), np.ones(len(mixtures)))
    members = [np.flatnonzero(groups == group) for group in range(int(groups.max()) + 1)]
    counts = np.zeros(mixtures.shape, np.int64)
    for client in rng.permutation(len(mixtures)):  # in random order, as the last clients have the least choice
        missing = int(sizes[client])
        while missing:
            weights = mixtures[client] * (remaining > 0)
            if not weights.sum() > 0:  # all classes with a weight have run out
                weights = remaining.astype(np.float64)
            sums = np.array([weights[group].sum() for group in members])
            requests = [missing] if len(members) == 1 else rng.multinomial(missing, sums / sums.sum())
            missing = 0
            for group, request in zip(members, requests, strict=True):
                missing += _draw(remaining, counts[client], weights, group, int(request), rng)
    return counts


def spread_counts(supply: Rows, shares: Shares) -> Rows:
    """Return samples of each class by `shares` [clients, classes]: int64 [clients, classes], of the sum `supply`.

    A client has the rounded sum of its parts. What rounding adds to its part of a class, later clients have less, and
    nobody has a class of which its share is 0, unless no other is left.
    """
    quotas = shares / shares.sum(0) * supply
    remaining, deficit, counts = supply.copy(), np.zeros(len(supply)), np.zeros(shares.shape, np.int64)
    for client, size in enumerate(part_sizes(int(supply.sum()), quotas.sum(1))):
        deficit += quotas[client]
        for _ in range(size):
            candidates = (remaining > 0) & (quotas[client] > 0)
            if not candidates.any():
                candidates = remaining > 0
            label = np.where(candidates, deficit, -np.inf).argmax()
            counts[client, label] += 1
            deficit[label] -= 1
            remaining[label] -= 1
    return counts


def _draw(remaining: Rows, counts: Rows, weights: Shares, group: Rows, number: int, rng: np.random.Generator) -> int:
    """Draw from one group, updating `remaining` and `counts` in place; return how many samples the group lacked."""
    while number:
        available = weights[group] * (remaining[group] > 0)
        total = available.sum()
        if not total > 0:
            return number
        drawn = np.minimum(rng.multinomial(number, available / total), remaining[group])
        remaining[group] -= drawn
        counts[group] += drawn
        number -= int(drawn.sum())
    return 0
