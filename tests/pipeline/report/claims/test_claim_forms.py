"""Claims on more than two cells: means, ranges, spreads, and differences by client."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.figure_demo import TOTAL, record, study, write_rounds
from support.report_demo import cell, claim, results_of, table, write_metrics

from pipeline.report.claims.claims import Evidence, Judgement, judge_claims
from pipeline.report.claims.form import Pair
from pipeline.report.claims.words import ClaimText, claim_in_words
from pipeline.spec.table import ResolvedTable, TableClaim

Value = tuple[float, float | None] | None
Rows = dict[str, dict[str, Value]]  # method → setting → mean and deviation; None: not run yet


def a_and_b(form: str = "better", **changes: Any) -> TableClaim:
    """A claim for A and against B."""
    return claim({"method": ["A"]}, {"method": ["B"]}, form, **changes)


def within(margin: float, over: str, **changes: Any) -> TableClaim:
    """A claim that cells along an axis are close together."""
    return claim({}, {}, "within", margin=margin, over=[over], **changes)


def judge(resolved: ResolvedTable, root: Path) -> tuple[Judgement, ClaimText]:
    """What becomes of a table's only claim, and its words."""
    (judgement,) = judge_claims(results_of(resolved, root))
    return judgement, claim_in_words(judgement, resolved.decimals)


def obtained(root: Path, rows: Rows, stated: TableClaim) -> tuple[Evidence, str]:
    """A claim on obtained values: what was found, and how it is told."""
    cells = []
    for method, settings in rows.items():
        for setting, value in settings.items():
            run = f"{method}-{setting}"
            cells.append(cell({"method": method, "setting": setting}, [run]))
            if value:
                write_metrics(root, run, *value)
    found, words = judge(table(cells, ["method"], ["setting"], claims=[stated]), root)
    assert found.published is None
    return found.obtained, words.detail


def only(found: Evidence) -> Pair:
    """The one pair that there is."""
    (pair,) = found.judged
    return pair


def test_means_over_an_axis(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": (90.0, 3.0), "y": (60.0, 4.0)}, "B": {"x": (88.0, 0.0), "y": (50.0, 0.0)}}
    found, words = obtained(tmp_path, rows, a_and_b(over=["setting"]))
    assert found.verdict == "holds"
    assert [value.mean for value in only(found).values] == [75.0, 69.0]
    assert (only(found).difference, only(found).noise.size) == (6.0, 2.5)  # √(3² + 4²) / 2
    assert words == (
        "weakest of 1 pair of means over setting: A 75.00±2.50 against B 69.00±0.00, 2 cells each, better by 6.00 "
        "with noise 2.50"
    )
    assert obtained(tmp_path, rows, a_and_b())[0].verdict == "within noise"  # at x alone


def test_means_are_of_cells_that_both_have(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": (90.0, 0.0), "y": (60.0, 0.0), "z": (10.0, 0.0)}, "B": {"x": (88.0, 0.0), "y": (50.0, 0)}}
    found, _ = obtained(tmp_path, rows, a_and_b(over=["setting"]))
    assert (only(found).cells, only(found).difference) == (2, 6.0)
    del rows["B"]["y"], rows["A"]["y"]
    found, _ = obtained(tmp_path, rows, a_and_b(over=["setting"]))
    assert only(found).cells == 1  # a mean of one is a mean
    found, words = obtained(tmp_path, rows, a_and_b("steadier", over=["setting"]))
    assert (found.verdict, words) == ("not yet", "no pair of cells is planned")  # a range of one is none


def test_a_missing_cell_leaves_a_mean_open(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": (90.0, 0.0), "y": None}, "B": {"x": (88.0, 0.0), "y": (50.0, 0.0)}}
    found, words = obtained(tmp_path, rows, a_and_b(over=["setting"]))
    assert (found.verdict, found.pairs, found.lacking) == ("not yet", 1, 1)
    assert words == "none of 1 pair of means over setting can be compared"


@pytest.mark.parametrize(("lowest", "verdict"), [(66.0, "holds"), (64.0, "within noise"), (56.0, "fails")])
def test_the_narrower_range_is_steadier(tmp_path: Path, lowest: float, verdict: str) -> None:
    rows: Rows = {
        "A": {"x": (70.0, 3.0), "y": (lowest, 0.0), "z": (68.0, 9.0)},  # z is at neither end
        "B": {"x": (50.0, 0.0), "y": (59.0, 0.0), "z": (52.0, 0.0)},
    }
    found, words = obtained(tmp_path, rows, a_and_b("steadier", over=["setting"]))
    assert found.verdict == verdict
    pair = only(found)
    assert (pair.difference, pair.noise.size) == (9.0 - (70.0 - lowest), 3.0)
    assert pair.ends == (({"setting": "x"}, {"setting": "y"}), ({"setting": "y"}, {"setting": "x"}))
    sense = "narrower" if pair.difference >= 0 else "wider"
    assert words == (
        f"weakest of 1 pair of ranges over setting: A {70 - lowest:.2f}±3.00 (y to x) against B 9.00±0.00 (x to y), "
        f"3 cells each, {sense} by {abs(pair.difference):.2f} with noise 3.00"
    )


def test_without_axes_it_is_the_spread_that_is_compared(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": (90.0, 0.2), "y": (80.0, 0.5)}, "B": {"x": (99.0, 0.3), "y": (99.0, 0.4)}}
    found, words = obtained(tmp_path, rows, a_and_b("steadier"))
    assert found.verdict == "fails"
    assert [pair.verdict for pair in found.judged] == ["fails", "holds"]
    assert words == "weakest of 2 pairs of spreads: A 0.50 against B 0.40 at y, wider by 0.10"
    rows["B"]["y"] = (99.0, None)
    (tmp_path / "other").mkdir()
    found, _ = obtained(tmp_path / "other", rows, a_and_b("steadier"))
    assert (found.verdict, found.lacking) == ("not yet", 1)  # a run without a spread


@pytest.mark.parametrize(("margin", "verdict"), [(8.1, "holds"), (8.0, "within noise"), (3.0, "within noise")])
def test_a_range_that_is_small(tmp_path: Path, margin: float, verdict: str) -> None:
    rows: Rows = {
        "A": {"x": (70.0, 0.0), "y": (72.0, 0.0), "z": (71.0, 0.0)},
        "B": {"x": (50.0, 3.0), "y": (52.0, 9.0), "z": (53.0, 4.0)},
    }
    found, words = obtained(tmp_path, rows, within(margin, "setting"))
    assert found.verdict == verdict
    assert found.worst is not None
    assert found.worst.labels == {"method": "B"}
    assert (found.worst.difference, found.worst.noise.size) == (3.0, 5.0)  # of x and z
    assert words == (
        f"weakest of 2 ranges over setting: from 50.00±3.00 (x) to 53.00±4.00 (z) at B, 3 cells in all, apart by 3.00 "
        f"with noise 5.00, at most {margin:g}"
    )


def test_a_range_that_is_not(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": (70.0, 0.3), "y": (72.0, 0.4)}}
    assert obtained(tmp_path, rows, within(1.4, "setting"))[0].verdict == "fails"
    assert obtained(tmp_path, rows, within(1.6, "setting"))[0].verdict == "within noise"
    assert obtained(tmp_path, rows, within(1.4, "setting", where={"setting": ["x"]}))[0].pairs == 0


def test_a_range_of_just_that_width_is_no_rounding_error(tmp_path: Path) -> None:
    rows: Rows = {"A": {"x": (80.2, None), "y": (81.2, None)}}  # 81.2 − 80.2 is 1.0000000000000142
    assert obtained(tmp_path, rows, within(1.0, "setting"))[0].verdict == "within noise"


def test_the_published_side_is_judged_alike(tmp_path: Path) -> None:
    values: Rows = {"A": {"x": (70.0, 0.1), "y": (60.0, 0.1)}, "B": {"x": (65.0, 0.1), "y": (64.0, None)}}
    cells = [
        cell({"method": method, "setting": setting}, [f"{method}-{setting}"], value)
        for method, settings in values.items()
        for setting, value in settings.items()
    ]
    steadier, spread = a_and_b("steadier", over=["setting"]), a_and_b("steadier")
    found, words = judge(table(cells, ["method"], ["setting"], claims=[steadier]), tmp_path)
    assert (found.obtained.verdict, found.contradicted_by_paper) == ("not yet", True)
    assert words.published_detail.startswith("weakest of 1 pair of ranges over setting: A 10.00±0.14 (y to x) against")
    assert words.pairs[0].published == ("10.00±0.14", "1.00±0.10", "\N{MINUS SIGN}9.00", "fails")
    found, words = judge(table(cells, ["method"], ["setting"], claims=[spread]), tmp_path)
    assert found.published is not None
    assert found.published.pairs == 1  # y has no printed spread to compare
    cells = [one.model_copy(update={"published": None}) for one in cells]
    assert judge(table(cells, ["method"], ["setting"], claims=[spread]), tmp_path)[0].published is None


def write_clients(root: Path, run: str, correct: list[int]) -> None:
    """A run by the test samples of each client that are classified correctly."""
    write_rounds(root, run, correct)
    accuracies = 100.0 * np.array(correct) / TOTAL
    write_metrics(root, run, float(accuracies.mean()), float(accuracies.std()))


def of_clients(root: Path, seeds: tuple[int, int] = (0, 0)) -> tuple[Judgement, ClaimText]:
    """A, which is a little better than B on each of four clients that are very different."""
    write_clients(root, "a", [20, 84, 122, 182])
    write_clients(root, "b", [18, 80, 120, 180])
    runs = {
        (method, "x"): {run: record(run, clients=4, seed=seed)}
        for method, run, seed in zip("AB", "ab", seeds, strict=True)
    }
    return judge(study(root, runs, metric="clients", claims=[a_and_b()]), root)


def test_the_same_clients_are_compared_one_by_one(tmp_path: Path) -> None:
    found, words = of_clients(tmp_path)
    pair = only(found.obtained)
    differences = [1.0, 2.0, 1.0, 1.0]  # percentage points
    assert pair.difference == pytest.approx(1.25)
    assert pair.noise.size == pytest.approx(2 * np.std(differences, ddof=1) / math.sqrt(4))
    assert (pair.verdict, pair.noise.paired) == ("holds", 4)
    assert words.detail.endswith("better by 1.25 with noise 0.50 (2 standard errors, paired over 4 clients)")
    assert "51.00±29.42" in words.detail  # the spread between clients, beside which 1.25 is nothing


def test_other_clients_are_not(tmp_path: Path) -> None:
    found, words = of_clients(tmp_path, seeds=(0, 1))
    assert only(found.obtained).noise.paired == 0
    assert found.obtained.verdict == "within noise"
    assert words.detail.endswith("(from the spread between clients)")


def test_a_range_is_measured_by_the_same_clients(tmp_path: Path) -> None:
    write_clients(tmp_path, "a", [20, 84, 122, 182])
    write_clients(tmp_path, "b", [18, 80, 120, 180])
    runs = {(method, "x"): {method.lower(): record(method, clients=4)} for method in "AB"}
    found, _ = judge(study(tmp_path, runs, metric="clients", claims=[within(2.0, "method")]), tmp_path)
    assert found.obtained.verdict == "holds"
    assert only(found.obtained).noise.paired == 4


def test_means_pair_each_client_over_all_cells_it_is_in(tmp_path: Path) -> None:
    # What a client gains at x it gains at y, so the two settings are no two observations.
    for setting in "xy":
        write_clients(tmp_path, f"a-{setting}", [20, 84, 122, 182])
        write_clients(tmp_path, f"b-{setting}", [18, 80, 120, 180])
    runs = {(m, s): {f"{m.lower()}-{s}": record(f"{m}{s}", clients=4)} for m in "AB" for s in "xy"}
    claims = [a_and_b(over=["setting"])]
    same, _ = judge(study(tmp_path, runs, metric="clients", claims=claims), tmp_path)
    noise = only(same.obtained).noise
    assert (noise.size, noise.paired) == pytest.approx((0.5, 4))
    # Of two federations they are.
    for run in ("a-y", "b-y"):
        runs[run[0].upper(), "y"][run] = record(run, clients=4, seed=1)
    other, _ = judge(study(tmp_path, runs, metric="clients", claims=claims), tmp_path)
    noise = only(other.obtained).noise
    assert (noise.size, noise.paired) == pytest.approx((math.hypot(0.5, 0.5) / 2, 8))


def test_several_seeds_speak_for_themselves(tmp_path: Path) -> None:
    runs: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for method, correct in (("A", [20, 84, 122, 182]), ("B", [18, 80, 120, 180])):
        for seed in (0, 1):
            write_clients(tmp_path, f"{method}-{seed}", [c + seed for c in correct])
            runs.setdefault((method, "x"), {})[f"{method}-{seed}"] = record(method, clients=4, seed=seed)
    found, _ = judge(study(tmp_path, runs, metric="clients", claims=[a_and_b()]), tmp_path)
    noise = only(found.obtained).noise
    assert (noise.paired, noise.between_clients) == (0, False)
    assert noise.size == pytest.approx(math.hypot(0.25, 0.25))  # the spread between seeds
