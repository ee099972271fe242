"""Sharing the local steps of a cohort between workers so that none of them idles at the end of a round."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

# A gain below this share of the round is not worth handing a client over.
_WORTH = 0.05


@dataclass(frozen=True)
class Piece:
    """Consecutive local steps of one job: from `start` up to, but without, `stop`."""

    job: int
    start: int
    stop: int


def cut(steps: Sequence[int], workers: int) -> list[Piece]:
    """Pieces of jobs in the order in which idle workers should take them.

    Steps of a client cannot overlap, but they need not all be done by the same worker. So five equal clients take two
    workers two and a half times as long as one, not three times: a worker begins with half of a client and the other
    one ends with its second half (the wrap-around rule of McNaughton, "Scheduling with deadlines and loss functions",
    Management Science 1959). At most ``workers - 1`` jobs are cut, each once, and only where it pays.

    Args:
        steps: Local steps of each job.
        workers: Number of workers, which are taken to be equally fast.
    """
    whole = [Piece(job, 0, count) for job, count in enumerate(steps)]
    if not steps:
        return whole
    share = max(max(steps), math.ceil(sum(steps) / workers))
    if _makespan(steps, workers) <= (1 + _WORTH) * share:
        return whole
    first, middle, last = [], [], []
    room = share
    for piece in whole:
        if piece.stop <= room:
            middle.append(piece)
            room -= piece.stop
        else:  # fills up one worker's share with its end, and opens the next one's with its beginning
            first.append(Piece(piece.job, 0, piece.stop - room))
            last.append(Piece(piece.job, piece.stop - room, piece.stop))
            room = share - (piece.stop - room)
        room = room or share
    return first + middle + last


def _makespan(steps: Sequence[int], workers: int) -> int:
    """Steps until all is done when idle workers take whole jobs in order."""
    busy = [0] * workers
    for count in steps:
        heapq.heapreplace(busy, busy[0] + count)
    return max(busy)
