"""Dealing by mixes: every client draws samples by class weights of its own, without replacement.

When a class runs out, its weight goes to the other classes of its group, and when a whole group has run out, to the
other groups, in proportion. Drawing all of a client's samples of a class at once gives the same distribution as drawing
them one by one, and takes a few operations per client.
"""

from __future__ import annotations

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.partitions._base import Shares, Sides, part_sizes, rows_by_class


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
    """How many samples of each class the clients draw: int64 [clients, classes].

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
    """Draw from one group, in place; what it could not give."""
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
