"""Dealing samples to clients: by shares of classes, by mixes of classes, by attributes.

Released code of the papers truncates the size of each part, which loses up to one sample per client and class; here
parts end at rounded cumulative shares, which loses none and keeps every part within one sample of its share. Schemes
with a variant ``as_released`` truncate there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from pflcore.data.samples import Attribute, Mask, Rows, Samples
from pflcore.errors import UserError
from pflcore.partitions._base import Sides

Shares = npt.NDArray[np.float64]
_WORK = 100_000_000  # shares that are drawn in all before a scheme gives up


def part_sizes(count: int, shares: Shares, truncate: bool = False) -> Rows:
    """Return the sizes of the parts of `count` samples in proportion to `shares` [clients]: int64 [clients].

    Their sum is `count`, unless each is to be truncated by itself.
    """
    if truncate:
        # A share of exactly one third may be stored a little below it; the tolerance is far from half a sample.
        truncated: Rows = np.floor(shares / shares.sum() * count + 1e-9).astype(np.int64)
        return truncated
    total = np.cumsum(shares)
    ends: Rows = np.floor(total / total[-1] * count + 0.5).astype(np.int64)
    sizes: Rows = np.diff(ends, prepend=0)
    return sizes


def deal(rows: Rows, sizes: Rows, owners: Rows, rng: np.random.Generator) -> None:
    """Shuffle `rows` and give ``sizes[i]`` of them to client ``i``, in `owners`; what is left over stays as it is."""
    owners[rng.permutation(rows)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)


def rows_by_class(samples: Samples, rows: Rows) -> list[Rows]:
    """Return `rows` by class, in their order."""
    labels = samples.labels[rows]
    ends = np.cumsum(np.bincount(labels, minlength=samples.classes))[:-1]
    return np.split(rows[np.argsort(labels, kind="stable")], ends)


def class_counts(samples: Samples, rows: Rows) -> Rows:
    """Return how many of `rows` are of each class: int64 [classes]."""
    return np.bincount(samples.labels[rows], minlength=samples.classes)


def deal_classes(
    samples: Samples, sides: Sides, shares: Shares, rng: np.random.Generator, truncate: bool = False
) -> Rows:
    """Give every client its share of every class, the same on all sides.

    Args:
        shares: float64 [classes, clients], each row with a positive sum.
        truncate: As :func:`part_sizes`.

    Returns:
        The owner of every sample, int64 [n].
    """
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


# --- draws that are repeated until every client has enough ---------------------------------------------------------


class Drawn(Protocol):
    """A scheme whose shares are drawn again until every client has enough samples."""

    name: ClassVar[str]

    @property
    def alpha(self) -> float:
        """Return the concentration."""

    @property
    def min_samples(self) -> int:
        """Return the fewest samples of a client on each side."""


def redraw(
    scheme: Drawn, samples: Samples, counts: Sequence[Rows], clients: int, draw: Callable[[], Shares | None]
) -> Shares:
    """Draw shares until every client has `min_samples` on every side.

    The number of draws is bounded, at a minute on any machine. Most settings need a few; the hardest published one
    (CIFAR-10, 100 clients, alpha 0.1) needs 200 to 8,000.

    Args:
        counts: For each side the samples of every class, int64 [classes].
        draw: Makes shares float64 [classes, clients], or None for a draw that cannot be used.

    Raises:
        UserError: No draw was good enough.
    """
    problem = (
        f"{scheme.name}: cannot give each of {clients:,} clients min_samples = {scheme.min_samples} training and test "
        f"samples of {samples.name} ({len(counts[0])} classes) at alpha = {scheme.alpha:g}"
    )
    if min(side.sum() for side in counts) < clients * scheme.min_samples:  # no draw can do
        have = " and ".join(f"{side.sum():,}" for side in counts)
        raise UserError(f"{problem} (there are {have} in all); lower min_samples or clients")
    best, draws = 0, int(np.clip(_WORK // (clients * len(counts[0])), 20, 20_000))
    for _ in range(draws):
        if (shares := draw()) is None:
            continue
        reached = min(_smallest(side, shares) for side in counts)
        best = max(best, reached)
        if reached >= scheme.min_samples:
            return shares
    raise UserError(
        f"{problem} (the best of {draws:,} draws gave the poorest client {best:,}); raise alpha, or lower min_samples "
        "or clients"
    )


def _smallest(counts: Rows, shares: Shares) -> int:
    """Return the number of samples of the client that gets fewest."""
    sizes = np.array([part_sizes(count, share) for count, share in zip(counts, shares, strict=True)])
    return int(sizes.sum(axis=0).min())


# --- attributes ----------------------------------------------------------------------------------------------------


def attribute_of(samples: Samples, name: str, scheme: str) -> Attribute:
    """Return an attribute that a scheme deals by. Raises :class:`UserError` when the dataset does not have it."""
    if name not in samples.attributes:
        has = f"it has {', '.join(samples.attributes) or 'none'}"
        raise UserError(f"partition {scheme!r}: {samples.name} has no attribute {name!r} ({has}); use another one")
    return samples.attributes[name]


def coarse_of_classes(samples: Samples, attribute: str, scheme: str) -> Rows:
    """Return the coarse class of each class, int64 [classes], as the samples' attribute says.

    Raises:
        UserError: There is no such attribute, a class is in two coarse classes, or has no samples at all.
    """
    values = attribute_of(samples, attribute, scheme).values
    coarse = np.full(samples.classes, -1)
    coarse[samples.labels] = values
    wrong = coarse[samples.labels] != values
    if wrong.any():
        name = samples.class_names[samples.labels[int(wrong.argmax())]]
        raise UserError(
            f"partition {scheme!r}: class {name!r} of {samples.name} is in two values of {attribute!r}; it needs an "
            "attribute that groups classes"
        )
    if (coarse < 0).any():
        name = samples.class_names[int((coarse < 0).argmax())]
        raise UserError(f"partition {scheme!r}: {samples.name} has no sample of class {name!r}")
    return coarse


def clients_by_domain(samples: Samples, attribute: str, clients: int, scheme: str) -> Iterator[tuple[Mask, slice]]:
    """Yield for every domain in order the samples in it, bool [n], and its clients.

    Raises:
        UserError: There is no such attribute, or `clients` is not a multiple of the number of domains.
    """
    domains = attribute_of(samples, attribute, scheme)
    count = len(domains.names)
    if clients % count:
        raise UserError(
            f"partition {scheme!r}: {clients} clients are not a multiple of the {count} values of {attribute!r} in "
            f"{samples.name} ({', '.join(domains.names[:8])}); change clients"
        )
    each = clients // count
    for domain in range(count):
        inside: Mask = np.asarray(domains.values == domain)
        yield inside, slice(domain * each, (domain + 1) * each)


# --- mixes ---------------------------------------------------------------------------------------------------------
#
# Every client draws samples by class weights of its own, without replacement. When a class runs out, its weight goes to
# the other classes of its group, and when a whole group has run out, to the other groups, in proportion. Drawing all of
# a client's samples of a class at once gives the same distribution as drawing them one by one, and takes a few
# operations per client.


def deal_mixes(samples: Samples, sides: Sides, mixes: Shares, groups: Rows, rng: np.random.Generator) -> Rows:
    """Give all clients equally many samples of each side.

    Args:
        mixes: float64 [clients, classes], the weights of the classes.
        groups: int64 [classes], the group of each class; one group for all is the flat form.

    Returns:
        The owner of every sample, int64 [n].
    """
    owners = np.full(len(samples), -1)
    for side in sides:
        classes = [rng.permutation(rows) for rows in rows_by_class(samples, side)]
        counts = draw_counts(np.array([len(rows) for rows in classes]), mixes, groups, rng)
        for rows, taken in zip(classes, counts.T, strict=True):
            owners[rows[: taken.sum()]] = np.repeat(np.arange(len(mixes)), taken)
    return owners


def draw_counts(supply: Rows, mixes: Shares, groups: Rows, rng: np.random.Generator) -> Rows:
    """Return how many samples of each class the clients draw: int64 [clients, classes].

    Args:
        supply: int64 [classes], all of which is dealt, to clients of equal size, one after the other.
    """
    left = supply.copy()
    sizes = part_sizes(int(supply.sum()), np.ones(len(mixes)))
    members = [np.flatnonzero(groups == group) for group in range(int(groups.max()) + 1)]
    counts = np.zeros(mixes.shape, np.int64)
    for client in rng.permutation(len(mixes)):  # who comes last finds least, and that shall not go by number
        taken, want = counts[client], int(sizes[client])
        while want:
            weights = mixes[client] * (left > 0)
            if not weights.sum() > 0:  # all that the client would take has run out
                weights = left.astype(np.float64)
            each = [want] if len(members) == 1 else rng.multinomial(want, _normal(weights, members))
            want = 0
            for group, wanted in zip(members, each, strict=True):
                want += _take(left, taken, weights, group, int(wanted), rng)
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


def _normal(weights: Shares, members: list[Rows]) -> Shares:
    sums = np.array([weights[group].sum() for group in members])
    normal: Shares = sums / sums.sum()
    return normal
