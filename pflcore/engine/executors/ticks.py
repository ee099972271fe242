"""Which clients of a stacked cohort take which of their steps together.

A tick takes one step of several clients, whose batches must be of one size. With uneven clients the last batches of
their epochs rarely are. Where they may be filled up (:mod:`~pflcore.engine.executors.filling`) this is no matter; where
not, the order in which sizes have their turn decides how many ticks a round takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

Tick = list[tuple[int, int]]
"""(client, step) of all that take a step together."""


def side_by_side(sizes: Sequence[Sequence[int]]) -> Iterator[Tick]:
    """Ticks for batches that may be filled up: every client takes its next step until it is done.

    Args:
        sizes: For each client the sizes of its batches.
    """
    for step in range(max(map(len, sizes), default=0)):
        yield [(client, step) for client, own in enumerate(sizes) if step < len(own)]


def by_size(sizes: Sequence[Sequence[int]]) -> Iterator[Tick]:
    """Ticks for batches that must be of one size: as few as there can be for epochs that end with a smaller batch.

    No order needs fewer ticks of a size than the batches of that size which one client still has. So a size has its
    turn when all clients with the most of them stand before one; the others of that size come along. Clients thereby
    wait for each other at the ends of their epochs, where the same remainders meet, and full batches go together again
    in the next one. The fewest ticks in general are a shortest common supersequence, for which there is no quick way.

    Args:
        sizes: For each client the sizes of its batches.
    """
    at = [0] * len(sizes)
    left = [Counter(own) for own in sizes]
    while upcoming := {client: own[at[client]] for client, own in enumerate(sizes) if at[client] < len(own)}:
        size = _next(upcoming, left)
        tick = [(client, at[client]) for client, its in upcoming.items() if its == size]
        for client, _ in tick:
            at[client] += 1
            left[client][size] -= 1
        yield tick


def _next(upcoming: dict[int, int], left: Sequence[Counter[int]]) -> int:
    """The size that has its turn; the smallest of several, since full batches wait for nobody."""

    def late(size: int) -> int:
        """Clients that have the most batches of a size left, and stand before another."""
        most = max(own[size] for own in left)
        return sum(own[size] == most and upcoming.get(client) != size for client, own in enumerate(left))

    return min(set(upcoming.values()), key=lambda size: (late(size), size))
