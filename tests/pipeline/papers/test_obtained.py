"""Published numbers with what was obtained: noise, verdicts, other protocols, and what the index says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.report_demo import RECORD, cell, results_of, rounds_table, table, with_records, write_evaluation

from pflcore.artifacts import write_table
from pflcore.protocols import summarise
from pflcore.settings import Evaluation
from pipeline.papers.contents import Place
from pipeline.papers.coverage import Claims, Coverage
from pipeline.papers.obtained import BEYOND, UNKNOWN, WITHIN, Obtained, collect_obtained, count_published, in_words
from pipeline.papers.paper import Brief, Summary
from pipeline.spec.table import ResolvedTable


def measured(root: Path, run: str, percents: list[int]) -> None:
    """A run of two clients with 100 samples each, which after round i both classify `percents[i]` of them."""
    rounds = [round_ for round_ in range(1, len(percents) + 1) for _ in range(2)]
    correct = [percent for percent in percents for _ in range(2)]
    made = rounds_table(rounds, [0, 1] * len(percents), correct, [100] * len(rounds), [1.0] * len(rounds))
    write_table(root / "artifacts/runs" / run / "rounds.parquet", made, "rounds/2", run=run, diverged=None)
    write_evaluation(root, run, summarise(made, Evaluation(every=1, window=0, curve_every=1), len(percents)))


def of_seeds(root: Path, runs: list[str], published: Any) -> ResolvedTable:
    """A table of one cell that shows the last round of some runs, each with a seed of its own."""
    one = table([cell({"method": "FedTP"}, runs, published)], ["method"], [], metric="final")
    return with_records(root, one, {run: {**RECORD, "seed": seed} for seed, run in enumerate(runs)})


def only(resolved: ResolvedTable, root: Path) -> Obtained:
    (one,) = collect_obtained(results_of(resolved, root))
    return one


def test_of_one_seed_the_noise_is_that_of_the_last_measurements(tmp_path: Path) -> None:
    # The first two are no part of it. The last ten: nine of 80 and one of 90, a variance of 100 (1 - 1/10) / 9 = 10.
    measured(tmp_path, "a", [10, 20, *[80] * 9, 90])
    one = only(of_seeds(tmp_path, ["a", "later"], (85.5, 3.0)), tmp_path)
    assert one.noise == pytest.approx(2 * (10 + 9) ** 0.5, abs=1e-6)
    assert (one.difference, one.verdict, one.runs, one.ids) == (4.5, WITHIN, (1, 2), ("a",))
    assert (one.published, one.obtained, one.signed) == ("85.50±3.00", "90.00", "+4.50")
    assert one.reached == 12  # the others end at 80
    assert one.elsewhere["last ten"] == 81.0 and one.elsewhere["best by test"] == 90.0
    assert "last round" not in one.elsewhere  # which is what the table shows


def test_of_three_seeds_it_is_their_spread(tmp_path: Path) -> None:
    for run, last in zip("abc", (70, 73, 79), strict=True):
        measured(tmp_path, run, [*[10] * 11, last])
    one = only(of_seeds(tmp_path, ["a", "b", "c"], (60.0, None)), tmp_path)
    # 70, 73, 79 are 4, 1 and 5 from their mean.
    assert one.noise == pytest.approx(2 * ((16 + 1 + 25) / 2) ** 0.5, abs=1e-6)
    assert (one.difference, one.verdict, one.reached) == (14.0, BEYOND, 12)
    assert one.elsewhere["last ten"] == pytest.approx((16 + 16.3 + 16.9) / 3, abs=1e-6)


def test_a_published_number_that_one_of_the_runs_never_reaches(tmp_path: Path) -> None:
    for run, percents in (("a", [10, 75, 80]), ("b", [10, 20, 90, 70]), ("c", [30, 40])):
        measured(tmp_path, run, percents)
    assert only(of_seeds(tmp_path, ["a", "b"], (72.0, None)), tmp_path).reached == 2  # rounds 2 and 3
    assert only(of_seeds(tmp_path, ["a", "b", "c"], (72.0, None)), tmp_path).reached is None


def test_where_nothing_tells_there_is_no_verdict(tmp_path: Path) -> None:
    measured(tmp_path, "a", [50])
    assert only(of_seeds(tmp_path, ["a"], (60.0, None)), tmp_path).verdict == UNKNOWN
    assert only(of_seeds(tmp_path, ["a"], (60.0, 4.9)), tmp_path).verdict == BEYOND


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
    assert client.noise == pytest.approx(2 * (0.5 + 0.04) ** 0.5, abs=1e-6)


def some(verdict: str, explained: str = "") -> Obtained:
    noise = {WITHIN: 2.0, BEYOND: 0.5, UNKNOWN: None}[verdict]
    return Obtained("p/table1", ("x",), "1.00", "2.00", 1.0, noise, (1, 1), False, {"window": 1.5}, explained, ("a",))


def test_in_words() -> None:
    assert in_words([]) == "none obtained"
    assert in_words([some(WITHIN), some(UNKNOWN)]) == "2 obtained: 1 within noise; 1 no noise known"
    several = [some(WITHIN), some(BEYOND), some(BEYOND, "of the data")]
    assert in_words(several) == "3 obtained: 1 within noise; 2 beyond noise, of which 1 is explained"


def test_a_paper_counts_each_of_its_tables_once() -> None:
    briefs = [
        Brief("p/table1", "", Coverage(), Claims(), 30, (some(WITHIN),)),
        Brief("p/table1_again", "", Coverage(), Claims(), 30, (some(BEYOND),)),
        Brief("p/own", "", Coverage(), Claims(), 7),
    ]
    places = [Place("Table 1", "all", ("table1", "table1_again"))]
    paper = Summary("p", "P", "Somebody", briefs, places)
    assert paper.published == 30 and len(paper.obtained) == 2
    assert Summary("p", "P", "Somebody", briefs).published == 67
    assert Summary.from_json(json.loads(json.dumps(paper.to_json()))) == paper
