"""Cells of single clients: from the spec to the table, its curves and its figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.fake_catalog import BASE, resolved, write_specs
from support.figure_demo import record
from support.paper_specs import catalog_of_all
from support.report_demo import cell, results_of, table, with_records, write_evaluation

from pflcore.artifacts import read_table, write_table
from pflcore.errors import UserError
from pipeline.report.study import Study
from pipeline.report.table.cells import Value
from pipeline.spec.resolve import resolve
from pipeline.spec.specs import load_spec
from pipeline.spec.table import ResolvedTable

SPEC = f"""\
grid:
  base: {BASE}
  axes:
    method: [fedavg, fedtp]
    domain: {{A: {{}}, B: {{}}, All: {{}}}}
    seed: [0, 1]
table:
  rows: [method]
  columns: [domain]
  average_over: [seed]
  clients: {{domain: {{A: 0, B: 15}}}}
"""
EVALUATION = {"every": 1, "window": 1, "curve_every": 1}
SHARES = {"s0": [[50, 60, 80], [90, 80, 40]], "s1": [[10, 20, 60], [30, 40, 60]]}
"""Correct per hundred test samples: run → client → after rounds 1, 2 and 3."""


def write_clients(root: Path, run: str, shares: list[list[int]], *, diverged: bool = False, first: int = 0) -> None:
    """A run measured after each of its rounds; the clients are numbered from `first`."""
    rows = [(r + 1, c + first, share) for c, own in enumerate(shares) for r, share in enumerate(own)]
    rounds, clients, correct = (np.array(column) for column in zip(*rows, strict=True))
    columns = {
        "round": pa.array(rounds, pa.int32()),
        "client": pa.array(clients, pa.int32()),
        "population": ["test"] * len(rows),
        "moment": ["after_aggregation"] * len(rows),
        "correct": pa.array(correct, pa.int64()),
        "total": pa.array([100] * len(rows), pa.int64()),
        "loss": pa.array([1.0] * len(rows), pa.float64()),
        "last_correct": pa.array(correct, pa.int64()),
    }
    meta = {"run": run, "positions": 1, "diverged": {"round": 4, "client": 0} if diverged else None}
    write_table(root / f"artifacts/runs/{run}/rounds.parquet", pa.table(columns), "rounds/2", **meta)
    mean = float(np.mean([own[-1] for own in shares]))
    figures = {} if diverged else {name: {"mean": mean, "std": 1.0, "n": 2} for name in ("last_rounds", "clients")}
    write_evaluation(root, run, figures)


def study(
    root: Path, runs: list[str], metric: str = "clients", labels: tuple[str, ...] = ("A", "B", "All"), rounds: int = 3
) -> ResolvedTable:
    """A table of one method: a column for each of two clients and one for all; the records of its runs are written."""
    clients = {"A": 0, "B": 1}
    cells = [cell({"method": "M", "domain": x}, runs, (50.0, None), client=clients.get(x)) for x in labels]
    made = table(cells, ["method"], ["domain"], metric=metric, clients={"domain": clients})
    settings = {"training": {"rounds": rounds}, "evaluation": EVALUATION}
    records = {run: {**record("fedbn", seed=number, clients=2), **settings} for number, run in enumerate(runs)}
    return with_records(root, made, records)


def values(made: ResolvedTable, root: Path) -> list[Value | None]:
    return [found.obtained for found in results_of(made, root).cells]


def test_labels_of_clients_share_runs(tmp_path: Path) -> None:
    result = resolved(tmp_path, SPEC)
    assert result.table is not None
    assert len(result.runs) == 4
    assert result.table.clients == {"domain": {"A": 0, "B": 15}}
    assert [found.client for found in result.table.cells] == [0, 15, None] * 2
    for start in (0, 3):
        shown = [found.runs for found in result.table.cells[start : start + 3]]
        assert shown[0] == shown[1] == shown[2] and len(shown[0]) == 2


def test_novel_clients_are_not_measured_with_the_others(tmp_path: Path) -> None:
    real = "{dataset: digits, partition: {name: iid, novel_share: 0.1}, clients: 20, backbone: convnet}"
    text = SPEC.replace(BASE, real).replace("fedtp", "local")
    specs = write_specs(tmp_path, {"specs/a.yaml": text})
    with pytest.raises(UserError) as error:
        resolve(load_spec(specs / "a.yaml", specs, catalog_of_all()), catalog_of_all())
    assert str(error.value).endswith(
        "table.clients.domain.A: could be a novel client, which is not measured like others; set novel_share to 0"
    )


@pytest.mark.parametrize(
    ("metric", "first", "second"),
    [
        # After the last round 80 and 60, 40 and 60.
        ("clients", Value(70.0, 10.0), Value(50.0, 10.0)),
        ("final", Value(70.0, 10.0), Value(50.0, 10.0)),
        # Over the last two rounds 70 and 40, 60 and 50.
        ("last_rounds", Value(55.0, 15.0), Value(55.0, 5.0)),
        ("last_position", Value(55.0, 15.0), Value(55.0, 5.0)),
    ],
)
def test_values_are_taken_from_the_client_alone(tmp_path: Path, metric: str, first: Value, second: Value) -> None:
    for run, shares in SHARES.items():
        write_clients(tmp_path, run, shares)
    assert values(study(tmp_path, ["s0", "s1"], metric), tmp_path)[:2] == [first, second]


def test_validation_of_all_clients_chooses_the_round(tmp_path: Path) -> None:
    write_clients(tmp_path, "s0", SHARES["s0"])
    path = tmp_path / "artifacts/runs/s0/rounds.parquet"
    tested, meta = read_table(path, "rounds/2")
    held_back = {(1, 0): 1, (1, 1): 5, (2, 0): 4, (2, 1): 4, (3, 0): 6, (3, 1): 1}  # of ten; together best in round 2
    rounds, clients = zip(*held_back, strict=True)
    columns = {"round": pa.array(rounds, pa.int32()), "client": pa.array(clients, pa.int32())}
    columns |= {"population": ["validation"] * 6, "moment": ["after_aggregation"] * 6}
    counts = {name: pa.array(list(held_back.values()), pa.int64()) for name in ("correct", "last_correct")}
    columns |= {**counts, "total": pa.array([10] * 6, pa.int64()), "loss": pa.array([1.0] * 6, pa.float64())}
    meta.pop("schema", None)
    both = pa.concat_tables([tested, pa.table(columns).select(tested.column_names)])
    write_table(path, both.replace_schema_metadata(None), "rounds/2", **meta)
    made = study(tmp_path, ["s0"], "best_by_validation")
    assert values(made, tmp_path)[:2] == [Value(60.0), Value(80.0)]


def test_a_curve_per_client(tmp_path: Path) -> None:
    for run, shares in SHARES.items():
        write_clients(tmp_path, run, shares)
    resolved = study(tmp_path, ["s0", "s1"])
    made = Study(results_of(resolved, tmp_path))
    curves = made.sections[0]
    assert curves.name == "curves" and curves.text.endswith("in cells of one client, its own.")
    found = {name: curves.data[name].tolist() for name in curves.data if name != "round"}
    assert [own for own in found.values()] == [[30.0, 40.0, 70.0], [60.0, 60.0, 50.0], [45.0, 50.0, 60.0]]
    assert ("single clients", "A, B") in made.facts
