"""How steps are shared out to workers, and taken side by side in a stack."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflcore.engine.executors.pieces import Piece, cut
from pflcore.engine.executors.ticks import Tick, by_size, side_by_side

# --- pieces ----------------------------------------------------------------------------------------------------------


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


# --- ticks -----------------------------------------------------------------------------------------------------------


def epochs(samples: int, count: int, size: int) -> list[int]:
    """Sizes of a client's batches in a round."""
    return count * ([size] * (samples // size) + [samples % size] * bool(samples % size))


def fewest(sizes: list[list[int]]) -> int:
    """No order needs fewer ticks: each size must come as often as one client has it."""
    most: Counter[int] = Counter()
    for own in sizes:
        most |= Counter(own)
    return most.total()


def assert_in_order(ticks: list[Tick], sizes: list[list[int]]) -> None:
    for client, own in enumerate(sizes):
        assert [step for tick in ticks for one, step in tick if one == client] == list(range(len(own)))


def test_clients_wait_at_the_end_of_an_epoch_for_those_with_the_same_remainder() -> None:
    sizes = [[4, 4, 2, 4, 4, 2], [4, 2, 4, 2], [3, 3]]
    assert list(by_size(sizes)) == [
        [(2, 0)],
        [(2, 1)],
        [(0, 0), (1, 0)],
        [(0, 1)],
        [(0, 2), (1, 1)],
        [(0, 3), (1, 2)],
        [(0, 4)],
        [(0, 5), (1, 3)],
    ]


def test_a_client_without_a_remainder_does_not_run_ahead() -> None:
    assert len(list(by_size([epochs(8, 5, 4), epochs(9, 5, 4), epochs(11, 5, 4)]))) == 5 * (2 + 1 + 1)


def test_the_last_batches_of_an_epoch_wait_for_full_ones() -> None:
    """Once the second client stands before its 2, the first has one of them left as well."""
    assert list(by_size([[2, 2], [3, 2]])) == [[(0, 0)], [(1, 0)], [(0, 1), (1, 1)]]


def test_batches_that_are_filled_up_are_taken_step_by_step() -> None:
    assert list(side_by_side([[4, 1], [4, 4, 2], [], [3]])) == [[(0, 0), (1, 0), (3, 0)], [(0, 1), (1, 1)], [(1, 2)]]
    assert list(side_by_side([])) == []


sizes_of_cohorts = st.lists(st.integers(1, 200), max_size=12)


@given(sizes_of_cohorts, st.integers(1, 5), st.integers(2, 40))
def test_epochs_take_as_few_ticks_as_there_can_be(samples: list[int], count: int, size: int) -> None:
    sizes = [epochs(one, count, size) for one in samples]
    ticks = list(by_size(sizes))
    assert_in_order(ticks, sizes)
    assert len(ticks) == fewest(sizes)


@given(st.lists(st.lists(st.integers(1, 5), max_size=12), max_size=9))
def test_every_step_is_taken_once_in_order_and_beside_others_of_its_size(sizes: list[list[int]]) -> None:
    ticks = list(by_size(sizes))
    assert_in_order(ticks, sizes)
    assert all(tick and len({sizes[one][step] for one, step in tick}) == 1 for tick in ticks)
