"""Early stopping: where it happens, and that a run ends there however it came to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny import backbone, federation, holding_back, method, result_bytes, run, training

from pflcore.engine import CheckpointFolder, Progress, Result
from pflcore.engine.evaluation import Scores
from pflcore.engine.state import History
from pflcore.errors import UserError
from pflcore.settings import Evaluation

DATA = holding_back(federation())
EVERY = Evaluation(window=0, curve_every=1)
SECOND = Evaluation(window=0, curve_every=2)
ROUNDS = 14


def trained(patience: int | None, evaluation: Evaluation = EVERY, rounds: int = ROUNDS, **changes: Any) -> Result:
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


def history(*correct: tuple[int, int], novel: int | None = None) -> History:
    """After rounds 10, 20, …, of two clients with 9 validation samples each."""
    made = History(np.array([client != novel for client in range(2)]), 2)
    for number, both in enumerate(correct, start=1):
        made.add(10 * number, Scores.join([((0, 5, 1.0, 0), (one, 9, 1.0, one)) for one in both]))
    return made


@pytest.mark.parametrize(
    ("patience", "stop"),
    # Pooled 3, 5, 5, 4, 6, 1, 2, 6: equal is no better.
    [(1, 30), (2, 40), (3, 80), (4, None), (None, None)],
)
def test_by_hand(patience: int | None, stop: int | None) -> None:
    measured = history((3, 0), (1, 4), (5, 0), (2, 2), (3, 3), (0, 1), (1, 1), (6, 0))
    assert measured.stops_after(patience) == stop


def test_novel_clients_do_not_count() -> None:
    for novel, stop in ((None, None), (1, 20)):
        assert history((1, 0), (1, 5), (1, 9), novel=novel).stops_after(1) == stop


@pytest.mark.parametrize("evaluation", [EVERY, SECOND])
def test_a_run_ends_as_one_of_so_many_rounds(evaluation: Evaluation) -> None:
    whole = validated(trained(None, evaluation))
    stops = {patience: expected(whole, patience) for patience in (1, 2, 3)}
    assert stops[1] < ROUNDS  # the seed is such that it matters
    for patience, stop in stops.items():
        result = trained(patience, evaluation)
        assert result.rounds == stop and validated(result) == [pair for pair in whole if pair[0] <= stop]
        assert result_bytes(result) == result_bytes(trained(None, evaluation, rounds=stop))


def test_progress_tells_the_last_round() -> None:
    said: list[Progress] = []
    result = trained(1, on_round=said.append)
    assert [one.round for one in said] == list(range(1, result.rounds + 1))
    assert [one.rounds for one in said] == [ROUNDS] * (result.rounds - 1) + [result.rounds]


@pytest.mark.parametrize("executor", ["pooled", "stacked"])
def test_executors_stop_together(executor: str) -> None:
    assert trained(2, executor=executor).rounds == trained(2).rounds


@pytest.mark.parametrize("last", [2, 3])
def test_a_killed_run_stops_where_it_would_have(last: int, tmp_path: Path) -> None:
    def kill(progress: Progress) -> None:
        if progress.round == last:
            raise KeyboardInterrupt

    whole = trained(2)
    assert whole.rounds >= last
    with CheckpointFolder(tmp_path, "me", pytest.fail) as checkpoints:
        with pytest.raises(KeyboardInterrupt):
            trained(2, checkpoints=checkpoints, checkpoint_every=0, on_round=kill)
        again = trained(2, checkpoints=checkpoints)
    assert again.resumed_from == last - 1 and result_bytes(again) == result_bytes(whole)


def test_killed_at_its_end_it_trains_nothing(tmp_path: Path) -> None:
    def refuse() -> None:
        raise KeyboardInterrupt

    whole = trained(2)
    with CheckpointFolder(tmp_path, "me", pytest.fail) as checkpoints:
        with pytest.raises(KeyboardInterrupt):
            trained(2, checkpoints=checkpoints, checkpoint_every=1e9, confirm=refuse)
        again = trained(2, checkpoints=checkpoints, on_round=lambda _: pytest.fail("it trained"))
    assert again.resumed_from == whole.rounds and result_bytes(again) == result_bytes(whole)


def continued(folder: Path, patience: int | None) -> int:
    """Train a run of a lineage to its end; the round of an earlier one from which it continued."""
    with CheckpointFolder(folder / "own", "me", pytest.fail, "lineage", folder / "states") as checkpoints:
        result = trained(patience, checkpoints=checkpoints)
        checkpoints.archive()
    assert result_bytes(result) == result_bytes(trained(patience))
    return result.resumed_from


def test_more_patience_goes_on_from_where_less_ended(tmp_path: Path) -> None:
    assert continued(tmp_path, 1) == 0
    assert continued(tmp_path, 3) == trained(1).rounds
    assert continued(tmp_path, None) == trained(3).rounds
    assert continued(tmp_path, None) == ROUNDS  # its own state


def test_less_patience_never_begins_behind_its_end(tmp_path: Path) -> None:
    continued(tmp_path, None)
    assert continued(tmp_path, 1) == 0
    assert continued(tmp_path, 1) == trained(1).rounds


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
        trained(1, evaluation, data=data)
