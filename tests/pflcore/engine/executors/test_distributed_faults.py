"""What ends the training in one of two processes ends it in both; here they are threads that meet as processes do."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.cohorts import trainer

from pflcore.engine.divergence import Diverged
from pflcore.engine.executors import distributed
from pflcore.engine.executors.distributed import Distributed
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.trainer import TRAINING, Job, Outcome

BOOM = ValueError("boom")


class Failing(Sequential):
    """It fails at client 1."""

    def train(self, round_: int, jobs: Iterable[Job], part: int = TRAINING) -> Iterator[Outcome]:
        for outcome in super().train(round_, jobs, part):
            if outcome.client == 1:
                raise BOOM
            yield outcome


def errors(monkeypatch: pytest.MonkeyPatch, kind: type[Sequential], jobs: list[Job]) -> list[Exception]:
    """What each of the two raises when they train jobs in round 5, in the order of their ranks."""
    barrier, here = threading.Barrier(2, timeout=60), threading.local()
    said: list[Any] = [None, None]

    def all_gather_object(gathered: list[Any], value: Any) -> None:
        said[here.rank] = value
        barrier.wait()
        gathered[:] = said

    def one(rank: int) -> Exception:
        here.rank = rank
        executor = Distributed(kind(trainer()[0]), trainer()[0], jobs[0][1])
        executor.rank, executor.ranks = rank, 2
        with pytest.raises((Diverged, ValueError)) as raised:
            list(executor.train(5, jobs))
        return raised.value

    monkeypatch.setattr(distributed, "is_launched", lambda: True)
    monkeypatch.setattr(distributed, "dist", SimpleNamespace(all_gather_object=all_gather_object))
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(one, range(2)))


def test_the_first_divergence_in_order_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = trainer()
    lost = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
    for error in errors(monkeypatch, Sequential, [(2, state), (4, lost), (0, lost), (1, lost)]):
        assert isinstance(error, Diverged) and (error.round, error.client) == (5, 4)


def test_an_error_in_one_is_raised_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = trainer()
    found = errors(monkeypatch, Failing, [(2, state), (4, state), (0, state), (1, state)])
    assert BOOM in found  # with its own traceback where it happened, and a copy of it elsewhere
    (copy,) = (error for error in found if error is not BOOM)
    assert isinstance(copy, ValueError) and copy.args == BOOM.args and "in train" in copy.__notes__[0]
