"""The critical-difference picture of hand-made tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from support.pages import Document, squeezed
from support.report_demo import cell, report, results_of, table, write_metrics

from pipeline.report.figures import build_sections
from pipeline.spec.table import ResolvedTable


def six(root: Path, columns: int = 6, **changes: Any) -> ResolvedTable:
    """Three methods that all columns rank alike, and one that lacks a number in the last."""
    cells = []
    for method, base in {"Bad_$x$": 50.0, "Good": 70.0, "Fair": 60.0, "Rare": 99.0}.items():
        for column in range(columns):
            run = f"{base}-{column}"
            cells.append(cell({"method": method, "set": f"s{column}"}, [run]))
            if method != "Rare" or column < columns - 1:
                write_metrics(root, run, base + column)
    return table(cells, ["method"], ["set"], **{"figures": ["ranks"], **changes})


def test_mean_ranks_and_groups_in_every_format(tmp_path: Path) -> None:
    report(six(tmp_path), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    start = lines.index("| method | mean rank | group |")
    assert lines[start + 2 : start + 5] == ["| Good | 1.00 | a |", "| Fair | 2.00 | ab |", r"| Bad\_\$x\$ | 3.00 | b |"]
    words = "more than 1.35 apart (critical difference)"
    assert any(words in line and "Friedman's test that all are alike: p = 0.0025." in line for line in lines)
    assert any("Left out, as they lack a number: Rare." in line for line in lines)
    assert words in Document((tmp_path / "out/report.html").read_text("utf-8")).text
    assert r"\includegraphics{figures/ranks.png}" in (tmp_path / "out/report.tex").read_text("utf-8")
    with (tmp_path / "out/figures/ranks.csv").open() as file:
        assert {line["method"]: line["mean_rank"] for line in csv.DictReader(file)} == {
            "Good": "1", "Fair": "2", "Bad_$x$": "3",
        }  # fmt: skip


def test_lower_may_be_better(tmp_path: Path) -> None:
    (section,) = build_sections(results_of(six(tmp_path, better="lower"), tmp_path))
    assert section.table and [row[0] for row in section.table.rows] == ["Bad_$x$", "Fair", "Good"]


@pytest.mark.parametrize("columns", [4, 1])
def test_too_few_columns_are_one_line(tmp_path: Path, columns: int) -> None:
    (section,) = build_sections(results_of(six(tmp_path, columns), tmp_path))
    words = {4: "there are 4 columns here", 1: "there is 1 column here"}[columns]
    assert words in section.text and section.picture is None and section.table is None
