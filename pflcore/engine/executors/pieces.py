"""In which order the local steps of a cohort are taken by workers, of which none is to idle."""

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
    shared = first + middle + sorted(last, key=lambda piece: piece.start - piece.stop)
    return shared if _makespan(shared, workers) < (1 - _WORTH) * _makespan(whole, workers) else whole


def _makespan(pieces: Sequence[Piece], workers: int) -> int:
    """Steps until all is done when idle workers take pieces in order, each after the one before it of the same job."""
    busy = [0] * workers
    ended: dict[int, int] = {}
    for piece in pieces:
        end = max(busy[0], ended.get(piece.job, 0)) + piece.stop - piece.start
        ended[piece.job] = end
        heapq.heapreplace(busy, end)
    return max(busy)
