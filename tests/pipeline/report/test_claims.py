"""Claims on small tables whose verdicts can be read off: obtained values by seed, printed ones by their ±."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.claim_demo import Printed, Rows, a_and_b, by_seed, judge, within
from support.figure_demo import TOTAL, record, study, write_rounds
from support.report_demo import RECORD, cell, changed, claim, report, results_of, table, with_records, write_metrics

from pipeline.report.agreement import Agreement, count_within
from pipeline.report.claims import Evidence, Judgement, Pair, judge_claims
from pipeline.spec.table import ResolvedTable, TableClaim

A_BEATS = claim({"method": ["A"]}, {"method": ["B", "C"]})

T2 = 4.302653  # of two degrees of freedom, 2.5 % on either side


def against(root: Path, rows: Rows, better: str = "higher", **changes: Any) -> Judgement:
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
    found = against(tmp_path, rows)
    pair = found.obtained.judged[0]
    assert (pair.effect.difference, pair.effect.n) == (pytest.approx(2.0), 3)
    assert (pair.effect.low, pair.effect.high) == pytest.approx((2 - T2 / math.sqrt(3), 2 + T2 / math.sqrt(3)))
    assert pair.effect.p == pytest.approx(stats.ttest_rel([91, 72, 83], [90, 70, 80]).pvalue)
    assert found.obtained.verdict == "within noise"  # 2.48 of chance
    rows = {"A": {"x": [91.5, 72.0, 82.5]}, "B": {"x": [90.0, 70.0, 80.0]}}
    assert against(tmp_path / "b", rows).obtained.verdict == "holds"  # 1.5, 2, 2.5
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
    assert against(tmp_path, rows, margin=95.0).obtained.verdict == "one seed: undecided"  # nor against it


def test_only_shared_seeds_count(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [80.0, 81.0, 82.0, 70.0]}, "B": {"x": [79.0, 80.5, 81.0]}}
    found = against(tmp_path, rows).obtained.judged[0]
    assert (found.effect.n, found.effect.difference) == (3, pytest.approx(2.5 / 3))  # though the mean is lower
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
    found = against(tmp_path, rows).obtained
    assert (found.verdict, found.pairs, found.pairs - len(found.judged)) == ("fails", 4, 1)
    assert found.judged[0].labels == {"setting": "y"}
    assert (found.judged[0].better, found.judged[0].than) == ({"method": "A"}, {"method": "B"})
    assert found.judged[0].effect.difference == pytest.approx(-2.01)
    assert found.judged[0].corrected == pytest.approx(3 * found.judged[0].effect.p)  # of three that can be judged


def test_of_many_pairs_one_falls_behind_by_chance(tmp_path: Path) -> None:
    # t is √27, so p is 0.035 for x alone: enough by itself, not so as the worst of four.
    lag = [-1.0, -1.5, -2.0]
    rows: dict[str, dict[str, list[float]]] = {"A": {"x": [80 + d for d in lag]}, "B": {"x": [80.0, 80.0, 80.0]}}
    alone = against(tmp_path, rows).obtained
    assert alone.verdict == "fails"
    for setting in "yzw":
        rows["A"][setting], rows["B"][setting] = [90.0, 91.0, 92.5], [80.0, 80.0, 80.0]
    found = against(tmp_path / "b", rows).obtained
    assert found.verdict == "within noise"
    assert found.judged[0].corrected == pytest.approx(4 * (1 - 27**0.5 / 29**0.5))
    assert [pair.verdict for pair in found.judged] == ["within noise", "holds", "holds", "holds"]


def test_not_yet_while_a_value_is_missing(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [90.0, 91.0]}, "B": {"x": [80.0, 81.001]}, "C": {"x": [None, None]}}
    found = against(tmp_path, rows).obtained
    assert (found.verdict, found.pairs - len(found.judged)) == ("not yet", 1)
    half: Rows = {"A": {"x": [90.0, None]}, "B": {"x": [80.0, 81.0]}}
    assert against(tmp_path / "b", half).obtained.verdict == "not yet"


def test_lower_is_better(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [1.0, 1.1, 1.2]}, "B": {"x": [2.0, 2.3, 2.2]}}
    found = against(tmp_path, rows, better="lower").obtained
    assert found.verdict == "holds"
    assert found.judged[0].effect.difference == pytest.approx(3.2 / 3)
    assert against(tmp_path, rows).obtained.verdict == "fails"


def test_margin(tmp_path: Path) -> None:
    # Differences 4, 5, 6, of which chance explains 2.48.
    rows: Rows = {"A": {"x": [84.0, 85.0, 86.0]}, "B": {"x": [80.0, 80.0, 80.0]}}
    verdicts = [against(tmp_path, rows, margin=margin).obtained.verdict for margin in (2.5, 2.6, 7.4, 7.5)]
    assert verdicts == ["holds", "within noise", "within noise", "fails"]


def test_where_restricts_and_other_axes_are_paired(tmp_path: Path) -> None:
    rows: Rows = {
        "A": {"x": [90.0, 90.5, 91.0], "y": [10.0, 10.5, 11.0]},
        "B": {"x": [80.0, 80.1, 80.2], "y": [20.0, 20.1, 20.2]},
    }
    assert against(tmp_path, rows, where={"setting": ["x"]}).obtained.verdict == "holds"
    assert against(tmp_path, rows, where={"setting": ["y"]}).obtained.verdict == "fails"
    assert against(tmp_path, rows).obtained.pairs == 2  # A at x is never held against B at y


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


# Claims on more than two cells: means, ranges, spreads; and what clients say of a single seed.


def obtained(root: Path, rows: Rows, stated: TableClaim) -> tuple[Evidence, Printed]:
    """A claim on obtained values: what was found, and its pairs as printed."""
    found, printed = judge(by_seed(root, rows, stated), root)
    assert found.published is None
    return found.obtained, printed


def sides(printed: Printed) -> tuple[str, str]:
    """The two values of the first pair."""
    return printed[0]["first"], printed[0]["second"]


def only(found: Evidence) -> Pair:
    """The one pair that there is."""
    (pair,) = found.judged
    return pair


def test_means_over_an_axis_are_compared_seed_by_seed(tmp_path: Path) -> None:
    # At x the leads are 1, 4, 1 and at y 3, 0, 3.2; their means are 2, 2 and 2.1, so no seed is an exception.
    rows: Rows = {
        "A": {"x": [91.0, 84.0, 71.0], "y": [53.0, 60.0, 63.2]},
        "B": {"x": [90.0, 80.0, 70.0], "y": [50.0, 60.0, 60.0]},
    }
    found, printed = obtained(tmp_path, rows, a_and_b(over=["setting"]))
    assert found.verdict == "holds"
    pair = only(found)
    assert (pair.cells, pair.effect.n) == (2, 3)
    assert pair.effect.p == pytest.approx(stats.ttest_1samp([2.0, 2.0, 2.1], 0.0).pvalue)
    assert (*sides(printed), printed[0]["cells"]) == ("70.37±2.31", "68.33±2.36", "2")
    assert obtained(tmp_path, rows, a_and_b())[0].verdict == "within noise"  # of x and y alone


@pytest.mark.parametrize(("lowest", "verdict"), [(66.0, "holds"), (62.5, "within noise"), (56.0, "fails")])
def test_the_narrower_range_is_steadier(tmp_path: Path, lowest: float, verdict: str) -> None:
    rows: Rows = {
        "A": {"x": [69.0, 70.0, 71.0], "y": [lowest] * 3, "z": [60.0, 68.0, 76.0]},  # z is at neither end
        "B": {"x": [50.0, 50.0, 50.0], "y": [59.0, 59.0, 59.0], "z": [52.0, 52.0, 52.0]},
    }
    found, printed = obtained(tmp_path, rows, a_and_b("steadier", over=["setting"]))
    assert found.verdict == verdict
    pair = only(found)
    by_hand = stats.ttest_1samp([9 - (high - lowest) for high in (69.0, 70.0, 71.0)], 0.0)
    assert pair.effect.difference == pytest.approx(9.0 - (70.0 - lowest))
    assert pair.effect.p == pytest.approx(by_hand.pvalue)
    assert pair.ends == (({"setting": "x"}, {"setting": "y"}), ({"setting": "y"}, {"setting": "x"}))
    assert sides(printed) == (f"{70 - lowest:.2f}±0.82 (y to x)", "9.00±0.00 (x to y)")
    assert (printed[0]["cells"], printed[0]["seeds"]) == ("3", "3")


def test_without_axes_it_is_the_spread_that_is_compared(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    common = random.normal(80, 3, 8)
    calm, wild = common + random.normal(0, 0.5, 8), common + random.normal(0, 9, 8)
    rows: Rows = {"A": {"x": list(calm), "y": list(wild)}, "B": {"x": list(wild), "y": list(calm)}}
    found, printed = obtained(tmp_path, rows, a_and_b("steadier"))
    assert [(pair.labels["setting"], pair.verdict) for pair in found.judged] == [("y", "fails"), ("x", "holds")]
    p = stats.pearsonr(calm + wild, calm - wild).pvalue  # the test of Pitman and Morgan
    assert [pair.effect.p for pair in found.judged] == pytest.approx([p, p])
    assert (*sides(printed), printed[0]["at"]) == (f"{wild.std():.2f}", f"{calm.std():.2f}", "y")
    few: Rows = {"A": {"x": [80.0, 80.1]}, "B": {"x": [70.0, 90.0]}}
    found, printed = obtained(tmp_path / "few", few, a_and_b("steadier"))
    assert (found.verdict, only(found).effect.difference) == ("within noise", pytest.approx(9.95))


@pytest.mark.parametrize(("margin", "verdict"), [(6.0, "holds"), (5.4, "within noise"), (2.5, "within noise")])
def test_a_range_that_is_small(tmp_path: Path, margin: float, verdict: str) -> None:
    rows: Rows = {"A": {"x": [70.0, 70.0, 70.0], "y": [72.0, 73.0, 74.0], "z": [71.0, 71.1, 71.0]}}
    found, printed = obtained(tmp_path, rows, within(margin, "setting"))
    assert (found.verdict, only(found).effect.difference) == (verdict, pytest.approx(3.0))
    assert sides(printed) == ("73.00±0.82 (y)", "70.00±0.00 (x)")
    names = ("compared", "at", "difference", "margin", "cells", "95 % interval", "detectable")
    assert [printed[0][name] for name in names] == [
        "highest and lowest over setting", "A", "+3.00", f"{margin:g}", "3", "+0.52 to +5.48", "3.26",
    ]  # fmt: skip


def test_the_ends_of_a_range_are_picked_after_the_fact(tmp_path: Path) -> None:
    rows: dict[str, dict[str, list[float]]] = {"A": {"x": [72.0, 72.4, 72.8], "y": [70.0, 70.0, 70.0]}}
    found, _ = obtained(tmp_path, rows, within(1.0, "setting"))
    assert found.verdict == "fails"  # apart by 2.4, p = 0.026 against 1
    rows["A"] |= {"z": [71.0, 71.0, 71.0]}
    found, _ = obtained(tmp_path / "b", rows, within(1.0, "setting"))
    assert found.verdict == "within noise"  # of three pairs the widest
    assert only(found).effect.p == pytest.approx(3 * stats.ttest_1samp([1.0, 1.4, 1.8], 0.0).pvalue)


def test_the_published_side_is_judged_by_its_own_rule(tmp_path: Path) -> None:
    values: dict[str, dict[str, tuple[float, float | None]]] = {
        "A": {"x": (70.0, 0.3), "y": (60.0, 0.4)},
        "B": {"x": (65.0, 0.1), "y": (64.0, None)},
    }
    cells = [
        cell({"method": method, "setting": setting}, [f"{method}-{setting}"], value)
        for method, settings in values.items()
        for setting, value in settings.items()
    ]
    steadier, spread = a_and_b("steadier", over=["setting"]), a_and_b("steadier")
    found, printed = judge(table(cells, ["method"], ["setting"], claims=[steadier]), tmp_path)
    assert (found.obtained.verdict, found.contradicted_by_paper) == ("not yet", True)
    assert sides(printed) == ("10.00±0.50 (y to x)", "1.00±0.10 (y to x)")
    assert (printed[0]["values"], printed[0]["difference"], printed[0]["verdict"]) == (
        "published",
        "\N{MINUS SIGN}9.00",
        "fails",
    )
    assert printed[0]["95 % interval"] == "\N{MINUS SIGN}10.00 to \N{MINUS SIGN}8.00"
    found, printed = judge(table(cells, ["method"], ["setting"], claims=[spread]), tmp_path)
    assert found.published is not None
    assert found.published.pairs == 1  # y has no printed spread to compare
    assert (*sides(printed), printed[0]["at"]) == ("0.30", "0.10", "x")
    means = a_and_b(over=["setting"])
    found, printed = judge(table(cells, ["method"], ["setting"], claims=[means]), tmp_path)
    assert sides(printed) == ("65.00±0.25", "64.50±0.05")  # √(0.3² + 0.4²) / 2
    cells = [one.model_copy(update={"published": None}) for one in cells]
    assert judge(table(cells, ["method"], ["setting"], claims=[spread]), tmp_path)[0].published is None


def write_clients(root: Path, run: str, correct: list[int]) -> None:
    """A run by the test samples of each client that are classified correctly."""
    write_rounds(root, run, correct)
    accuracies = 100.0 * np.array(correct) / TOTAL
    write_metrics(root, run, float(accuracies.mean()), float(accuracies.std()))


def of_clients(root: Path, metric: str = "clients", clients: int = 4) -> tuple[Judgement, Printed]:
    """A, which under its one seed is a little better than B on each of four clients that are very different."""
    write_clients(root, "a", [20, 84, 122, 182])
    write_clients(root, "b", [18, 80, 120, 180])
    runs = {("A", "x"): {"a": record("A", clients=4)}, ("B", "x"): {"b": record("B", clients=clients)}}
    return judge(study(root, runs, metric=metric, claims=[a_and_b()]), root)


def test_clients_of_one_seed_are_told_and_decide_nothing(tmp_path: Path) -> None:
    found, printed = of_clients(tmp_path)
    pair = only(found.obtained)
    assert found.obtained.verdict == "one seed: undecided"
    assert pair.effect.difference == pytest.approx(1.25)
    assert pair.effect.clients and pair.effect.clients[0] == 4
    _, low, high = pair.effect.clients
    assert 1.0 <= low < 1.25 < high <= 2.0  # of 1, 2, 1, 1
    assert printed[0]["95 % interval"] == f"+{low:.2f} to +{high:.2f} (4 clients)" and printed[0]["seeds"] == "1"


# How a table agrees with its paper as a whole: distances, order, claims; worked out by hand.

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
    assert found.published == 6 and found.differences == [11.0, -1.0, 11.5, -2.5, -5.0]
    (order,) = found.orders
    assert (order.rows, order.spearman, order.kendall) == (5, pytest.approx(1 - 6 * 4 / 120), pytest.approx(0.6))
    # E is ahead of all four, C of B and D but not of E, and F has no value.
    assert found.claims == Counter(stated=3, compared=2, agree=1, comparisons=7, agreeing=6)
    assert not found.verdicts and not found.decided
    numbers = dict(found.numbers())
    assert numbers["distance in points"] == "1 within 1, 2 within 2.5, 3 within 5; median 5.00"
    assert numbers["order of rows"] == "0.80 / 0.60 of 5 rows"
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
    assert found.decided == Counter({"within noise": 1})
    assert dict(found.numbers())["verdicts"] == "1 within noise, 4 beyond noise"
    assert [cell.noise is not None and round(cell.noise, 2) for cell in results_of(resolved, tmp_path).cells] == [
        *(3.16, 2.48, 2.48, 2.48, 2.48),
        False,
    ]
    report(resolved, tmp_path, tmp_path / "out")
    assert "| D | −2.50 beyond noise (2.48) |" in " ".join((tmp_path / "out/report.md").read_text("utf-8").split())


def test_of_a_trial_nothing_is_told(tmp_path: Path) -> None:
    found = agreement(filled(tmp_path, profile="smoke"), tmp_path)
    assert not found.differences and not found.orders and not found.claims["compared"]


def test_several_tables_together(tmp_path: Path) -> None:
    one = agreement(filled(tmp_path, seeds=3), tmp_path)
    both = Agreement.total([one, one], 9)
    assert both.differences == one.differences * 2 and both.published == 9
    assert (both.claims["agreeing"], both.claims["comparisons"], both.verdicts["beyond noise"]) == (12, 14, 8)
    assert one.verdicts["beyond noise"] == 4
    assert Agreement.total([], 4).numbers() == [("published accuracies", "4"), ("obtained", "0")]
