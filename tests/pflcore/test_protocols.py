"""Figures from counts, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pflcore.errors import UserError
from pflcore.protocols import curve, final_clients, rounds_trained, summarise
from pflcore.settings import Evaluation, Training

Row = tuple[int, int, int, int, float]  # round, client, correct, total, loss


def rounds_table(rows: list[Row], population: str = "test", moment: str = "after_aggregation", **meta: Any) -> pa.Table:
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    table = pa.table(
        {
            "round": pa.array(columns[0], pa.int32()),
            "client": pa.array(columns[1], pa.int32()),
            "population": [population] * len(rows),
            "moment": [moment] * len(rows),
            "correct": pa.array(columns[2], pa.int64()),
            "total": pa.array(columns[3], pa.int64()),
            "loss": pa.array(columns[4], pa.float64()),
            # Of every ten predictions of a sample one is the last; half of those that are right are.
            "last_correct": pa.array([correct // 2 for correct in columns[2]], pa.int64()),
        }
    )
    return table.replace_schema_metadata({"pfl": json.dumps({"schema": "rounds/2", **meta})})


# Client 0 has 10 test samples and client 1 has 30. Pooled: 20 %, 50 %, 40 %, 60 %. Rows are out of order on purpose.
ROWS: list[Row] = [
    (10, 1, 14, 30, 1.0),
    (10, 0, 10, 10, 0.2),
    (4, 0, 2, 10, 2.0),
    (4, 1, 6, 30, 1.0),
    (6, 0, 5, 10, 1.0),
    (6, 1, 15, 30, 1.0),
    (8, 0, 1, 10, 1.0),
    (8, 1, 15, 30, 1.0),
]


def test_figures_by_hand() -> None:
    figures = summarise(rounds_table(ROWS), Evaluation(every=2, window=4), rounds=10)
    assert figures["last_rounds"] == {
        "mean": pytest.approx(50.0),  # rounds 6, 8, 10; round 4 is outside the window
        "std": pytest.approx(math.sqrt(200 / 3)),  # over the population of three, not of two
        "n": 3,
    }
    low = 100 * 14 / 30
    assert figures["clients"] == {"mean": pytest.approx((100 + low) / 2), "std": pytest.approx((100 - low) / 2), "n": 2}
    assert figures["final"] == {"mean": pytest.approx(60.0), "std": 0.0, "n": 1}


def test_of_detectors_the_mean_of_the_clients_precisions_counts() -> None:
    # By (round, client), out of order as ROWS; client 0 has nothing to find in round 8.
    shares = {
        (10, 1): 0.2,
        (10, 0): 0.6,
        (4, 0): 0.1,
        (4, 1): 0.3,
        (6, 0): 0.5,
        (6, 1): 0.1,
        (8, 0): math.nan,
        (8, 1): 0.7,
    }
    precision = pa.array([shares[round_, client] for round_, client, *_ in ROWS], pa.float64())
    table = rounds_table(ROWS).append_column("precision", precision)
    rounds, figures, loss = curve(table)
    assert rounds.tolist() == [4, 6, 8, 10] and figures.tolist() == pytest.approx([20, 30, 70, 40])
    assert loss.tolist() == curve(rounds_table(ROWS))[2].tolist()
    made = summarise(table, Evaluation(every=2, window=4), rounds=10)
    assert made["last_rounds"]["mean"] == made["last_position"]["mean"] == pytest.approx((30 + 70 + 40) / 3)
    assert made["clients"] == {"mean": pytest.approx(40), "std": pytest.approx(20), "n": 2}
    assert final_clients(table)["accuracy"].to_pylist() == [0.6, 0.2]


def test_the_last_position_of_texts_counts_alone() -> None:
    figures = summarise(rounds_table(ROWS, positions=10), Evaluation(every=2, window=4), rounds=10)
    # 9 of 4 texts in round 6, 7 in round 8, 12 in round 10 (no real table has more than all of them right)
    assert figures["last_position"]["mean"] == pytest.approx(100 * (9 + 7 + 12) / 12)
    assert figures["last_position"]["n"] == 3


def held_back(correct: dict[int, tuple[int, int]], rows: list[Row] = ROWS) -> pa.Table:
    """The table of `rows` with what two clients have right of 5 and 15 validation samples at some rounds."""
    totals = (5, 15)
    own = [(r, client, right[client], totals[client], 1.0) for r, right in correct.items() for client in (0, 1)]
    tables = [rounds_table(rows), rounds_table(own, population="validation")]
    return pa.concat_tables([one.replace_schema_metadata(None) for one in tables])


@pytest.mark.parametrize(
    ("correct", "best", "accuracy"),
    [
        ({4: (0, 5), 6: (0, 7), 8: (1, 9), 10: (5, 4)}, 8, 40.0),  # 10 of 20 are more than 9, whoever has them
        ({10: (2, 8), 4: (5, 5), 6: (0, 10), 8: (0, 9)}, 4, 20.0),  # a tie, and rows in another order
        ({4: (0, 0), 6: (0, 0), 8: (0, 0), 10: (0, 1)}, 10, 60.0),
    ],
)
def test_the_best_round_by_validation(correct: dict[int, tuple[int, int]], best: int, accuracy: float) -> None:
    figures = summarise(held_back(correct), Evaluation(every=2, window=2), rounds=10)
    assert figures.pop("best_by_validation") == {"mean": pytest.approx(accuracy), "std": 0.0, "n": 1, "round": best}
    window = [100 * sum(correct[round_]) / 20 for round_ in (8, 10)]
    mean, spread = sum(window) / 2, abs(window[0] - window[1]) / 2
    assert figures.pop("validation") == {"mean": pytest.approx(mean), "std": pytest.approx(spread), "n": 2}
    assert figures == summarise(rounds_table(ROWS), Evaluation(every=2, window=2), rounds=10)


def test_a_run_that_was_stopped_ends_at_its_last_measurement() -> None:
    table, plain = held_back(dict.fromkeys((4, 6, 8, 10), (1, 1))), Training(rounds=50)
    assert rounds_trained(table, plain) == 50
    trained = rounds_trained(table, Training(rounds=50, patience=3))
    assert trained == 10
    figures = summarise(table, Evaluation(window=0, curve_every=2), trained)
    assert figures["last_rounds"] == figures["final"] == {"mean": pytest.approx(60.0), "std": 0.0, "n": 1}
    assert figures["best_by_validation"]["round"] == 4
    assert rounds_trained(table.slice(0, 0), Training(patience=3)) == 0


@pytest.mark.parametrize(
    ("correct", "mean", "std", "n"),
    [
        ([50, 90], 50.0, 0.0, 1),  # one client at least
        ([40] + [90] * 9, 40.0, 0.0, 1),
        ([90] * 9 + [40, 60], 50.0, 10.0, 2),  # a tenth of 11 is two whole clients
        ([30] * 3 + [90] * 17, 30.0, 0.0, 2),  # of three that tie, two
    ],
)
def test_the_worst_tenth_of_the_clients(correct: list[int], mean: float, std: float, n: int) -> None:
    rows: list[Row] = [(4, client, share, 100, 1.0) for client, share in enumerate(correct)]
    untested: Row = (4, len(correct), 0, 0, 0.0)
    figures = summarise(rounds_table([*rows, untested]), Evaluation(every=2, window=0), rounds=4)
    assert figures["worst_tenth"] == {"mean": pytest.approx(mean), "std": pytest.approx(std), "n": n}


def test_fedtp_takes_41_measurements_whatever_else_is_measured_for_curves() -> None:
    evaluation = Evaluation(every=5, window=200, curve_every=50)
    due = [r for r in range(1501) if evaluation.is_due(r, 1500)]
    figures = summarise(rounds_table([(r, 0, r % 7, 10, 1.0) for r in due]), evaluation, rounds=1500)
    steps = 100 * (np.arange(1300, 1501, 5) % 7) / 10
    assert figures["last_rounds"]["n"] == 41
    assert figures["last_rounds"]["mean"] == pytest.approx(steps.mean())


def test_a_diverged_run_has_no_figures() -> None:
    table = rounds_table(ROWS, diverged={"round": 11, "client": 1})
    assert summarise(table, Evaluation(every=2, window=4), rounds=20) == {}


def test_a_lacking_round_is_an_error() -> None:
    with pytest.raises(UserError) as error:
        summarise(rounds_table(ROWS), Evaluation(every=1, window=2), rounds=10)
    assert str(error.value) == (
        "the rounds table lacks round 9 of 10, which every = 1 and window = 2 ask for; delete it and run again"
    )


def test_other_populations_and_moments_do_not_count() -> None:
    train = rounds_table([(10, 0, 0, 10, 9.0)], population="train")
    early = rounds_table([(10, 0, 0, 10, 9.0)], moment="after_local_training")
    mixed = pa.concat_tables([t.replace_schema_metadata(None) for t in (train, rounds_table(ROWS), early)])
    evaluation = Evaluation(every=2, window=4)
    assert summarise(mixed, evaluation, rounds=10) == summarise(rounds_table(ROWS), evaluation, rounds=10)


def test_curve_is_pooled_and_sorted() -> None:
    rounds, accuracy, loss = curve(rounds_table(ROWS))
    assert rounds.tolist() == [4, 6, 8, 10]
    assert accuracy.tolist() == pytest.approx([20, 50, 40, 60])
    assert loss.tolist() == pytest.approx([1.25, 1.0, 1.0, 0.8])  # weighted by samples


def test_final_clients_are_the_evaluation_rows() -> None:
    table = final_clients(rounds_table(ROWS))
    assert table.schema.names == ["client", "correct", "total", "accuracy", "loss"]
    assert table.to_pylist() == [
        {"client": 0, "correct": 10, "total": 10, "accuracy": 1.0, "loss": 0.2},
        {"client": 1, "correct": 14, "total": 30, "accuracy": pytest.approx(14 / 30), "loss": 1.0},
    ]
