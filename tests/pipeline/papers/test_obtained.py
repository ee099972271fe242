"""Published numbers with what was obtained: verdicts, other protocols, and what the index says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.report_demo import RECORD, cell, report, results_of, rounds_table, table, with_records, write_evaluation

from pflcore.artifacts import read_table, write_table
from pflcore.protocols import summarise
from pflcore.settings import Evaluation
from pipeline.papers.contents import Place
from pipeline.papers.coverage import Claims, Coverage
from pipeline.papers.obtained import Obtained, collect_obtained, count_published
from pipeline.papers.paper import Brief, Summary
from pipeline.report.claims.agreement import Agreement
from pipeline.report.statistics.noise import BEYOND, NO_VERDICT
from pipeline.spec.table import ResolvedTable


def measured(root: Path, run: str, percents: list[int]) -> None:
    """A run of two clients with 100 samples each, which after round i both classify `percents[i]` of them."""
    rounds = [round_ for round_ in range(1, len(percents) + 1) for _ in range(2)]
    correct = [percent for percent in percents for _ in range(2)]
    made = rounds_table(rounds, [0, 1] * len(percents), correct, [100] * len(rounds), [1.0] * len(rounds))
    write_table(root / "artifacts/runs" / run / "rounds.parquet", made, "rounds/2", run=run, diverged=None)
    write_evaluation(root, run, summarise(made, Evaluation(every=1, window=0, curve_every=1), len(percents)))


def of_seeds(root: Path, runs: list[str], published: Any, metric: str = "final") -> ResolvedTable:
    """A table of one cell that shows the last round of some runs, each with a seed of its own."""
    one = table([cell({"method": "FedTP"}, runs, published)], ["method"], [], metric=metric)
    return with_records(root, one, {run: {**RECORD, "seed": seed} for seed, run in enumerate(runs)})


def only(resolved: ResolvedTable, root: Path) -> Obtained:
    (one,) = collect_obtained(results_of(resolved, root))
    return one


def test_of_one_seed_there_is_no_verdict(tmp_path: Path) -> None:
    measured(tmp_path, "a", [10, 20, *[80] * 9, 90])
    one = only(of_seeds(tmp_path, ["a", "later"], (85.5, 3.0)), tmp_path)
    assert (one.difference, one.verdict, one.noise, one.runs, one.ids) == (4.5, NO_VERDICT, None, (1, 2), ("a",))
    assert (one.published, one.obtained, one.last, one.compared) == ("85.50±3.00", "90.00", "", "+4.50")
    assert one.reached == 12  # the others end at 80
    assert one.elsewhere["last ten"] == 81.0 and one.elsewhere["best by test"] == 90.0
    assert "last round" not in one.elsewhere  # which is what the table shows


def test_of_three_seeds_there_is_one(tmp_path: Path) -> None:
    for run, last in zip("abc", (70, 73, 79), strict=True):
        measured(tmp_path, run, [*[10] * 11, last])
    one = only(of_seeds(tmp_path, ["a", "b", "c"], (60.0, None)), tmp_path)
    # 70, 73, 79 are 4, 1 and 5 from their mean; Student's quantile with two degrees of freedom is 4.3027.
    assert one.noise == pytest.approx(4.302653 * ((16 + 1 + 25) / 2 / 3) ** 0.5, abs=1e-4)
    assert (one.difference, one.verdict, one.reached, one.compared) == (14.0, BEYOND, 12, "+14.00 beyond noise (11.38)")
    assert one.elsewhere["last ten"] == pytest.approx((16 + 16.3 + 16.9) / 3, abs=1e-6)


def test_where_a_paper_names_no_round_it_is_the_mean_of_the_last_ten_beside_the_last(tmp_path: Path) -> None:
    measured(tmp_path, "a", [10, 20, *[80] * 9, 90])
    measured(tmp_path, "b", [40, 50])
    resolved = of_seeds(tmp_path, ["a", "b"], (62.0, None), "last_ten")
    one = only(resolved, tmp_path)
    assert (one.obtained, one.last, one.difference) == ("63.00±18.00", "70.00±20.00", 1.0)
    assert "last ten" not in one.elsewhere and "last round" not in one.elsewhere
    out = tmp_path / "out"
    report(resolved, tmp_path, out)
    assert "**63.00±18.00** / 70.00±20.00 (**62.00**)" in (out / "report.md").read_text("utf-8")
    assert "</span> / 70.00±20.00</span>" in (out / "report.html").read_text("utf-8")
    assert r"/ 70.00$\pm$20.00" in (out / "report.tex").read_text("utf-8")
    (row,) = read_table(out / "table.parquet", "table/2")[0].to_pylist()
    assert (row["obtained_mean"], row["last_round"]) == (63.0, 70.0)


def test_a_published_number_that_one_of_the_runs_never_reaches(tmp_path: Path) -> None:
    for run, percents in (("a", [10, 75, 80]), ("b", [10, 20, 90, 70]), ("c", [30, 40])):
        measured(tmp_path, run, percents)
    assert only(of_seeds(tmp_path, ["a", "b"], (72.0, None)), tmp_path).reached == 2  # rounds 2 and 3
    assert only(of_seeds(tmp_path, ["a", "b", "c"], (72.0, None)), tmp_path).reached is None


def test_what_is_not_published_or_not_obtained_is_left_out_and_clients_count_by_themselves(tmp_path: Path) -> None:
    measured(tmp_path, "a", [50, 51])
    cells = [
        cell({"method": "both"}, ["a"], (51.0, None, "quoted")),
        cell({"method": "own"}, ["a"]),
        cell({"method": "later"}, ["b"], (51.0, None)),
        cell({"method": "client"}, ["a"], (49.0, 0.2), client=0),
    ]
    resolved = table(cells, ["method"], [], metric="final", clients={"method": {"client": 0}})
    record = {**RECORD, "training": {"rounds": 2}, "evaluation": {"every": 1, "window": 0, "curve_every": 1}}
    resolved = with_records(tmp_path, resolved, {"a": record})
    both, client = collect_obtained(results_of(resolved, tmp_path))
    assert both.labels == ("both",) and both.quoted and count_published(resolved) == 3
    assert client.labels == ("client",) and client.difference == 2.0 and client.elsewhere["best by test"] == 51.0


def some(difference: float) -> Obtained:
    return Obtained(
        "p/table1", ("x",), "1.00", "2.00", "", difference, NO_VERDICT, None, (1, 1), False, {"window": 1.5}, "", ("a",)
    )


def test_a_paper_counts_each_of_its_tables_once() -> None:
    briefs = [
        Brief("p/table1", "", Coverage(), Claims(), 30, (some(1.0),), Agreement(30, (1.0,))),
        Brief("p/table1_again", "", Coverage(), Claims(), 30, (some(3.0),), Agreement(30, (3.0,))),
        Brief("p/own", "", Coverage(), Claims(), 7),
    ]
    places = [Place("Table 1", "all", ("table1", "table1_again"))]
    paper = Summary("p", "P", "Somebody", briefs, places)
    assert paper.published == 30 and len(paper.obtained) == 2
    assert paper.agreement == Agreement(30, (1.0, 3.0))
    assert Summary("p", "P", "Somebody", briefs).published == 67
    assert Summary.from_json(json.loads(json.dumps(paper.to_json()))) == paper
