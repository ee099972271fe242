"""Figures of tables that show something else than accuracies of personal models: they draw what the table shows."""

import numpy as np
import pyarrow as pa
from support.figure_demo import TOTAL, record, sections_of, study, write_rounds
from support.report_demo import RECORD, cell, table, with_records, write_evaluation
from support.rounds import rounds_table

from pflcore.artifacts import write_table
from pipeline.spec.metrics import Quantity

ONE_ROUND = RECORD | {"training": {"rounds": 1}, "evaluation": {"every": 1, "window": 0, "curve_every": 0}}
PERSONAL, GLOBAL = {"A": 180, "B": 160}, {"A": [40, 44], "B": [60, 62]}
"""Correct predictions of each of three clients, by method; of the global model by seed, one more for each client."""


def with_quantity(cells, quantity):
    return [one.model_copy(update={"quantity": quantity}) for one in cells]


def test_of_global_models_the_runs_and_protocols_are_those_of_global_models(tmp_path):
    runs = {method: [f"{method}{seed}" for seed in range(2)] for method in PERSONAL}
    for method, own in runs.items():
        for seed, run in enumerate(own):
            sides = {"personal": [PERSONAL[method]] * 3, "global": [GLOBAL[method][seed] + at for at in range(3)]}
            parts = [
                rounds_table([(1, at, right, TOTAL, 1.0) for at, right in enumerate(side)]).append_column(
                    "model", pa.array([name] * 3)
                )
                for name, side in sides.items()
            ]
            path = tmp_path / f"artifacts/runs/{run}/rounds.parquet"
            write_table(path, pa.concat_tables(parts), "rounds/2", run=run, positions=1, diverged=None)
    shown = Quantity(metric="clients", model="global")
    cells = with_quantity([cell({"method": method}, own) for method, own in runs.items()], shown)
    made = table(cells, ["method"], [], metric="clients", figures=["boxes", "protocols"])
    records = {run: ONE_ROUND | {"seed": int(run[1])} for run in made.runs}
    found = sections_of(with_records(tmp_path, made, records), tmp_path)
    assert found["boxes"].data["accuracy"].tolist() == [20.5, 22.5, 30.5, 31.5]
    lines = found["protocols"].data.astype({"protocol": str}).set_index(["method", "protocol"])["mean"]
    expected = {("A", "clients"): 21.5, ("B", "final"): 31.0, ("A", "worst_tenth"): 21.0, ("B", "worst_tenth"): 30.5}
    assert {at: lines[at] for at in expected} == expected
    assert "though the table shows others" in found["curves"].text


def test_boxes_of_rounds_are_of_runs_that_the_table_counts(tmp_path):
    quantity = Quantity(metric="rounds_to", accuracy=80.0)
    for run, rounds in {"A0": 3.0, "A1": 5.0, "B0": 4.0, "B1": None}.items():
        reached = {} if rounds is None else {quantity.key: {"mean": rounds, "std": 0.0, "n": 1}}
        write_evaluation(tmp_path, run, {"final": {"mean": 70.0, "std": 0.0, "n": 1}} | reached)
    cells = with_quantity([cell({"method": name}, [f"{name}0", f"{name}1"]) for name in "AB"], quantity)
    made = table(cells, ["method"], [], metric="rounds_to", better=None, figures=["boxes", "protocols", "values"])
    found = sections_of(with_records(tmp_path, made, {run: ONE_ROUND for run in made.runs}), tmp_path)
    assert found["boxes"].data["accuracy"].tolist() == [3.0, 5.0]  # a run of B never has the accuracy
    assert found["values"].picture.alt == "Rounds over method, 1 series in 1 panel: from 4.00 to 4.00."
    assert [axes.get_ylabel() for axes in found["values"].picture.figure.axes] == ["rounds"]
    assert found["protocols"].table is None and "under no protocol" in found["protocols"].text


def test_resources_of_unlike_runs_are_relative_to_the_mean_of_what_each_is_compared_with(tmp_path):
    runs, facts = {}, {"fedavg": (1000, 4000), "ditto": (2000, 8000)}
    for method, macs in facts.items():
        for depth, own in zip((1, 4), macs, strict=True):
            runs.setdefault((method, "x"), {})[f"{method}{depth}"] = record(method, depth=depth)
            write_rounds(tmp_path, f"{method}{depth}", [1], macs=own)
    section = sections_of(study(tmp_path, runs, figures=["resources"]), tmp_path)["resources"]
    assert section.data["macs"].tolist() == [2500, 5000] and section.data["relative"].tolist() == [1.0, 2.0]


def test_mean_ranks_go_by_what_is_better_in_each_column(tmp_path):
    scores = ["clients", "clients.auc", "clients.nll", "clients.ece", "final.nll"]
    cells = []
    for at, method in enumerate(("best", "worst")):
        own = {score: (1.0 + at if score.endswith(("nll", "ece")) else 90.0 - at) for score in scores}
        write_evaluation(tmp_path, method, {score: {"mean": of, "std": 0.0, "n": 3} for score, of in own.items()})
        for score in scores:
            quantity = None if score == "clients" else Quantity(metric=score)
            one = cell({"method": method, "shown": score}, [method])
            cells.append(one.model_copy(update={"quantity": quantity}))
    made = table(cells, ["method"], ["shown"], metric="clients", quantities=["shown"], figures=["ranks"])
    section = sections_of(made, tmp_path)["ranks"]
    np.testing.assert_array_equal(section.data["mean_rank"], [1.0, 2.0])
    assert [row[0] for row in section.table.rows] == ["best", "worst"]
    turned = table(cells, ["shown"], ["method"], metric="clients", quantities=["shown"], figures=["ranks"])
    assert "different quantities" in sections_of(turned, tmp_path)["ranks"].text
