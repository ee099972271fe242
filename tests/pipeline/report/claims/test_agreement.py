"""How a table agrees with its paper as a whole: distances, order, claims; worked out by hand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.report_demo import RECORD, cell, claim, report, results_of, table, with_records, write_metrics

from pipeline.report.claims.agreement import Agreement, count_within
from pipeline.report.claims.claims import judge_claims
from pipeline.spec.table import ResolvedTable

# Published ranks 1 2 3 4 5, obtained ones 2 1 4 3 5: squared differences of ranks 1 1 1 1 0, two of ten pairs turned.
VALUES = {
    "A": ((10.0, 1.0), 21.0),
    "B": ((20.0, None), 19.0),
    "C": ((30.0, None), 41.5),
    "D": ((40.0, None), 37.5),
    "E": ((50.0, None), 45.0),
}


def filled(root: Path, seeds: int = 1, **changes: Any) -> ResolvedTable:
    cells, records = [], {}
    for row, (published, mean) in VALUES.items():
        runs = [f"{row}{seed}" for seed in range(seeds)]
        for seed, run in enumerate(runs):
            write_metrics(root, run, mean + seed - (seeds - 1) / 2)
            records[run] = {**RECORD, "seed": seed}
        cells.append(cell({"method": row}, runs, published))
    cells.append(cell({"method": "F"}, ["later"], (60.0, None)))
    claims = [
        claim({"method": ["E"]}, {"method": ["A", "B", "C", "D"]}),
        claim({"method": ["C"]}, {"method": ["B", "D", "E", "F"]}),
        claim({"method": ["F"]}, {"method": ["A"]}),
    ]
    return with_records(root, table(cells, ["method"], [], claims=claims, **changes), records)


def agreement(resolved: ResolvedTable, root: Path) -> Agreement:
    results = results_of(resolved, root)
    return Agreement.of(results, judge_claims(results))


def test_distances_are_counted_whatever_the_last_digit_of_a_float() -> None:
    assert count_within([81.2 - 80.2, -1.01, 2.5, 5.0, -5.001]) == [1, 3, 4]
    assert count_within([]) == [0, 0, 0]


def test_of_one_seed_distance_order_and_direction_are_told_and_no_verdict(tmp_path: Path) -> None:
    found = agreement(filled(tmp_path), tmp_path)
    assert found.published == 6 and found.differences == (11.0, -1.0, 11.5, -2.5, -5.0)
    (order,) = found.orders
    assert (order.rows, order.spearman, order.kendall) == (5, pytest.approx(1 - 6 * 4 / 120), pytest.approx(0.6))
    # E is ahead of all four, C of B and D but not of E, and F has no value.
    assert (found.claims, found.compared, found.agree, found.comparisons) == (3, 2, 1, (6, 7))
    assert found.words == [
        "Of 6 published accuracies 5 are obtained: 1 within 1 point, 2 within 2.5, 3 within 5; the median distance is "
        "5.00. None of them has 3 seeds, so there is no verdict on any.",
        "Order of the rows, obtained against published, rank correlations of Spearman / Kendall: 0.80 / 0.60 of 5 "
        "rows.",
        "Of 3 claims 2 can be compared as far as cells are obtained: in 1 every comparison agrees in direction, and 6 "
        "of all 7 do; with 3 seeds or more none has a verdict.",
    ]
    report(filled(tmp_path), tmp_path, tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text("utf-8")
    told = text.replace(text[text.index("Noise: a difference") : text.index("have no verdict.")], "")
    assert " beyond noise" not in told and " within noise" not in told and "+11.50 |" in text
    assert 'class="d no-verdict">+11.50</span>' in (tmp_path / "out/report.html").read_text("utf-8")


def test_with_three_seeds_there_are_verdicts(tmp_path: Path) -> None:
    resolved = filled(tmp_path, seeds=3)
    found = agreement(resolved, tmp_path)
    # Seeds are one apart: without ± noise is 4.3027 / √3 = 2.48, with a ± of 1 it is 3.16.
    assert found.verdicts == Counter({"beyond noise": 4, "within noise": 1})
    # Of a claim the seeds shift both sides alike, which does not tell what is chance.
    assert found.decided == Counter({"within noise": 1}) and found.words[0].endswith("1 within noise, 4 beyond noise.")
    assert [cell.noise is not None and round(cell.noise, 2) for cell in results_of(resolved, tmp_path).cells] == [
        *(3.16, 2.48, 2.48, 2.48, 2.48),
        False,
    ]
    report(resolved, tmp_path, tmp_path / "out")
    assert "| D | −2.50 beyond noise (2.48) |" in " ".join((tmp_path / "out/report.md").read_text("utf-8").split())


def test_of_a_trial_nothing_is_told(tmp_path: Path) -> None:
    found = agreement(filled(tmp_path, profile="smoke"), tmp_path)
    assert not found.differences and not found.orders and not found.compared


def test_several_tables_are_told_together_and_kept_as_json(tmp_path: Path) -> None:
    one = agreement(filled(tmp_path), tmp_path)
    both = Agreement.total([one, one], 9)
    assert both.differences == one.differences * 2 and both.comparisons == (12, 14) and both.published == 9
    assert Agreement.from_json(json.loads(json.dumps(asdict(both)))) == both
    assert Agreement.total([], 4).words == ["Of 4 published accuracies none is obtained."]
