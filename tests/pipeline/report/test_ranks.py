"""Columns of ranks against numbers worked out by hand, and in every format."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from scipy.stats import ttest_rel
from support.claim_demo import by_seed
from support.figure_demo import record, write_counts
from support.pages import Document, squeezed
from support.report_demo import cell, report, results_of, table, with_records

from pipeline.report.statistics import significant
from pipeline.spec.table import ResolvedTable

# Correct of 200 samples per client and seed, so one is half a percent.
HARD = {
    "Local": [[100, 100, 120, 180], [100, 110, 120, 190]],
    "FedAvg": [[90, 110, 130, 190], [90, 110, 130, 110]],
    "FedTP": [[140, 140, 140, 140], [150, 150, 150, 150]],
}
EASY = {"Local": [[160] * 4, [162] * 4], "FedAvg": [[160] * 4, [162] * 4], "FedTP": [[100] * 4, [101] * 4]}
RANK: dict[str, Any] = {"over": ["partition"]}
EACH: dict[str, Any] = {"over": []}


def three(root: Path, derived: list[dict[str, Any]], lacking: str = "", **changes: Any) -> ResolvedTable:
    """Three methods in two settings, two seeds each; the run that is `lacking` has not been made."""
    cells, records = [], {}
    for setting, by_method in {"hard": HARD, "easy": EASY}.items():
        for method, seeds in by_method.items():
            runs = [f"{method}-{setting}-{seed}" for seed in range(2)]
            cells.append(cell({"method": method, "partition": setting}, runs))
            for seed, (run, correct) in enumerate(zip(runs, seeds, strict=True)):
                records[run] = record(method.lower(), seed=seed, clients=4, setting=setting)
                if run != lacking:
                    write_counts(root, run, correct)
    resolved = table(cells, ["method"], ["partition"], **{"metric": "clients", "derived": derived, **changes})
    return with_records(root, resolved, records)


def values(resolved: ResolvedTable, root: Path) -> dict[str, list[float | None]]:
    """By method: the numbers of all derived columns."""
    (one,) = results_of(resolved, root).derived()
    return {row[0]: [one.values.get((row, at)) for at in range(len(one.groups))] for (row,) in zip(_rows(resolved))}


def _rows(resolved: ResolvedTable) -> list[tuple[str]]:
    return [(label,) for label in resolved.labels["method"]]


# Means of clients in percent: Local hard (62.5 + 65) / 2 = 63.75, FedAvg hard (65 + 55) / 2 = 60, FedTP hard 72.5.
# In the hard setting the two seeds tell nobody apart, in the easy one FedTP from two that are equal.
@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        (RANK, {"Local": [(2 + 1.5) / 2], "FedAvg": [(2 + 1.5) / 2], "FedTP": [(2 + 3) / 2]}),
        (EACH, {"Local": [2, 1.5], "FedAvg": [2, 1.5], "FedTP": [2, 3]}),
    ],
)
def test_by_hand(tmp_path: Path, derived: dict[str, Any], expected: dict[str, list[Any]]) -> None:
    assert values(three(tmp_path, [derived]), tmp_path) == expected


def test_what_lacks_a_run_has_no_number_and_no_rank(tmp_path: Path) -> None:
    lacking = "FedTP-easy-1"
    assert values(three(tmp_path, [RANK], lacking), tmp_path) == {"Local": [1.75], "FedAvg": [1.75], "FedTP": [None]}
    assert values(three(tmp_path, [EACH], lacking), tmp_path)["FedTP"] == [2, None]


def test_every_format_has_them(tmp_path: Path) -> None:
    report(three(tmp_path, [EACH, RANK]), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    start = next(at for at, line in enumerate(lines) if line.startswith("| method |"))
    assert lines[start] == "| method | | | rank | | |"
    assert lines[start + 2] == "| | *hard* | *easy* | *hard* | *easy* | *mean rank* |"
    assert lines[start + 4].startswith("| FedAvg |") and lines[start + 4].endswith(" 2 | 1.5 | 1.75 |")
    assert any("Rank: within a column, 1 the best" in line for line in lines)
    tex = (tmp_path / "out/report.tex").read_text("utf-8")
    assert r"\begin{tabular}{l" + "c" * 5 + "}" in tex and r" & 2 & 1.5 & 1.75 \\" in tex
    assert r"\multicolumn{2}{c}{rank}" in tex and r"\cmidrule(lr){4-5}" in tex and r"{2-3}" not in tex
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert '<th class="span" scope="colgroup" colspan="2">rank</th>' in page
    assert '<td class="derived" data-obtained="1.75" data-published="1.75" data-difference="1.75">1.75</td>' in page


def test_files_have_a_column_each(tmp_path: Path) -> None:
    report(three(tmp_path, [EACH, RANK]), tmp_path, tmp_path / "out")
    frame = pq.read_table(tmp_path / "out/table.parquet").to_pandas().set_index(["method", "partition"])
    assert list(frame.columns[-2:]) == ["rank", "rank_over_partition"]
    assert set(frame.loc["FedTP", "rank_over_partition"]) == {2.5} and frame.loc[("FedTP", "easy"), "rank"] == 3
    with (tmp_path / "out/table.csv").open() as file:
        line = next(line for line in csv.DictReader(file) if line["method"] == "Local")
    assert line["rank"] == "2" and line["rank_over_partition"] == "1.75"


# What cannot be told apart from the best of its column: paired over seeds, marked in every format, and in ranks.

# Seeds are worth ten points, methods a few: by unpaired deviations nothing could be told apart.
SEEDS = {
    "A": [70.0, 80.0, 90.0],
    "B": [69.5, 79.0, 89.6],  # one less in about each seed
    "C": [69.9, 80.5, 88.0],  # sometimes more
    "D": [60.0, 70.5, 80.2],
}


def results(root: Path, rows: dict[str, Any], **changes: Any) -> ResolvedTable:
    return by_seed(root, {method: {"here": values} for method, values in rows.items()}, **changes)


def test_the_test_is_paired_and_corrected_for_the_comparisons_of_a_column() -> None:
    best, *others = (dict(enumerate(values)) for values in SEEDS.values())
    ps = [float(ttest_rel(SEEDS["A"], SEEDS[name]).pvalue) for name in "BCD"]
    assert sorted(ps) == [ps[2], ps[0], ps[1]] and ps[2] < 0.05 / 3 and ps[0] > 0.05 / 2
    assert significant([(best, other) for other in others]) == [False, False, True]
    close = {0: 69.5, 1: 79.45, 2: 89.53}  # p is below 5 % and above a third of it
    assert float(ttest_rel(SEEDS["A"], list(close.values())).pvalue) / 2 < 0.05 / 3
    assert significant([(best, close)]) == [True]


def test_seeds_are_paired_by_their_number_and_one_decides_nothing() -> None:
    others = [{2: 79.8, 0: 60.0, 1: 70.1}, {2: 10.0}, {3: 1.0, 4: 2.0}]
    assert significant([({0: 70.0, 1: 80.0, 2: 90.0}, other) for other in others]) == [True, None, None]


def test_marks_stand_in_every_format(tmp_path: Path) -> None:
    report(results(tmp_path, SEEDS), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    deviation = "8.16"  # of 70, 80, 90
    assert f"| A | **80.00±{deviation}** |" in lines
    assert "| B | 79.37±8.21‡ |" in lines and "| D | 70.23±8.25 |" in lines
    words = "‡: not told apart from the best of its column"
    assert any(words in line for line in lines)
    assert r"B & 79.37$\pm$8.21$\ddagger$ \\" in (tmp_path / "out/report.tex").read_text("utf-8")
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert '<span class="sd">±8.21</span><span class="tied">‡</span>' in page and page.count('class="tied"') == 2
    assert words in Document(page).text
    frame = results_of(results(tmp_path, SEEDS), tmp_path).to_arrow().to_pandas().set_index("method")
    assert frame["tied"].to_dict() == {"A": None, "B": True, "C": True, "D": False}


def test_one_seed_marks_nothing(tmp_path: Path) -> None:
    report(results(tmp_path, {"A": [80.0], "B": [79.99]}), tmp_path, tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text("utf-8")
    assert "‡ |" not in text and "**80.00" in text and "- seeds per cell: 1\n" in text


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
    assert "4 trial" in text and "Bold: the best of its column" in text
    assert not any(word in text for word in ("‡ |", "no verdict,", "Obtained minus published"))
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
    assert list(found.ranks(("here",)).values()) == by_seeds
    assert list(found.ranks(("here",), by_seeds=False).values()) == printed
