"""Columns of ranks against numbers worked out by hand, and what ties with the best, in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from support.figure_demo import record, write_counts
from support.pages import squeezed
from support.report_demo import by_seed, cell, changed, report, results_of, table, with_records

from pipeline.spec.table import ResolvedTable

# Correct of 200 samples per client and seed, so one is half a percent. Means of clients in the hard setting: Local
# (62.5 + 65) / 2 = 63.75, FedAvg (65 + 55) / 2 = 60, FedTP 72.5; two seeds tell nobody apart there, and in the easy
# setting FedTP from two that are equal.
HARD = {
    "Local": [[100, 100, 120, 180], [100, 110, 120, 190]],
    "FedAvg": [[90, 110, 130, 190], [90, 110, 130, 110]],
    "FedTP": [[140, 140, 140, 140], [150, 150, 150, 150]],
}
EASY = {"Local": [[160] * 4, [162] * 4], "FedAvg": [[160] * 4, [162] * 4], "FedTP": [[100] * 4, [101] * 4]}
DERIVED: list[dict[str, Any]] = [{"over": []}, {"over": ["partition"]}]


def three(root: Path, lacking: str = "") -> ResolvedTable:
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
    return with_records(root, table(cells, ["method"], ["partition"], metric="clients", derived=DERIVED), records)


def test_by_hand(tmp_path: Path) -> None:
    rows = [("Local",), ("FedAvg",), ("FedTP",)]
    for lacking, easy, of_last in (("", 3, 2.5), ("FedTP-easy-1", None, None)):
        each, mean = results_of(three(tmp_path / lacking, lacking), tmp_path / lacking).derived
        assert [[each.values.get((row, at)) for row in rows] for at in range(2)] == [[2, 2, 2], [1.5, 1.5, easy]]
        assert [mean.values.get((row, 0)) for row in rows] == [1.75, 1.75, of_last]


def test_every_format_and_file_has_them(tmp_path: Path) -> None:
    report(three(tmp_path), tmp_path, tmp_path / "out")
    text = {kind: (tmp_path / f"out/report.{kind}").read_text("utf-8") for kind in ("md", "tex", "html")}
    lines = squeezed(text["md"])
    start = next(at for at, line in enumerate(lines) if line.startswith("| method |"))
    assert lines[start] == "| method | | | rank | | |"
    assert lines[start + 2] == "| | *hard* | *easy* | *hard* | *easy* | *mean rank* |"
    assert lines[start + 4].startswith("| FedAvg |") and lines[start + 4].endswith(" 2 | 1.5 | 1.75 |")
    assert r" & 2 & 1.5 & 1.75 \\" in text["tex"] and r"\cmidrule(lr){4-5}" in text["tex"]
    assert r"\multicolumn{2}{c}{rank}" in text["tex"] and r"{2-3}" not in text["tex"]
    assert '<th class="span" scope="colgroup" colspan="2">rank</th>' in text["html"]
    assert '<td class="derived" data-obtained="1.75" data-published="1.75"' in text["html"]
    frame = pd.read_csv(tmp_path / "out/table.csv").set_index(["method", "partition"])
    assert list(frame.columns[-2:]) == ["rank", "rank_over_partition"]
    assert frame.loc[("FedTP", "easy"), ["rank", "rank_over_partition"]].tolist() == [3, 2.5]


# Seeds are worth ten points, methods a few: by unpaired deviations nothing would differ. B is one less in about
# each seed, C sometimes more.
SEEDS = {"A": [70.0, 80.0, 90.0], "B": [69.5, 79.0, 89.6], "C": [69.9, 80.5, 88.0], "D": [60.0, 70.5, 80.2]}


def one_column(root: Path, rows: dict[str, Any], **changes: Any) -> ResolvedTable:
    return by_seed(root, {method: {"here": values} for method, values in rows.items()}, **changes)


def test_marks_stand_in_every_format(tmp_path: Path) -> None:
    resolved = one_column(tmp_path, SEEDS)
    report(resolved, tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    assert {"| A | **80.00±8.16** |", "| B | 79.37±8.21‡ |", "| D | 70.23±8.25 |"} <= set(lines)
    assert any("‡: does not differ significantly from the best of its column" in line for line in lines)
    assert r"B & 79.37$\pm$8.21$\ddagger$ \\" in (tmp_path / "out/report.tex").read_text("utf-8")
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert '<span class="sd">±8.21</span><span class="tied">‡</span>' in page and page.count('class="tied"') == 2
    assert [cell.tied for cell in results_of(resolved, tmp_path).cells] == [None, True, True, False]


def test_numbers_of_a_trial_are_neither_best_nor_compared(tmp_path: Path) -> None:
    resolved = one_column(tmp_path, SEEDS, profile="smoke")
    cells = resolved.model_dump()["cells"]
    for one, mean in zip(cells, (80.0, 10.0, 79.0, 60.0), strict=True):
        one["published"] = {"mean": mean, "std": None, "quoted": False, "note": ""}
    report(changed(resolved, cells=cells), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    assert {"| A | 80.00±8.16 (**80.00**) |", "| B | 79.37±8.21 (10.00) |", "- cells: 4 trial"} <= set(lines)
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert '"o best"' not in page and "+69.37" not in page


def test_ranks(tmp_path: Path) -> None:
    turned = {"A": SEEDS["D"], "B": SEEDS["B"], "C": [None, None, 5.0], "D": SEEDS["A"]}
    equal = {"A": [80.0], "B": [70.0], "C": [80.001]}  # as printed
    for rows, expected in ((SEEDS, [2, 2, 2, 4]), (equal, [1.5, 3, 1.5]), (turned, [3, 1.5, 1.5])):
        root = tmp_path / str(len(rows["A"]) + expected[0])
        assert list(results_of(one_column(root, rows), root).ranks(("here",)).values()) == expected
