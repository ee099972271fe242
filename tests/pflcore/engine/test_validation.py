"""Measuring on validation samples, and early stopping by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pflcore.room import Room
from support.tiny import backbone, federation, holding_back, method, result_bytes, run, training

from pflcore.data.assignment import Assignment
from pflcore.data.federation import FederatedData
from pflcore.engine import CheckpointFolder, KeptStates, Progress, Result, checkpoint
from pflcore.engine.evaluate import Scores
from pflcore.engine.state import History
from pflcore.engine.stopping import stops_after
from pflcore.errors import UserError
from pflcore.settings import Evaluation

# --- validation ------------------------------------------------------------------------------------------------------


DATA = holding_back(federation())
# One model for all, own heads, generated entries, a memory of training samples, tuning before measuring.
METHODS = {"fedavg": {}, "fedper": {}, "fedtp": {}, "knn_per": {"neighbours": 3}, "fedbabu": {}}
COUNTS = ("round", "client", "correct", "total", "last")


def trained(name: str, data: FederatedData = DATA, executor: str = "sequential", **changes: Any) -> Result:
    net = "tiny_vit" if name == "fedtp" else "convnet"
    return run(method(name, **METHODS[name]), backbone(net), data, executor=executor, **changes)


def side(result: Result, validation: bool) -> dict[str, list[float]]:
    """The entries of test or of validation samples."""
    chosen = result.validation == validation
    return {name: getattr(result, name)[chosen].tolist() for name in (*COUNTS, "loss")}


def same(one: dict[str, list[float]], other: dict[str, list[float]]) -> None:
    assert all(one[name] == other[name] for name in COUNTS)
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_it_is_what_a_test_of_these_samples_gives(name: str) -> None:
    result = trained(name)
    assert side(result, True)["total"] == [3] * 6 and side(result, False)["total"] == [5, 8, 6] * 2
    same(side(result, False), side(trained(name, replace(DATA, validation=())), False))
    same(side(result, True), side(trained(name, replace(DATA, test=DATA.validation, validation=())), False))


@pytest.mark.parametrize("executor", ["pooled", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_executors_agree(name: str, executor: str) -> None:
    one, other = trained(name), trained(name, executor=executor)
    for validation in (False, True):
        same(side(one, validation), side(other, validation))
    assert executor == "stacked" or result_bytes(one) == result_bytes(other)


def test_an_assignment_brings_it_into_training() -> None:
    from support.toy_samples import make_samples

    samples = make_samples(6, 2, 2)
    rows = np.flatnonzero(samples.train), np.flatnonzero(~samples.train)
    held = Assignment([rows[0][:4]], [rows[1]], "by hand", 0, validation=[rows[0][4:]])
    data = FederatedData.from_samples(samples, held, torch.device("cpu"))
    assert data.measured(0).tolist() == [*rows[1], *rows[0][4:]]
    with pytest.raises(UserError, match="a client has no validation samples"):
        FederatedData.from_samples(samples, replace(held, validation=[rows[0][:0]]), torch.device("cpu"))


# --- stopping --------------------------------------------------------------------------------------------------------


EVERY = Evaluation(window=0, curve_every=1)
SECOND = Evaluation(window=0, curve_every=2)
ROUNDS = 14


def stopped(patience: int | None, evaluation: Evaluation = EVERY, rounds: int = ROUNDS, **changes: Any) -> Result:
    settings = training(rounds=rounds, local_epochs=1, lr=0.2, patience=patience)
    arguments = {"executor": "sequential", "data": DATA, **changes}
    return run(method("fedper"), backbone("convnet"), training=settings, evaluation=evaluation, **arguments)


def validated(result: Result) -> list[tuple[int, int]]:
    """Round and correct predictions of validation samples of all clients."""
    chosen = [(int(r), int(c)) for r, c, v in zip(result.round, result.correct, result.validation, strict=True) if v]
    return [(r, sum(c for other, c in chosen if other == r)) for r in sorted({r for r, _ in chosen})]


def expected(measured: Sequence[tuple[int, int]], patience: int) -> int:
    """The first round such that the best of all is not among it and the `patience` - 1 before it; else the last."""
    for at in range(patience, len(measured)):
        before = [correct for _, correct in measured[: at - patience + 1]]
        if max(correct for _, correct in measured[at - patience + 1 : at + 1]) <= max(before):
            return measured[at][0]
    return measured[-1][0]


def history(*correct: tuple[int, int]) -> History:
    """After rounds 10, 20, …, of two clients with 9 validation samples each."""
    made = History(2, validation=True)
    for number, both in enumerate(correct, start=1):
        made.scores[10 * number] = Scores.join([(0, 5, 1.0, 0, one, 9, 1.0, one) for one in both])
    return made


@pytest.mark.parametrize(
    ("patience", "stop"),
    # Pooled 3, 5, 5, 4, 6, 1, 2, 6: equal is no better.
    [(1, 30), (2, 40), (3, 80), (4, None), (None, None)],
)
def test_by_hand(patience: int | None, stop: int | None) -> None:
    measured = history((3, 0), (1, 4), (5, 0), (2, 2), (3, 3), (0, 1), (1, 1), (6, 0))
    assert stops_after(measured, patience) == stop
    assert stops_after(measured, patience, before=30) is None


def test_novel_clients_do_not_count() -> None:
    assert stops_after(history((1, 0), (1, 5), (1, 9)), 1) is None
    assert stops_after(history((1, 0), (1, 5), (1, 9)), 1, novel={1}) == 20


@pytest.mark.parametrize("evaluation", [EVERY, SECOND])
def test_a_run_ends_as_one_of_so_many_rounds(evaluation: Evaluation) -> None:
    whole = validated(stopped(None, evaluation))
    stops = {patience: expected(whole, patience) for patience in (1, 2, 3)}
    assert stops[1] < ROUNDS  # the seed is such that it matters
    for patience, stop in stops.items():
        result = stopped(patience, evaluation)
        assert result.rounds == stop and validated(result) == [pair for pair in whole if pair[0] <= stop]
        assert result_bytes(result) == result_bytes(stopped(None, evaluation, rounds=stop))


@pytest.mark.parametrize("last", [2, 3])
def test_a_killed_run_stops_where_it_would_have(last: int, tmp_path: Path) -> None:
    def kill(progress: Progress) -> None:
        if progress.round == last:
            raise KeyboardInterrupt

    whole = stopped(2)
    assert whole.rounds >= last
    with CheckpointFolder(tmp_path, "me", pytest.fail) as checkpoints:
        with pytest.raises(KeyboardInterrupt):
            stopped(2, checkpoints=checkpoints, checkpoint_every=0, on_round=kill)
        again = stopped(2, checkpoints=checkpoints)
    assert again.resumed_from == last - 1 and result_bytes(again) == result_bytes(whole)


class Lineage:
    """Runs that begin where others ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, patience: int | None, evaluation: Evaluation = EVERY, every: bool = False) -> Result:
        kept = KeptStates(Room(self.folder, 2**30), "lineage", "", pytest.fail, every=every)
        result = stopped(patience, evaluation, kept=kept)
        assert result_bytes(result) == result_bytes(stopped(patience, evaluation))
        return result

    def rounds(self) -> list[int]:
        return sorted(map(checkpoint.round_of, checkpoint.stored(self.folder / "lineage")))


def test_more_patience_goes_on_from_where_less_ended(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path)
    first = lineage.run(1).rounds
    assert lineage.run(3).resumed_from == first
    assert lineage.run(None).resumed_from == lineage.rounds()[1]
    assert lineage.run(3).resumed_from == stopped(3).rounds  # its own state


@pytest.mark.parametrize(
    ("evaluation", "data", "message"),
    [
        (EVERY, federation(), "needs validation samples; set the partition's validation_share"),
        (Evaluation(window=5), DATA, "needs evaluation.window: 0, not 5"),
        (Evaluation(window=0, curve_every=0), DATA, "needs evaluation.curve_every"),
    ],
)
def test_what_it_needs(evaluation: Evaluation, data: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^training.patience: {message}"):
        stopped(1, evaluation, data=data)
