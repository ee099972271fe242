"""How the steps of clients are shared out to workers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflcore.engine.executors.pooled import Piece, cut


def finish(pieces: list[Piece], workers: int) -> int:
    """When the last worker is done, if idle ones take pieces in order and a job's pieces do not overlap."""
    free, ended = [0] * workers, {}
    for piece in pieces:
        worker = min(range(workers), key=free.__getitem__)
        start = max(free[worker], ended.get(piece.job, 0))
        ended[piece.job] = free[worker] = start + piece.stop - piece.start
    return max(free)


def test_five_equal_clients_take_two_workers_two_and_a_half_turns() -> None:
    pieces = cut([80] * 5, 2)
    assert pieces == [Piece(2, 0, 40), *(Piece(job, 0, 80) for job in (0, 1, 3, 4)), Piece(2, 40, 80)]
    assert finish(pieces, 2) == 200


@pytest.mark.parametrize(("steps", "workers"), [([80] * 4, 2), ([80] * 5, 1), ([7], 3), ([100, 1, 1], 2), ([], 2)])
def test_nothing_is_cut_where_it_does_not_pay(steps: list[int], workers: int) -> None:
    assert cut(steps, workers) == [Piece(job, 0, count) for job, count in enumerate(steps)]


cohorts = st.lists(st.integers(1, 200), max_size=30)


@given(cohorts, st.integers(1, 9))
def test_every_step_is_in_one_piece_and_in_order(steps: list[int], workers: int) -> None:
    pieces = cut(steps, workers)
    for job, count in enumerate(steps):
        own = [piece for piece in pieces if piece.job == job]
        assert [piece.start for piece in own] == [0, *(piece.stop for piece in own[:-1])]
        assert own[-1].stop == count and len(own) <= 2
    assert len(pieces) - len(steps) < workers


@given(cohorts, st.integers(1, 9))
def test_cutting_never_makes_a_round_longer(steps: list[int], workers: int) -> None:
    whole = [Piece(job, 0, count) for job, count in enumerate(steps)]
    assert finish(cut(steps, workers), workers) <= finish(whole, workers)


@given(st.integers(2, 9), st.integers(1, 40), st.integers(20, 200))
def test_equal_clients_end_together(workers: int, clients: int, count: int) -> None:
    least = max(count, math.ceil(clients * count / workers))
    assert finish(cut([count] * clients, workers), workers) <= least / 0.95 + workers
