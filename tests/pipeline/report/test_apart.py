"""What cannot be told apart from the best of its column: paired over seeds, marked in every format, and in ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel
from support.claim_demo import by_seed
from support.pages import Document, squeezed
from support.report_demo import report, results_of, write_metrics

from pipeline.report.figures import build_sections
from pipeline.report.table.apart import tied_with
from pipeline.report.table.ranks import ranks_as_printed, ranks_by_seeds
from pipeline.spec.table import ResolvedTable

# Seeds are worth ten points, methods a few: by unpaired deviations nothing could be told apart.
SEEDS = {
    "A": [70.0, 80.0, 90.0],
    "B": [69.5, 79.0, 89.6],  # one less in about each seed
    "C": [69.9, 80.5, 88.0],  # sometimes more
    "D": [60.0, 70.5, 80.2],
}


ONE_SEED = "Where two cells do not share two seeds, their difference is not judged"


def results(root: Path, rows: dict[str, Any], **changes: Any) -> ResolvedTable:
    return by_seed(root, {method: {"here": values} for method, values in rows.items()}, **changes)


def test_the_test_is_paired_and_corrected_for_the_comparisons_of_a_column() -> None:
    best, *others = (dict(enumerate(values)) for values in SEEDS.values())
    ps = [float(ttest_rel(SEEDS["A"], SEEDS[name]).pvalue) for name in "BCD"]
    assert sorted(ps) == [ps[2], ps[0], ps[1]] and ps[2] < 0.05 / 3 and ps[0] > 0.05 / 2
    assert tied_with(best, others) == [True, True, False]
    close = {0: 69.5, 1: 79.45, 2: 89.53}  # p is below 5 % and above a third of it
    assert float(ttest_rel(SEEDS["A"], list(close.values())).pvalue) / 2 < 0.05 / 3
    assert tied_with(best, [close]) == [False]


def test_a_single_comparison_may_decide_what_three_do_not() -> None:
    best, near = {0: 70.0, 1: 80.0, 2: 90.0}, {0: 69.0, 1: 78.4, 2: 88.8}
    p = float(ttest_rel(list(best.values()), list(near.values())).pvalue)
    assert 0.05 / 3 < p < 0.05
    assert tied_with(best, [near]) == [False]
    wild = [{0: 69.0, 1: 75.0, 2: 92.0}, {0: 73.0, 1: 76.0, 2: 88.0}]
    assert tied_with(best, [near, *wild]) == [True, True, True]


def test_many_comparisons_know_more_of_chance_than_one() -> None:
    best = {0: 70.0, 1: 80.0, 2: 90.0}
    rivals = [
        {seed: value - 0.5 * way for (seed, value), way in zip(best.items(), ways, strict=True)}
        for ways in ((1, -1, 2), (0, 2, -1), (-1, 1, 1))
    ]
    far = {0: 64.0, 1: 70.5, 2: 84.5}
    p = float(ttest_rel(list(best.values()), list(far.values())).pvalue)
    assert p > 0.05 / 4
    assert tied_with(best, [*rivals, far]) == [True, True, True, False]


def test_seeds_are_paired_by_their_number_and_one_decides_nothing() -> None:
    assert tied_with({0: 70.0, 1: 80.0, 2: 90.0}, [{2: 79.8, 0: 60.0, 1: 70.1}, {2: 10.0}, {3: 1.0, 4: 2.0}]) == [
        False,
        None,
        None,
    ]


def test_marks_stand_in_every_format(tmp_path: Path) -> None:
    report(results(tmp_path, SEEDS), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    deviation = "8.16"  # of 70, 80, 90
    assert f"| A | **80.00±{deviation}** |" in lines
    assert "| B | 79.37±8.21‡ |" in lines and "| D | 70.23±8.25 |" in lines
    words = "‡: not told apart from the best of its column"
    assert any(words in line for line in lines)
    assert not any(ONE_SEED in line for line in lines)
    assert r"B & 79.37$\pm$8.21$\ddagger$ \\" in (tmp_path / "out/report.tex").read_text("utf-8")
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert '<span class="sd">±8.21</span><span class="tied">‡</span>' in page and page.count('class="tied"') == 2
    assert words in Document(page).text
    frame = results_of(results(tmp_path, SEEDS), tmp_path).to_arrow().to_pandas().set_index("method")
    assert frame["tied"].to_dict() == {"A": None, "B": True, "C": True, "D": False}


def test_other_protocols_have_marks_of_their_own(tmp_path: Path) -> None:
    resolved = results(tmp_path, SEEDS, figures=["protocols"])
    write_metrics(tmp_path, "B-here-1", 88.0)  # ahead in one seed by far
    (section,) = build_sections(results_of(resolved, tmp_path))
    assert section.table and [row[:2] for row in section.table.rows] == [
        ("A", "80.00±8.16‡ (2)"),
        ("B", "82.37±9.12 (1)"),
        ("C", "79.47±7.43‡ (3)"),
        ("D", "70.23±8.25 (4)"),
    ]
    assert "‡: cannot be told apart from the best of its column under the protocol, by seeds." in section.text


def test_one_seed_marks_nothing_and_the_legend_says_so(tmp_path: Path) -> None:
    report(results(tmp_path, {"A": [80.0], "B": [79.99]}), tmp_path, tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text("utf-8")
    assert ONE_SEED in text and "‡" not in text and "**80.00" in text and "- seeds per cell: 1\n" in text


def test_the_lowest_may_be_the_best(tmp_path: Path) -> None:
    cells = results_of(results(tmp_path, SEEDS, better="lower"), tmp_path).cells
    assert [cell.tied for cell in cells] == [False, False, False, None]


def test_numbers_of_a_trial_are_neither_best_nor_compared(tmp_path: Path) -> None:
    resolved = results(tmp_path, SEEDS, profile="smoke")
    cells = resolved.model_dump()["cells"]
    for one, mean in zip(cells, (80.0, 10.0, 79.0, 60.0), strict=True):
        one["published"] = {"mean": mean, "std": None, "quoted": False, "note": ""}
    resolved = ResolvedTable.model_validate(resolved.model_dump() | {"cells": cells})
    report(resolved, tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    assert "| A | 80.00±8.16 (**80.00**) |" in lines and "| B | 79.37±8.21 (10.00) |" in lines
    text = "\n".join(lines)
    assert "4 trial" in text and "Bold: the highest of its column" in text
    assert not any(word in text for word in ("‡", "no verdict,", "are obtained", "Obtained minus published"))
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert '"o best"' not in page and "+69.37" not in page


@pytest.mark.parametrize(
    ("rows", "by_seeds", "printed"),
    [
        (SEEDS, [2, 2, 2, 4], [1, 3, 2, 4]),
        ({"A": [80.0], "B": [70.0], "C": [80.001]}, [1.5, 3, 1.5], [1.5, 3, 1.5]),
        ({"A": [50.0, 60.0], "B": [50.0, 60.0], "C": [50.0, 60.0]}, [2, 2, 2], [2, 2, 2]),
        ({"A": SEEDS["D"], "B": SEEDS["B"], "C": [None, None, 5.0], "D": SEEDS["A"]}, [3, 1.5, 1.5], [3, 2, 1]),
    ],
)
def test_ranks(tmp_path: Path, rows: dict[str, Any], by_seeds: list[float], printed: list[float]) -> None:
    found = results_of(results(tmp_path, rows), tmp_path)
    assert list(ranks_by_seeds(found, ("here",)).values()) == by_seeds
    assert list(ranks_as_printed(found, ("here",)).values()) == printed
