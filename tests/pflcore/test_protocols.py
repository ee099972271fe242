"""Figures from counts, against numbers worked out by hand."""

import math

import pyarrow as pa
import pytest
from support.rounds import rounds_table

from pflcore.errors import UserError
from pflcore.protocols import curve, final_clients, rounds_trained, summarise, train_losses
from pflcore.settings import Evaluation, Training, View

EVALUATION = Evaluation(every=2, window=4)


def measured(rows, **columns):
    """Of every ten predictions of a sample one is the last; half of those that are right are."""
    return rounds_table(rows, last=[row[2] // 2 for row in rows], **columns)


def joined(*tables):
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables])


def about(mean, std, n):
    return {"mean": pytest.approx(mean), "std": pytest.approx(std), "n": n}


# Client 0 has 10 test samples and client 1 has 30. Pooled: 20 %, 50 %, 40 %, 60 %. Rows are out of order on purpose.
ROWS = [
    *((10, 1, 14, 30, 1.0), (10, 0, 10, 10, 0.2), (4, 0, 2, 10, 2.0), (4, 1, 6, 30, 1.0)),
    *((6, 0, 5, 10, 1.0), (6, 1, 15, 30, 1.0), (8, 0, 1, 10, 1.0), (8, 1, 15, 30, 1.0)),
]
TABLE = measured(ROWS)


def test_figures_by_hand():
    # 9 of 4 texts in round 6, 7 in round 8, 12 in round 10 (no real table has more than all of them right)
    figures = summarise(measured(ROWS, positions=10), EVALUATION, rounds=10)
    assert figures["last_position"]["mean"] == pytest.approx(100 * (9 + 7 + 12) / 12)
    # Rounds 6, 8, 10, over the population of three, not of two; round 4 is outside the window.
    assert figures["last_rounds"] == about(50, math.sqrt(200 / 3), 3) and figures["final"] == about(60, 0, 1)
    low = 100 * 14 / 30
    assert figures["clients"] == about((100 + low) / 2, (100 - low) / 2, 2)
    # Other populations and moments do not count.
    train = measured([(10, 0, 0, 10, 9.0)], population="train")
    early = measured([(10, 0, 0, 10, 9.0)], moment="after_local_training")
    assert summarise(joined(train, TABLE, early), EVALUATION, rounds=10) == summarise(TABLE, EVALUATION, rounds=10)
    assert summarise(measured(ROWS, diverged={"round": 11, "client": 1}), EVALUATION, rounds=20) == {}
    with pytest.raises(UserError, match=r"^the rounds table lacks round 9 of 10, which every = 1 and window = 2"):
        summarise(TABLE, Evaluation(every=1, window=2), rounds=10)


def test_of_detectors_the_mean_of_the_clients_precisions_counts():
    # By row of ROWS; client 0 has nothing to find in round 8.
    precision = pa.array([0.2, 0.6, 0.1, 0.3, 0.5, 0.1, math.nan, 0.7], pa.float64())
    table = TABLE.append_column("precision", precision)
    rounds, figures, loss = curve(table)
    assert rounds.tolist() == [4, 6, 8, 10] and figures.tolist() == pytest.approx([20, 30, 70, 40])
    assert loss.tolist() == curve(TABLE)[2].tolist()
    summary = summarise(table, EVALUATION, rounds=10)
    assert summary["last_rounds"]["mean"] == summary["last_position"]["mean"] == pytest.approx((30 + 70 + 40) / 3)
    assert summary["clients"] == about(40, 20, 2) and final_clients(table)["accuracy"].to_pylist() == [0.6, 0.2]


def held_back(correct):
    """The table of ROWS with what two clients have right of 5 and 15 validation samples at some rounds."""
    rows = [(r, client, right[client], (5, 15)[client], 1.0) for r, right in correct.items() for client in (0, 1)]
    return joined(TABLE, measured(rows, population="validation"))


def test_the_best_round_by_validation():
    evaluation = Evaluation(every=2, window=2)
    for correct, best, accuracy in (
        ({4: (0, 5), 6: (0, 7), 8: (1, 9), 10: (5, 4)}, 8, 40.0),  # 10 of 20 are more than 9, whoever has them
        ({10: (2, 8), 4: (5, 5), 6: (0, 10), 8: (0, 9)}, 4, 20.0),  # a tie, and rows in another order
    ):
        figures = summarise(held_back(correct), evaluation, rounds=10)
        assert figures.pop("best_by_validation") == {**about(accuracy, 0, 1), "round": best}
        first, second = (100 * sum(correct[round_]) / 20 for round_ in (8, 10))
        assert figures.pop("validation") == about((first + second) / 2, abs(first - second) / 2, 2)
        assert figures == summarise(TABLE, evaluation, rounds=10)


def test_a_run_that_was_stopped_ends_at_its_last_measurement():
    table = held_back(dict.fromkeys((4, 6, 8, 10), (1, 1)))
    assert [rounds_trained(table, Training(rounds=50, patience=patience)) for patience in (None, 3)] == [50, 10]
    figures = summarise(table, Evaluation(window=0, curve_every=2), 10)
    assert figures["last_rounds"] == figures["final"] == about(60, 0, 1)
    assert figures["best_by_validation"]["round"] == 4
    assert rounds_trained(table.slice(0, 0), Training(patience=3)) == 0


def test_the_worst_tenth_of_the_clients():
    for correct, worst in (
        ([50, 90], (50, 0, 1)),  # one client at least
        ([90] * 9 + [40, 60], (50, 10, 2)),  # a tenth of 11 is two whole clients
        ([30] * 3 + [90] * 17, (30, 0, 2)),  # of three that tie, two
    ):
        rows = [(4, client, share, 100, 1.0) for client, share in enumerate(correct)]
        table = measured([*rows, (4, len(correct), 0, 0, 0.0)])  # one without test samples
        assert summarise(table, Evaluation(every=2, window=0), rounds=4)["worst_tenth"] == about(*worst)


def test_the_curve_is_pooled_and_sorted_and_clients_are_those_at_its_end():
    rounds, accuracy, loss = curve(TABLE)
    assert rounds.tolist() == [4, 6, 8, 10] and accuracy.tolist() == pytest.approx([20, 50, 40, 60])
    assert loss.tolist() == pytest.approx([1.25, 1.0, 1.0, 0.8])  # weighted by samples
    assert final_clients(TABLE).to_pylist() == [
        {"client": 0, "correct": 10, "total": 10, "accuracy": 1.0, "loss": 0.2},
        {"client": 1, "correct": 14, "total": 30, "accuracy": pytest.approx(14 / 30), "loss": 1.0},
    ]


def test_the_train_loss_of_a_round_is_the_mean_over_the_clients_that_trained():
    # By row of ROWS; client 1 did not train in round 4, and nobody did in round 8.
    losses = pa.array([0.5, 1.1, 2.0, None, 1.0, 4.0, None, None])
    assert train_losses(TABLE.append_column("train_loss", losses)).tolist() == pytest.approx(
        [2.0, 2.5, math.nan, 0.8], nan_ok=True
    )
    assert [math.isnan(loss) for loss in train_losses(TABLE)] == [True] * 4  # kept before it was measured


def test_metrics_are_means_over_clients_that_have_them_or_pooled():
    # By row of ROWS; client 0 has no AUC in round 8, and nobody has in round 4.
    auc = pa.array([0.9, 0.5, math.nan, math.nan, 0.2, 0.4, math.nan, 0.7], pa.float64())
    table = TABLE.append_column("auc", auc).append_column("nll", TABLE["loss"])
    figures = summarise(table, EVALUATION, rounds=10)
    assert curve(table, metric="auc")[1].tolist() == pytest.approx([math.nan, 30, 70, 70], nan_ok=True)
    assert figures["last_rounds.auc"] == about((30 + 70 + 70) / 3, math.sqrt(3200 / 9), 3)
    assert figures["clients.auc"] == about(70, 20, 2) and figures["worst_tenth.auc"] == about(50, 0, 1)
    assert figures["final.nll"] == about(0.8, 0, 1) and figures["clients.nll"] == about(0.6, 0.4, 2)
    assert figures["worst_tenth.nll"] == about(1, 0, 1) and "last_position.auc" not in figures
    assert {name: figures[name] for name in figures if "." not in name} == summarise(TABLE, EVALUATION, rounds=10)


def test_a_view_has_figures_of_its_own():
    after = measured([(10, 1, 27, 30, 0.5), (8, 0, 4, 10, 1.0)], moment="after_training")
    usual, before = (rows.append_column("on", pa.array(["own"] * len(rows))) for rows in (TABLE, after))
    on_all = after.set_column(6, "moment", [["after_aggregation"] * 2]).append_column("on", [["all"] * 2])
    table = joined(usual, before, on_all)
    assert summarise(table, EVALUATION, rounds=10) == summarise(TABLE, EVALUATION, rounds=10)
    for view in (View(moment="after_training"), View(on="all")):  # of the one client that took part in each round
        figures = summarise(table, EVALUATION, rounds=10, view=view)
        assert figures["last_rounds"] == about(65, 25, 2) and figures["clients"] == about(90, 0, 1)
    assert summarise(table, EVALUATION, rounds=10, view=View("global")) == {}
