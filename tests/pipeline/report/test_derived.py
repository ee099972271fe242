"""Derived columns against numbers worked out by hand, and in every format."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.figure_demo import record, write_counts
from support.pages import Document, squeezed
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
LESS = {"show": "difference", "than": {"method": "Local"}, "over": []}
WORSE = {"show": "share_worse", "than": {"method": "Local"}, "over": []}
ALL: list[dict[str, Any]] = [
    {"show": "mean", "than": {}, "over": ["partition"]},
    LESS,
    {"show": "rank", "than": {}, "over": ["partition"]},
    {"show": "worst_tenth", "than": {}, "over": []},
    {"show": "spread", "than": {}, "over": ["partition"]},
    WORSE,
]


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
@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        (ALL[0], {"Local": [72.125], "FedAvg": [70.25], "FedTP": [61.375]}),
        (LESS, {"Local": [None, None], "FedAvg": [-3.75, 0.0], "FedTP": [8.75, -30.25]}),
        (LESS | {"over": ["partition"]}, {"Local": [None], "FedAvg": [-1.875], "FedTP": [-10.75]}),
        # In the hard setting the two seeds tell nobody apart, in the easy one FedTP from two that are equal.
        (ALL[2], {"Local": [(2 + 1.5) / 2], "FedAvg": [(2 + 1.5) / 2], "FedTP": [(2 + 3) / 2]}),
        (ALL[3], {"Local": [50.0, 80.5], "FedAvg": [45.0, 80.5], "FedTP": [72.5, 50.25]}),
        # Local hard, seed 0: 50 50 60 90 deviate by √(12.5² · 2 + 2.5² + 27.5²) / 2 from 62.5.
        (ALL[4], {"Local": [pytest.approx((16.393596 + 17.677670) / 4)], "FedAvg": [None], "FedTP": [0.0]}),
        # FedAvg hard: the first client in both seeds, and the last one in the second, of 8. A tie is not worse.
        (WORSE, {"Local": [None, None], "FedAvg": [37.5, 0.0], "FedTP": [25.0, 100.0]}),
    ],
)
def test_by_hand(tmp_path: Path, derived: dict[str, Any], expected: dict[str, list[Any]]) -> None:
    found = values(three(tmp_path, [derived]), tmp_path)
    if derived["show"] == "spread":
        expected["FedAvg"] = [pytest.approx((18.708287 + 7.071068) / 4)]  # 45 55 65 95 and 45 55 65 55
    assert found == expected


def test_what_lacks_a_run_has_no_number_and_no_rank(tmp_path: Path) -> None:
    lacking = "FedTP-easy-1"
    assert values(three(tmp_path, [ALL[0]], lacking), tmp_path)["FedTP"] == [None]
    assert values(three(tmp_path, [ALL[2]], lacking), tmp_path) == {"Local": [1.75], "FedAvg": [1.75], "FedTP": [None]}
    assert values(three(tmp_path, [WORSE], lacking), tmp_path)["FedTP"] == [25.0, None]


def test_lower_is_better_turns_ranks_over(tmp_path: Path) -> None:
    ranks = values(three(tmp_path, [ALL[2]], better="lower"), tmp_path)
    assert ranks == {"Local": [(2 + 2.5) / 2], "FedAvg": [(2 + 2.5) / 2], "FedTP": [(2 + 1) / 2]}


def test_rows_of_several_axes_are_compared_along_the_named_one(tmp_path: Path) -> None:
    cells = []
    for backbone, means in {"ViT": (90, 100), "ConvNet": (20, 60)}.items():
        for method, correct in zip(("Local", "FedTP"), means, strict=True):
            run = f"{backbone}-{method}"
            write_counts(tmp_path, run, [correct] * 4)
            cells.append(cell({"backbone": backbone, "method": method}, [run]))
    resolved = table(cells, ["backbone", "method"], [], derived=[LESS], metric="clients")
    (one,) = derive(results_of(resolved, tmp_path))
    assert one.values == {(("ViT", "FedTP"), 0): 5.0, (("ConvNet", "FedTP"), 0): 20.0}


def test_every_format_has_them(tmp_path: Path) -> None:
    report(three(tmp_path, ALL), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    assert "- Mean: of the row's numbers." in lines
    assert "\\item Mean: of the row's numbers.\n" in (tmp_path / "out/report.tex").read_text("utf-8")
    assert "{\\shortstack{\\strut mean spread \\\\ of clients}}" in (tmp_path / "out/report.tex").read_text("utf-8")
    assert "<li>Mean: of the row&#39;s numbers.</li>" in (tmp_path / "out/report.html").read_text("utf-8")
    start = next(at for at, line in enumerate(lines) if line.startswith("| method |"))
    assert lines[start] == "| method | | | | less Local | | | worst tenth | | | worse than Local (%) | |"
    assert lines[start + 2] == (
        "| | *hard* | *easy* | *mean* | *hard* | *easy* | *mean rank* | *hard* | *easy* | *mean spread of clients* |"
        " *hard* | *easy* |"
    )
    numbers = "70.25 | −3.75 | +0.00 | 1.75 | 45.00 | 80.50 | 6.44 | 37.5 | 0.0 |"
    assert lines[start + 4].startswith("| FedAvg |") and lines[start + 4].endswith(numbers)
    assert any("Less Local: the number less that of Local, in points." in line for line in lines)
    tex = (tmp_path / "out/report.tex").read_text("utf-8")
    assert r"\begin{tabular}{l" + "c" * 11 + "}" in tex
    assert r"70.25 & $-$3.75 & +0.00 & 1.75 & 45.00 & 80.50 & 6.44 & 37.5 & 0.0 \\" in tex
    assert r"\multicolumn{2}{c}{less Local}" in tex and r"\cmidrule(lr){5-6}" in tex and r"{2-3}" not in tex
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert '<th class="span" scope="colgroup" colspan="2">less Local</th>' in page
    assert '<td class="derived" data-obtained="-3.75" data-published="-3.75" data-difference="-3.75">−3.75</td>' in page
    assert "Mean spread of clients: standard deviation over the clients" in Document(page).text


def test_files_have_a_column_each(tmp_path: Path) -> None:
    report(three(tmp_path, ALL), tmp_path, tmp_path / "out")
    names = [
        "mean_over_partition", "difference_to_Local", "rank_over_partition", "worst_tenth", "spread_over_partition",
        "share_worse_than_Local",
    ]  # fmt: skip
    frame = pq.read_table(tmp_path / "out/table.parquet").to_pandas().set_index(["method", "partition"])
    assert list(frame.columns[-6:]) == names
    assert frame.loc[("FedAvg", "hard"), "difference_to_Local"] == pytest.approx(-3.75)
    assert frame.loc[("FedAvg", "easy"), "difference_to_Local"] == 0.0
    assert set(frame.loc["FedTP", "mean_over_partition"]) == {61.375}
    with (tmp_path / "out/table.csv").open() as file:
        line = next(line for line in csv.DictReader(file) if line["method"] == "Local")
    assert line["difference_to_Local"] == "" and line["rank_over_partition"] == "1.75"


def test_published_values_and_their_differences_stay_beside(tmp_path: Path) -> None:
    resolved = three(tmp_path, [LESS | {"over": ["partition"]}])
    cells = resolved.model_dump()["cells"]
    cells[0]["published"] = {"mean": 60.0, "std": None, "quoted": False, "note": ""}
    resolved = ResolvedTable.model_validate(resolved.model_dump() | {"cells": cells})
    report(resolved, tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    assert "| method | hard | easy | mean less Local |" in lines and "| method | hard | easy |" in lines
    tex = (tmp_path / "out/report.tex").read_text("utf-8")
    assert r" & \published{\textbf{60.00}} &  &  \\" in tex  # the second line of a row has nothing derived


def test_an_axis_called_like_a_derived_column(tmp_path: Path) -> None:
    write_counts(tmp_path, "a", [100] * 4)
    entries = [{"show": "worst_tenth", "than": {}, "over": []}]
    resolved = table([cell({"worst_tenth": "A"}, ["a"])], ["worst_tenth"], [], derived=entries)
    with pytest.raises(UserError, match="an axis cannot be named 'worst_tenth', which is a derived column"):
        report(resolved, tmp_path, tmp_path / "out")
