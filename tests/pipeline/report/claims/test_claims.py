"""Claims on small tables whose verdicts can be read off: obtained values by seed, printed ones by their ±."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from support.claim_demo import Rows, by_seed, judge
from support.report_demo import cell, changed, claim, results_of, table, write_metrics

from pipeline.report.claims.claims import Judgement, judge_claims
from pipeline.report.claims.columns import printed_claim, weakest_pairs

A_BEATS = claim({"method": ["A"]}, {"method": ["B", "C"]})

T2 = 4.302653  # of two degrees of freedom, 2.5 % on either side


def obtained(root: Path, rows: Rows, better: str = "higher", **changes: Any) -> Judgement:
    """The one claim that A beats B and C."""
    one = A_BEATS.model_copy(update=changes)
    return judge(by_seed(root, rows, one, better=better), root)[0]


def printed(root: Path, values: dict[str, tuple[float, float | None]], **changes: Any) -> str:
    """The verdict on the same of a paper's values."""
    cells = [cell({"method": method}, [], value) for method, value in values.items()]
    resolved = table(cells, ["method"], [], claims=[A_BEATS.model_copy(update=changes)])
    (judgement,) = judge_claims(results_of(resolved, root))
    assert judgement.published
    return judgement.published.verdict


def test_seeds_are_paired(tmp_path: Path) -> None:
    # The seeds are twenty points apart, and A is ahead by 1, 2 and 3 on them: t is 2 / (1 / √3).
    rows: Rows = {"A": {"x": [91.0, 72.0, 83.0]}, "B": {"x": [90.0, 70.0, 80.0]}}
    found = obtained(tmp_path, rows)
    pair = found.obtained.worst
    assert pair
    assert (pair.difference, pair.chance.seeds) == (pytest.approx(2.0), 3)
    assert (pair.chance.low, pair.chance.high) == pytest.approx((2 - T2 / math.sqrt(3), 2 + T2 / math.sqrt(3)))
    assert pair.chance.p == pytest.approx(stats.ttest_rel([91, 72, 83], [90, 70, 80]).pvalue)
    assert found.obtained.verdict == "within noise"  # 2.48 of chance
    rows = {"A": {"x": [91.5, 72.0, 82.5]}, "B": {"x": [90.0, 70.0, 80.0]}}
    assert obtained(tmp_path / "b", rows).obtained.verdict == "holds"  # 1.5, 2, 2.5
    assert found.published is None and not found.contradicted_by_paper


def test_one_seed_is_never_certain(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [99.0]}, "B": {"x": [10.0]}}
    resolved = by_seed(tmp_path, rows, A_BEATS, metric="final")
    found, printed = judge(resolved, tmp_path)
    assert found.obtained.verdict == "one seed: undecided"
    assert printed == [
        {
            "values": "obtained", "verdict": "one seed: undecided", "compared": "A against B", "at": "x",
            "first": "99.00±0.00", "second": "10.00±0.00", "difference": "+89.00", "seeds": "1",
        }
    ]  # fmt: skip
    assert obtained(tmp_path, rows, margin=95.0).obtained.verdict == "one seed: undecided"  # nor against it


def test_two_runs_of_one_seed_are_one(tmp_path: Path) -> None:
    # Averaged over something that is no seed: of either cell both runs have the seed 0.
    for run, value in {"a1": 90.0, "a2": 92.0, "b1": 80.0, "b2": 81.0}.items():
        write_metrics(tmp_path, run, value)
    cells = [cell({"method": side.upper()}, [f"{side}1", f"{side}2"]) for side in "ab"]
    (found,) = judge_claims(results_of(table(cells, ["method"], [], claims=[A_BEATS]), tmp_path))
    assert found.obtained.verdict == "one seed: undecided"
    assert found.obtained.worst and found.obtained.worst.difference == 10.5


def test_only_shared_seeds_count(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [80.0, 81.0, 82.0, 70.0]}, "B": {"x": [79.0, 80.5, 81.0]}}
    found = obtained(tmp_path, rows).obtained.worst
    assert found and (found.chance.seeds, found.difference) == (3, pytest.approx(2.5 / 3))  # though the mean is lower
    apart = by_seed(tmp_path / "b", {"A": {"x": [80.0, 81.0]}}, A_BEATS)
    other = by_seed(tmp_path / "b", {"B": {"x": [70.0, 70.5]}}, first=7)
    labels = {"method": ["A", "B"], "setting": ["x"]}
    both = changed(apart, cells=[*apart.cells, *other.cells], runs=apart.runs | other.runs, labels=labels)
    judgement, (pair,) = judge(both, tmp_path / "b")
    assert judgement.obtained.verdict == "within noise"
    assert (pair["difference"], pair["seeds"]) == ("+10.25", "0") and not {"p", "95 % interval"} & set(pair)


def test_one_failing_pair_fails_the_claim_and_is_the_worst(tmp_path: Path) -> None:
    rows: Rows = {
        "A": {"x": [90.0, 91.0, 92.0], "y": [70.0, 71.0, 72.0]},
        "B": {"x": [80.0, 81.1, 82.2], "y": [72.0, 73.01, 74.02]},
        "C": {"y": [70.0, 80.0, 78.0], "x": [None, None, None]},  # farther away, but within noise; and not run yet
    }
    found = obtained(tmp_path, rows).obtained
    assert (found.verdict, found.pairs, found.lacking) == ("fails", 4, 1)
    assert found.worst is not None
    assert found.worst.labels == {"setting": "y"}
    assert (found.worst.better, found.worst.than) == ({"method": "A"}, {"method": "B"})
    assert found.worst.difference == pytest.approx(-2.01)
    assert found.worst.corrected == pytest.approx(3 * found.worst.chance.p)  # of three that can be judged


def test_of_many_pairs_one_falls_behind_by_chance(tmp_path: Path) -> None:
    # t is √27, so p is 0.035 for x alone: enough by itself, not so as the worst of four.
    lag = [-1.0, -1.5, -2.0]
    rows: dict[str, dict[str, list[float]]] = {"A": {"x": [80 + d for d in lag]}, "B": {"x": [80.0, 80.0, 80.0]}}
    alone = obtained(tmp_path, rows).obtained
    assert alone.verdict == "fails"
    for setting in "yzw":
        rows["A"][setting], rows["B"][setting] = [90.0, 91.0, 92.5], [80.0, 80.0, 80.0]
    found = obtained(tmp_path / "b", rows).obtained
    assert found.verdict == "within noise"
    assert found.worst and found.worst.corrected == pytest.approx(4 * (1 - 27**0.5 / 29**0.5))
    assert [pair.verdict for pair in found.judged] == ["within noise", "holds", "holds", "holds"]


def test_not_yet_while_a_value_is_missing(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [90.0, 91.0]}, "B": {"x": [80.0, 81.001]}, "C": {"x": [None, None]}}
    found = obtained(tmp_path, rows).obtained
    assert (found.verdict, found.lacking) == ("not yet", 1)
    half: Rows = {"A": {"x": [90.0, None]}, "B": {"x": [80.0, 81.0]}}
    assert obtained(tmp_path / "b", half).obtained.verdict == "not yet"


def test_seeds_that_agree_to_the_digit_decide_nothing(tmp_path: Path) -> None:
    resolved = by_seed(tmp_path, {"A": {"x": [90.1, 91.1]}, "B": {"x": [90.0, 91.0]}}, A_BEATS)
    found, (pair,) = judge(resolved, tmp_path)
    assert found.obtained.verdict == "within noise"
    assert (pair["difference"], pair["seeds"]) == ("+0.10", "2") and not {"p", "95 % interval"} & set(pair)


def test_lower_is_better(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [1.0, 1.1, 1.2]}, "B": {"x": [2.0, 2.3, 2.2]}}
    found = obtained(tmp_path, rows, better="lower").obtained
    assert found.verdict == "holds"
    assert found.worst is not None and found.worst.difference == pytest.approx(3.2 / 3)
    assert obtained(tmp_path, rows).obtained.verdict == "fails"


def test_margin(tmp_path: Path) -> None:
    # Differences 4, 5, 6, of which chance explains 2.48.
    rows: Rows = {"A": {"x": [84.0, 85.0, 86.0]}, "B": {"x": [80.0, 80.0, 80.0]}}
    verdicts = [obtained(tmp_path, rows, margin=margin).obtained.verdict for margin in (2.5, 2.6, 7.4, 7.5)]
    assert verdicts == ["holds", "within noise", "within noise", "fails"]


def test_where_restricts_and_other_axes_are_paired(tmp_path: Path) -> None:
    rows: Rows = {
        "A": {"x": [90.0, 90.5, 91.0], "y": [10.0, 10.5, 11.0]},
        "B": {"x": [80.0, 80.1, 80.2], "y": [20.0, 20.1, 20.2]},
    }
    assert obtained(tmp_path, rows, where={"setting": ["x"]}).obtained.verdict == "holds"
    assert obtained(tmp_path, rows, where={"setting": ["y"]}).obtained.verdict == "fails"
    assert obtained(tmp_path, rows).obtained.pairs == 2  # A at x is never held against B at y


def test_no_pair_at_all(tmp_path: Path) -> None:
    found = obtained(tmp_path, {"A": {"x": [90.0, 91.0]}, "B": {"y": [90.0, 91.0]}}).obtained
    assert (found.verdict, found.worst, found.pairs) == ("not yet", None, 0)


def test_a_trial_has_no_verdict(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [90.0, 91.0, 92.0]}, "B": {"x": [10.0, 11.0, 12.1]}}
    found, printed = judge(by_seed(tmp_path, rows, A_BEATS, profile="smoke"), tmp_path)
    assert (found.obtained.verdict, found.obtained.judged, printed) == ("no verdict", (), [])


def test_the_columns_say_what_it_rests_on(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [91.5, 72.0, 82.5]}, "B": {"x": [90.0, 70.0, 80.0]}}
    _, printed = judge(by_seed(tmp_path, rows, A_BEATS), tmp_path)
    assert printed == [
        {
            "values": "obtained", "verdict": "holds", "compared": "A against B", "at": "x", "first": "82.00±7.97",
            "second": "80.00±8.16", "difference": "+2.00", "95 % interval": "+0.76 to +3.24", "p": "0.020",
            "seeds": "3", "detectable": "1.63",
        }
    ]  # fmt: skip
    six: Rows = {"A": {"x": [1.0, 3.0, 2.0, 5.0, 4.0, 6.0]}, "B": {"x": [0.0] * 6}}
    _, (pair,) = judge(by_seed(tmp_path / "b", six, A_BEATS), tmp_path / "b")
    assert (pair["seeds"], pair["p"], pair["p (signs)"]) == ("6", "0.006", "0.031")  # 2 of 64
    behind: Rows = {"A": {"x": [1.0, 2.0, 3.5]}, "B": {"x": [9.0, 9.0, 9.0]}, "C": {"x": [8.0, 8.0, 8.0]}}
    _, (pair, other) = judge(by_seed(tmp_path / "c", behind, A_BEATS), tmp_path / "c")
    assert (pair["compared"], pair["verdict"], other["compared"]) == ("A against B", "fails", "A against C")
    assert float(pair["p (Holm)"]) == pytest.approx(2 * float(pair["p"]), abs=2e-3)


def test_the_weakest_pairs_of_all_claims_are_one_table(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [91.5, 72.0, 82.5], "y": [None]}, "B": {"x": [90.0, 70.0, 80.0], "y": [1.0]}}
    ahead, at_y = A_BEATS, A_BEATS.model_copy(update={"where": {"setting": ["y"]}})
    results = results_of(by_seed(tmp_path, rows, ahead, at_y), tmp_path)
    found = weakest_pairs([printed_claim(judgement, 2) for judgement in judge_claims(results)])
    lines = [dict(zip(found.header, row, strict=True)) for row in found.rows]
    assert [(line["claim"], line["verdict"], line["pairs"]) for line in lines] == [
        ("1", "not yet", "1 of 2"),
        ("2", "not yet", "0 of 1"),
    ]
    assert (lines[0]["difference"], lines[1]["difference"]) == ("+2.00", "")


@pytest.mark.parametrize(("mean", "verdict"), [(80.0, "holds"), (80.3, "within noise"), (94.9, "within noise")])
def test_printed_values_go_by_their_deviations(tmp_path: Path, mean: float, verdict: str) -> None:
    assert printed(tmp_path, {"A": (90.0, 3.0), "B": (mean, 4.0)}) == verdict  # noise 1.96 · 5
    assert printed(tmp_path, {"A": (90.0, None), "B": (90.5, None), "C": (10.0, 9.0)}) == "fails"


def test_a_cell_without_a_run_is_judged_on_the_published_side_only(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [90.0, 91.0, 92.0]}, "B": {"x": [80.0, 81.5, 82.0]}}
    resolved = by_seed(tmp_path, rows, A_BEATS)
    own = [
        one.model_copy(update={"published": cell({}, [], (mean, 0.1)).published})
        for one, mean in zip(resolved.cells, (90.0, 80.0), strict=True)
    ]
    quoted = cell({"method": "C", "setting": "x"}, [], (91.0, 0.1))
    labels = {"method": ["A", "B", "C"], "setting": ["x"]}
    found, pairs = judge(changed(resolved, cells=[*own, quoted], labels=labels), tmp_path)
    assert (found.obtained.verdict, found.obtained.pairs) == ("holds", 1)
    assert found.published is not None
    assert (found.published.verdict, found.published.pairs) == ("fails", 2)
    assert found.contradicted_by_paper
    weakest = pairs[1]
    assert [weakest[name] for name in ("values", "verdict", "compared", "first", "second", "difference")] == [
        "published", "fails", "A against C", "90.00±0.10", "91.00±0.10", "\N{MINUS SIGN}1.00",
    ]  # fmt: skip
    assert weakest["95 % interval"] == "\N{MINUS SIGN}1.28 to \N{MINUS SIGN}0.72" and weakest["seeds"] == ""
