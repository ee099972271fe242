"""Claims on small tables whose verdicts can be read off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.report_demo import cell, claim, results_of, table, write_metrics

from pipeline.report.claims.claims import Judgement, judge_claims
from pipeline.spec.table import ResolvedTable

Entry = tuple[str, str, Any, Any]  # method, setting, obtained (mean, std) or None or "no run", published or None


def judge_one(resolved: ResolvedTable, root: Path) -> Judgement:
    """The judgement of a table's first claim."""
    return judge_claims(results_of(resolved, root))[0]


def judge(root: Path, entries: list[Entry], better: str = "higher", **changes: Any) -> Judgement:
    """The one claim that A beats B and C."""
    cells = []
    for method, setting, obtained, published in entries:
        run = f"{method}-{setting}"
        if isinstance(obtained, tuple):
            write_metrics(root, run, *obtained)
        runs = [] if obtained == "no run" else [run]
        cells.append(cell({"method": method, "setting": setting}, runs, published))
    one = claim({"method": ["A"]}, {"method": ["B", "C"]}, **changes)
    resolved = table(cells, ["method"], ["setting"], better=better, claims=[one])
    return judge_one(resolved, root)


def test_holds_beyond_the_noise(tmp_path: Path) -> None:
    found = judge(tmp_path, [("A", "x", (90.0, 3.0), None), ("B", "x", (84.0, 4.0), None)])
    assert found.obtained.verdict == "holds"  # apart by 6, noise 5
    assert found.obtained.worst is not None
    assert (found.obtained.worst.difference, found.obtained.worst.noise.size) == (6.0, 5.0)
    assert found.published is None and not found.contradicted_by_paper


@pytest.mark.parametrize("mean", [94.9, 90.0, 85.1])
def test_within_noise_on_either_side(tmp_path: Path, mean: float) -> None:
    found = judge(tmp_path, [("A", "x", (90.0, 3.0), None), ("B", "x", (mean, 4.0), None)])
    assert found.obtained.verdict == "within noise"


def test_one_failing_pair_fails_the_claim_and_is_the_worst(tmp_path: Path) -> None:
    entries: list[Entry] = [
        ("A", "x", (90.0, 0.1), None),
        ("B", "x", (80.0, 0.1), None),
        ("A", "y", (70.0, 0.1), None),
        ("B", "y", (72.0, 0.1), None),
        ("C", "y", (75.0, 9.0), None),  # a greater distance, but within noise
        ("C", "x", None, None),  # not run yet: cannot rescue the claim
    ]
    found = judge(tmp_path, entries).obtained
    assert (found.verdict, found.pairs, found.lacking) == ("fails", 4, 1)
    assert found.worst is not None
    assert found.worst.labels == {"setting": "y"}
    assert (found.worst.better, found.worst.than) == ({"method": "A"}, {"method": "B"})
    assert found.worst.difference == pytest.approx(-2.0)


def test_not_yet_while_a_value_is_missing(tmp_path: Path) -> None:
    found = judge(tmp_path, [("A", "x", (90, 0.1), None), ("B", "x", (80, 0.1), None), ("C", "x", None, None)])
    assert (found.obtained.verdict, found.obtained.lacking) == ("not yet", 1)


def test_a_cell_without_a_run_is_judged_on_the_published_side_only(tmp_path: Path) -> None:
    entries: list[Entry] = [
        ("A", "x", (90.0, 0.1), (90.0, 0.1)),
        ("B", "x", (80.0, 0.1), (80.0, 0.1)),
        ("C", "x", "no run", (91.0, 0.1)),
    ]
    found = judge(tmp_path, entries)
    assert (found.obtained.verdict, found.obtained.pairs) == ("holds", 1)
    assert found.published is not None
    assert (found.published.verdict, found.published.pairs) == ("fails", 2)
    assert found.contradicted_by_paper


def test_lower_is_better(tmp_path: Path) -> None:
    found = judge(tmp_path, [("A", "x", (1.0, 0.1), None), ("B", "x", (2.0, 0.1), None)], better="lower")
    assert found.obtained.verdict == "holds"
    assert found.obtained.worst is not None and found.obtained.worst.difference == pytest.approx(1.0)


def test_margin(tmp_path: Path) -> None:
    entries: list[Entry] = [("A", "x", (90.0, 0.3), None), ("B", "x", (85.0, 0.4), None)]
    verdicts = [judge(tmp_path, entries, margin=margin).obtained.verdict for margin in (4.4, 4.6, 5.4, 5.6)]
    assert verdicts == ["holds", "within noise", "within noise", "fails"]


def test_where_restricts_and_other_axes_are_paired(tmp_path: Path) -> None:
    entries: list[Entry] = [
        ("A", "x", (90.0, 0.1), None),
        ("B", "x", (80.0, 0.1), None),
        ("A", "y", (10.0, 0.1), None),
        ("B", "y", (20.0, 0.1), None),
    ]
    assert judge(tmp_path, entries, where={"setting": ["x"]}).obtained.verdict == "holds"
    assert judge(tmp_path, entries, where={"setting": ["y"]}).obtained.verdict == "fails"
    found = judge(tmp_path, entries).obtained
    assert found.pairs == 2  # A at x is never held against B at y


def test_no_pair_at_all(tmp_path: Path) -> None:
    found = judge(tmp_path, [("A", "x", (90.0, 0.1), None), ("B", "y", (80.0, 0.1), None)]).obtained
    assert (found.verdict, found.worst, found.pairs) == ("not yet", None, 0)


def test_half_of_the_seeds_is_not_yet(tmp_path: Path) -> None:
    write_metrics(tmp_path, "a-0", 90.0)
    write_metrics(tmp_path, "b-0", 80.0)
    cells = [cell({"method": "A"}, ["a-0", "a-1"]), cell({"method": "B"}, ["b-0"])]
    one = claim({"method": ["A"]}, {"method": ["B"]})
    resolved = table(cells, ["method"], [], claims=[one])
    assert judge_one(resolved, tmp_path).obtained.verdict == "not yet"
