"""Claims on more than two cells: means, ranges, spreads; and what clients say of a single seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.claim_demo import Printed, Rows, a_and_b, by_seed, judge, within
from support.figure_demo import TOTAL, record, study, write_rounds
from support.report_demo import cell, table, write_metrics

from pipeline.report.claims.claims import Evidence, Judgement
from pipeline.report.claims.form import Pair
from pipeline.spec.table import TableClaim


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
    assert (pair.cells, pair.chance.seeds) == (2, 3)
    assert pair.chance.p == pytest.approx(stats.ttest_1samp([2.0, 2.0, 2.1], 0.0).pvalue)
    assert (*sides(printed), printed[0]["cells"]) == ("70.37±2.31", "68.33±2.36", "2")
    assert obtained(tmp_path, rows, a_and_b())[0].verdict == "within noise"  # of x and y alone


def test_means_are_of_cells_that_both_have(tmp_path: Path) -> None:
    rows: dict[str, dict[str, list[float]]] = {
        "A": {"x": [90.0, 91.0], "y": [60.0, 61.0], "z": [10.0, 11.0]},
        "B": {"x": [88.0, 89.0], "y": [50.0, 51.5]},
    }
    found, _ = obtained(tmp_path, rows, a_and_b(over=["setting"]))
    assert (only(found).cells, only(found).difference) == (2, pytest.approx(5.875))
    del rows["B"]["y"], rows["A"]["y"]
    found, _ = obtained(tmp_path, rows, a_and_b(over=["setting"]))
    assert only(found).cells == 1  # a mean of one is a mean
    found, printed = obtained(tmp_path, rows, a_and_b("steadier", over=["setting"]))
    assert (found.verdict, found.pairs, printed) == ("not yet", 0, [])  # a range of one is none


def test_a_missing_cell_leaves_a_mean_open(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [90.0, 91.0], "y": [None, None]}, "B": {"x": [88.0, 89.0], "y": [50.0, 51.0]}}
    found, printed = obtained(tmp_path, rows, a_and_b(over=["setting"]))
    assert (found.verdict, found.pairs, found.lacking) == ("not yet", 1, 1)
    assert printed == []


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
    assert pair.difference == pytest.approx(9.0 - (70.0 - lowest))
    assert pair.chance.p == pytest.approx(by_hand.pvalue)
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
    assert [pair.chance.p for pair in found.judged] == pytest.approx([p, p])
    assert (*sides(printed), printed[0]["at"]) == (f"{wild.std():.2f}", f"{calm.std():.2f}", "y")
    few: Rows = {"A": {"x": [80.0, 80.1]}, "B": {"x": [70.0, 90.0]}}
    found, printed = obtained(tmp_path / "few", few, a_and_b("steadier"))
    assert (found.verdict, only(found).difference) == ("within noise", pytest.approx(9.95))


def test_the_spread_of_a_single_run_decides_nothing(tmp_path: Path) -> None:
    for run, std in {"a": 0.2, "b": 9.0}.items():
        write_metrics(tmp_path, run, 90.0, std)
    cells = [cell({"method": run.upper()}, [run]) for run in "ab"]
    found, printed = judge(table(cells, ["method"], [], claims=[a_and_b("steadier")]), tmp_path)
    assert found.obtained.verdict == "one seed: undecided"
    assert (*sides(printed), printed[0]["difference"], printed[0]["seeds"]) == ("0.20", "9.00", "+8.80", "1")
    write_metrics(tmp_path, "b", 90.0, None)
    found, _ = judge(table(cells, ["method"], [], claims=[a_and_b("steadier")]), tmp_path)
    assert (found.obtained.verdict, found.obtained.lacking) == ("not yet", 1)  # a run without a spread


@pytest.mark.parametrize(("margin", "verdict"), [(6.0, "holds"), (5.4, "within noise"), (2.5, "within noise")])
def test_a_range_that_is_small(tmp_path: Path, margin: float, verdict: str) -> None:
    rows: Rows = {"A": {"x": [70.0, 70.0, 70.0], "y": [72.0, 73.0, 74.0], "z": [71.0, 71.1, 71.0]}}
    found, printed = obtained(tmp_path, rows, within(margin, "setting"))
    assert (found.verdict, only(found).difference) == (verdict, pytest.approx(3.0))
    assert sides(printed) == ("73.00±0.82 (y)", "70.00±0.00 (x)")
    names = ("compared", "at", "difference", "margin", "cells", "95 % interval", "detectable")
    assert [printed[0][name] for name in names] == [
        "highest and lowest over setting", "A", "+3.00", f"{margin:g}", "3", "+0.52 to +5.48", "3.26",
    ]  # fmt: skip


def test_a_range_is_small_when_any_two_of_its_cells_are_close(tmp_path: Path) -> None:
    # The ends are 1 apart for sure; but y, between them, may be anywhere.
    rows: Rows = {"A": {"x": [70.0, 70.0, 70.1], "y": [66.5, 70.5, 74.5], "z": [71.0, 71.0, 71.0]}}
    assert obtained(tmp_path, rows, within(3.0, "setting"))[0].verdict == "within noise"
    sure: Rows = {"A": {**rows["A"], "y": [70.5, 70.6, 70.5]}}
    assert obtained(tmp_path / "b", sure, within(3.0, "setting"))[0].verdict == "holds"


def test_the_ends_of_a_range_are_picked_after_the_fact(tmp_path: Path) -> None:
    rows: dict[str, dict[str, list[float]]] = {"A": {"x": [72.0, 72.4, 72.8], "y": [70.0, 70.0, 70.0]}}
    found, _ = obtained(tmp_path, rows, within(1.0, "setting"))
    assert found.verdict == "fails"  # apart by 2.4, p = 0.026 against 1
    rows["A"] |= {"z": [71.0, 71.0, 71.0]}
    found, _ = obtained(tmp_path / "b", rows, within(1.0, "setting"))
    assert found.verdict == "within noise"  # of three pairs the widest
    assert only(found).chance.p == pytest.approx(3 * stats.ttest_1samp([1.0, 1.4, 1.8], 0.0).pvalue)


def test_a_range_of_just_that_width_is_no_rounding_error(tmp_path: Path) -> None:
    cells = [cell({"method": "A", "setting": s}, [], (mean, None)) for s, mean in {"x": 80.2, "y": 81.2}.items()]
    found, _ = judge(table(cells, ["method"], ["setting"], claims=[within(1.0, "setting")]), tmp_path)
    assert found.published and found.published.verdict == "within noise"  # 81.2 − 80.2 is 1.0000000000000142


def test_equal_cells_are_two_ends(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": [80.0, 81.0], "y": [80.0, 81.0]}}
    found, printed = obtained(tmp_path, rows, within(1.0, "setting"))
    assert sides(printed) == ("80.50±0.50 (x)", "80.50±0.50 (y)")
    assert found.verdict == "within noise"


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
    assert pair.difference == pytest.approx(1.25)
    assert pair.chance.clients and pair.chance.clients[0] == 4
    _, low, high = pair.chance.clients
    assert 1.0 <= low < 1.25 < high <= 2.0  # of 1, 2, 1, 1
    assert printed[0]["95 % interval"] == f"+{low:.2f} to +{high:.2f} (4 clients)" and printed[0]["seeds"] == "1"


@pytest.mark.parametrize(("metric", "clients"), [("final", 4), ("clients", 5)])
def test_clients_that_do_not_make_the_number_are_not_told(tmp_path: Path, metric: str, clients: int) -> None:
    found, printed = of_clients(tmp_path, metric, clients)
    assert only(found.obtained).chance.clients is None
    assert printed[0]["difference"] == "+1.25" and "95 % interval" not in printed[0]


def test_over_an_axis_each_client_counts_once(tmp_path: Path) -> None:
    for setting, shift in {"x": 0, "y": 4}.items():
        write_clients(tmp_path, f"a-{setting}", [20 + shift, 84, 122, 182])
        write_clients(tmp_path, f"b-{setting}", [18, 80, 120, 180])
    runs = {(m, s): {f"{m.lower()}-{s}": record(f"{m}{s}", clients=4)} for m in "AB" for s in "xy"}
    found, _ = judge(study(tmp_path, runs, metric="clients", claims=[a_and_b(over=["setting"])]), tmp_path)
    pair = only(found.obtained)
    assert pair.chance.clients and pair.chance.clients[0] == 4
    assert pair.difference == pytest.approx(1.5)
    assert 1.0 <= pair.chance.clients[1] < 1.5 < pair.chance.clients[2] <= 2.0


def test_several_seeds_speak_for_themselves(tmp_path: Path) -> None:
    runs: dict[tuple[str, str], dict[str, dict[str, object]]] = {}
    for method, correct in (("A", [20, 84, 122, 182]), ("B", [18, 80, 120, 180])):
        for seed in (0, 1):
            write_clients(tmp_path, f"{method}-{seed}", [c + seed * (1 + (method == "A")) for c in correct])
            runs.setdefault((method, "x"), {})[f"{method}-{seed}"] = record(method, clients=4, seed=seed)
    found, _ = judge(study(tmp_path, runs, metric="clients", claims=[a_and_b()]), tmp_path)
    chance = only(found.obtained).chance
    assert (chance.seeds, chance.clients) == (2, None)
    assert chance.p == pytest.approx(stats.ttest_1samp([1.25, 1.75], 0.0).pvalue)
