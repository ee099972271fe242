"""Columns of ranks against numbers worked out by hand, and in every format."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.figure_demo import record, write_counts
from support.pages import squeezed
from support.report_demo import cell, report, results_of, table, with_records

from pflcore.errors import UserError
from pipeline.report.table.derived import derive
from pipeline.spec.table import ResolvedTable

# Correct of 200 samples per client and seed, so one is half a percent.
HARD = {
    "Local": [[100, 100, 120, 180], [100, 110, 120, 190]],
    "FedAvg": [[90, 110, 130, 190], [90, 110, 130, 110]],
    "FedTP": [[140, 140, 140, 140], [150, 150, 150, 150]],
}
EASY = {
    "Local": [[160] * 4, [162] * 4],
    "FedAvg": [[160] * 4, [162] * 4],
    "FedTP": [[100] * 4, [101] * 4],
}
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
    (one,) = derive(results_of(resolved, root))
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


def test_lower_is_better_turns_ranks_over(tmp_path: Path) -> None:
    ranks = values(three(tmp_path, [RANK], better="lower"), tmp_path)
    assert ranks == {"Local": [(2 + 2.5) / 2], "FedAvg": [(2 + 2.5) / 2], "FedTP": [(2 + 1) / 2]}


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


def test_published_values_and_their_differences_stay_beside(tmp_path: Path) -> None:
    resolved = three(tmp_path, [RANK])
    cells = resolved.model_dump()["cells"]
    cells[0]["published"] = {"mean": 60.0, "std": None, "quoted": False, "note": ""}
    resolved = ResolvedTable.model_validate(resolved.model_dump() | {"cells": cells})
    report(resolved, tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    assert "| method | hard | easy | mean rank |" in lines and "| method | hard | easy |" in lines
    tex = (tmp_path / "out/report.tex").read_text("utf-8")
    assert r" & \published{\textbf{60.00}} &  &  \\" in tex  # the second line of a row has nothing derived


def test_an_axis_called_like_a_derived_column(tmp_path: Path) -> None:
    write_counts(tmp_path, "a", [100] * 4)
    resolved = table([cell({"rank": "A"}, ["a"])], ["rank"], [], derived=[EACH])
    with pytest.raises(UserError, match="an axis cannot be named 'rank', which is a derived column"):
        report(resolved, tmp_path, tmp_path / "out")
