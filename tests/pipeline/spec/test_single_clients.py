"""Cells of single clients: from the spec to the table, its curves and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.fake_catalog import BASE, resolved, write_specs
from support.figure_demo import record, write_analysis, write_rounds
from support.pages import squeezed
from support.paper_specs import catalog_of_all
from support.report_demo import cell, changed, results_of, runs_of, table, with_records, write_evaluation

from pflcore.artifacts import read_table, write_table
from pflcore.data.samples import Attribute, Samples
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import partition
from pipeline.papers.coverage import cover
from pipeline.report.pages.build import build_report
from pipeline.report.pages.details import Details
from pipeline.report.pages.study import examine
from pipeline.report.table.measured import Value
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


def test_a_profile_with_fewer_clients_shows_one_for_another(tmp_path: Path) -> None:
    result = resolved(tmp_path, SPEC, "smoke")
    assert result.table is not None
    assert {run.record["clients"] for run in result.runs} == {8}
    assert [found.client for found in result.table.cells] == [0, 7, None] * 2


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


def test_the_deviation_of_a_single_run(tmp_path: Path) -> None:
    write_clients(tmp_path, "s0", SHARES["s0"])
    assert values(study(tmp_path, ["s0"]), tmp_path) == [Value(80.0), Value(40.0), Value(60.0, 1.0)]
    assert values(study(tmp_path, ["s0"], "last_rounds"), tmp_path)[:2] == [Value(70.0, 10.0), Value(60.0, 20.0)]


def test_clients_that_are_missing_or_diverged(tmp_path: Path) -> None:
    made = study(tmp_path, ["s0", "s1"])
    assert [found.verdict for found in results_of(made, tmp_path).cells] == ["missing"] * 3
    write_clients(tmp_path, "s0", SHARES["s0"])
    cells = results_of(made, tmp_path).cells
    assert cover(cells) == {"partly": 3}
    write_clients(tmp_path, "s1", SHARES["s1"][:1], first=1)
    assert [found.n for found in results_of(made, tmp_path).cells] == [1, 2, 2]
    write_clients(tmp_path, "s1", SHARES["s1"], diverged=True)
    assert [found.verdict for found in results_of(made, tmp_path).cells] == ["diverged"] * 3


def test_a_curve_per_client(tmp_path: Path) -> None:
    for run, shares in SHARES.items():
        write_clients(tmp_path, run, shares)
    resolved = study(tmp_path, ["s0", "s1"])
    made = examine(resolved, runs_of(resolved, tmp_path), tmp_path)
    assert [(c.column, c.points.tolist()) for c in made.curves] == [
        (("A",), [30.0, 40.0, 70.0]),
        (("B",), [60.0, 60.0, 50.0]),
        (("All",), [45.0, 50.0, 60.0]),
    ]
    assert made.page.curves_caption.endswith("in cells of one client, its own.")
    assert ("single clients", "A, B") in made.page.facts


def test_a_click_tells_the_clients_numbers(tmp_path: Path) -> None:
    for run, shares in SHARES.items():
        write_clients(tmp_path, run, shares)
    details = Details()
    resolved = study(tmp_path, ["s0", "s1"])
    details.add("t", examine(resolved, runs_of(resolved, tmp_path), tmp_path))
    one, _, everyone = json.loads(str(details.script()))["tables"]["t"]["cells"][0]
    assert (one["client"], one["alone"]) == ("0", {"s0": [80.0, None], "s1": [60.0, None]})
    assert not {"client", "alone"} & set(everyone)


@pytest.mark.parametrize("labels", [("A", "B", "All"), ("A", "B")])
def test_figures_draw_a_run_once(tmp_path: Path, labels: tuple[str, ...]) -> None:
    write_rounds(tmp_path, "s0", [160, 80])
    made = study(tmp_path, ["s0"], labels=labels, rounds=1)
    build_report(changed(made, figures=["resources"]), tmp_path, tmp_path / "out")
    data = (tmp_path / "out/figures/resources.csv").read_text(encoding="utf-8").splitlines()
    assert len(data) == 2
    assert data[0].startswith("method,domain,model" if "All" in labels else "method,model")


def test_weights_of_mixed_attention_by_client(tmp_path: Path) -> None:
    for run, shift in (("s0", 0.0), ("s1", 0.1)):
        write_clients(tmp_path, run, SHARES[run])
        rows = [
            ("mixing", client, f"{position}.{kind}", 0, weight)
            for client, tilt in enumerate((shift, -shift))
            for position, bias in (("conv1", 0.0), ("conv2", 0.2))
            for kind, weight in (("se", 0.4 + tilt + bias), ("eca", 0.6 - tilt - bias))
        ]
        write_analysis(tmp_path, run, rows)
    build_report(study(tmp_path, ["s0", "s1"]), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text(encoding="utf-8"))
    start = lines.index("| method | client | kind | conv1 | conv2 | average |")
    assert lines[start + 2 : start + 6] == [
        "| M | A | se | 0.450±0.050 | 0.650±0.050 | 0.550±0.050 |",
        "| | | eca | 0.550±0.050 | 0.350±0.050 | 0.450±0.050 |",
        "| | B | se | 0.350±0.050 | 0.550±0.050 | 0.450±0.050 |",
        "| | | eca | 0.650±0.050 | 0.450±0.050 | 0.550±0.050 |",
    ]
    data = (tmp_path / "out/figures/mixing.csv").read_text(encoding="utf-8").splitlines()
    assert data[:2] == ["method,domain,client,position,kind,mean,std,runs", "M,All,A,conv1,se,0.45,0.05,2"]


def test_client_k_has_domain_k() -> None:
    names, domains = ("first", "second", "third"), np.repeat([2, 0, 1], 10)
    samples = Samples(
        name="domains",
        inputs=np.zeros((30, 1, 2, 2), np.uint8),
        labels=np.tile(np.arange(10), 3),
        train=np.arange(30) % 2 == 0,
        class_names=tuple("abcdefghij"),
        mean=(0.0,),
        std=(1.0,),
        source="",
        attributes={"domain": Attribute(domains, names)},
    )
    assignment = partition(PARTITIONS.get("domains")(), samples, 3, seed=0)
    for client in range(3):
        assert set(domains[assignment.train[client]]) == set(domains[assignment.test[client]]) == {client}
