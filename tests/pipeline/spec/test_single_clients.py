"""Cells of single clients: from the spec to the table and its curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from support.fake_catalog import BASE, resolved
from support.figure_demo import record
from support.report_demo import cell, results_of, table, with_records, write_evaluation

from pflcore.artifacts import write_table
from pipeline.report.study import Study
from pipeline.report.table import Value
from pipeline.spec.table import ResolvedTable

SHARES = {"s0": [[50, 60, 80], [90, 80, 40]], "s1": [[10, 20, 60], [30, 40, 60]]}
"""Correct per hundred test samples: run → client → after rounds 1, 2 and 3."""
VALIDATED = [[1, 4, 6], [5, 4, 1]]  # correct of ten validation samples; together best in round 2


def study(root: Path, metric: str) -> ResolvedTable:
    """Write the runs; return a table of one method with a column for each of two clients and one for all."""
    for run, shares in SHARES.items():
        own = [("test", 100, shares), ("validation", 10, VALIDATED)] if run == "s0" else [("test", 100, shares)]
        rows = [
            (r + 1, c, of, right, total)
            for of, total, clients in own
            for c, rounds in enumerate(clients)
            for r, right in enumerate(rounds)
        ]
        number, client, of, right, total = zip(*rows, strict=True)
        count, moment, loss = pa.array(right, pa.int64()), ["after_aggregation"] * len(rows), [1.0] * len(rows)
        columns = {"round": pa.array(number, pa.int32()), "client": pa.array(client, pa.int32()), "population": [*of]}
        columns |= {"moment": moment, "correct": count, "total": pa.array(total, pa.int64()), "loss": loss}
        made = pa.table({**columns, "last_correct": count})
        path = root / f"artifacts/runs/{run}/rounds.parquet"
        write_table(path, made, "rounds/2", run=run, positions=1, diverged=None)
        mean = float(np.mean([own[-1] for own in shares]))
        write_evaluation(root, run, {name: {"mean": mean, "std": 1.0, "n": 2} for name in ("last_rounds", "clients")})
    clients, runs = {"A": 0, "B": 1}, ["s0"] if metric == "best_by_validation" else [*SHARES]
    cells = [cell({"method": "M", "domain": x}, runs, (50.0, None), client=clients.get(x)) for x in ("A", "B", "All")]
    settings = {"training": {"rounds": 3}, "evaluation": {"every": 1, "window": 1, "curve_every": 1}}
    records = {run: {**record("fedbn", seed=number, clients=2), **settings} for number, run in enumerate(runs)}
    return with_records(root, table(cells, ["method"], ["domain"], metric=metric, clients={"domain": clients}), records)


def test_labels_of_clients_share_runs(tmp_path: Path) -> None:
    axes = "axes: {method: [fedavg, fedtp], domain: {A: {}, B: {}, All: {}}, seed: [0, 1]}"
    layout = "table: {rows: [method], columns: [domain], average_over: [seed], clients: {domain: {A: 0, B: 15}}}"
    result = resolved(tmp_path, f"grid: {{base: {BASE}, {axes}}}\n{layout}\n")
    assert result.table is not None and len(result.runs) == 4
    assert result.table.clients == {"domain": {"A": 0, "B": 15}}
    assert [found.client for found in result.table.cells] == [0, 15, None] * 2
    assert [len({tuple(found.runs) for found in result.table.cells[start : start + 3]}) for start in (0, 3)] == [1, 1]


def test_values_are_taken_from_the_client_alone(tmp_path: Path) -> None:
    for metric, first, second in (
        ("clients", Value(70.0, 10.0), Value(50.0, 10.0)),  # after the last round 80 and 60, 40 and 60
        ("last_rounds", Value(55.0, 15.0), Value(55.0, 5.0)),  # over the last two rounds 70 and 40, 60 and 50
        ("best_by_validation", Value(60.0), Value(80.0)),  # of all clients together
    ):
        found = results_of(study(tmp_path / metric, metric), tmp_path / metric).cells
        assert [one.obtained for one in found[:2]] == [first, second]


def test_a_curve_per_client(tmp_path: Path) -> None:
    made = Study(results_of(study(tmp_path, "clients"), tmp_path))
    curves = made.sections[0]
    assert curves.name == "curves" and curves.text.endswith("in cells of one client, its own.")
    found = [curves.data[name].tolist() for name in curves.data if name != "round"]
    assert found == [[30.0, 40.0, 70.0], [60.0, 60.0, 50.0], [45.0, 50.0, 60.0]]
    assert ("single clients", "A, B") in made.facts
