"""`pfl results report`: a page of published numbers from kept results alone, and tables in the README."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.project import Project, tree

from pflcore.errors import UserError
from pipeline.ledger import Entry, Ledger
from pipeline.results.keep import keep
from pipeline.results.report import EARLIER, write_report

SPEC = """\
extends: ../tiny.yaml
title: Tiny, published
paper: {name: Mine, citation: Somebody 2020, table: Table 1}
table: {rows: [method], columns: [], metric: final, published: table1.csv}
"""
PUBLISHED = """\
method,mean,std,quoted,note,explained
FedAvg,0.5,0.1,yes,,it is | not so
FedPer,0.5,0.1,,,
"""


@pytest.fixture
def kept(reproduced: Project) -> Project:
    keep(reproduced.workspace(), "tiny")
    reproduced.write("specs/mine/table1.yaml", SPEC)
    reproduced.write("specs/mine/table1.csv", PUBLISHED)
    return reproduced


def rows(markdown: str, first: str) -> list[list[str]]:
    """The cells of the lines of a page that begin with a label."""
    lines = [line for line in markdown.splitlines() if re.match(rf"\| {first} +\|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def last_accuracy(entry: Entry) -> float:
    """Return the accuracy in percent after the last round, pooled over clients, as pages print it."""
    test = entry.measurements["test"]
    return round(100 * sum(test["correct"][-1]) / sum(test["total"]), 2)


def with_an_earlier_method(kept: Project) -> Entry:
    """Let the kept run of FedPer be of another version of it."""
    (entry,) = [entry for entry in Ledger(kept.root).entries() if entry.run.method == "fedper"]
    entry = replace(entry, made_by={**entry.made_by, "method.fedper": "0"})
    Ledger(kept.root).write("tiny", [entry], {})
    return entry


def test_the_page_says_what_was_published_and_what_was_obtained(kept: Project) -> None:
    write_report(kept.workspace())
    assert set(tree(kept.root / "docs")) == {"results.md", "results/mine-table1.svg"}
    page = (kept.root / "docs/results.md").read_text(encoding="utf-8")
    accuracy = {entry.run.method: last_accuracy(entry) for entry in Ledger(kept.root).entries()}
    ((label, published, obtained, difference, runs),) = [row for row in rows(page, "FedAvg") if row[-1] == "1 of 1"]
    assert (label, published, runs) == ("FedAvg", "0.50±0.10\\*", "1 of 1")
    assert float(obtained) == accuracy["fedavg"]
    assert float(difference) == pytest.approx(accuracy["fedavg"] - 0.5)
    assert "- distance in points: 0 within 1, 0 within 2.5, 0 within 5; median" in page
    assert "- verdicts: 2 with fewer seeds" in page
    assert "- FedAvg: it is \\| not so" in page and "- FedPer:" not in page
    assert rows(page, "Mine") == [["Mine", "2", "2", "0", "0", "0", "1"]]
    # The same again, also where nothing else is than specs and the ledger.
    before = tree(kept.root / "docs")
    for name in ("artifacts", "docs", "stages"):
        (kept.root / name).rename(kept.root.parent / name)
    write_report(kept.workspace())
    assert tree(kept.root / "docs") == before


def test_a_readme_gets_the_tables_that_it_has_a_place_for(kept: Project) -> None:
    text = "# Mine\n<!-- results: mine/table1 -->\nold\n<!-- end -->\nmore\n"
    readme = kept.write("README.md", text)
    write_report(kept.workspace())
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert lines[:2] == text.splitlines()[:2] and lines[-2:] == text.splitlines()[-2:] and "old" not in lines
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == [
        "method",
        "published",
        "obtained",
        "difference",
    ]
    assert rows("\n".join(lines), "FedPer")[0][1] == "0.50±0.10"
    kept.write("README.md", text.replace("mine/table1", "mine/table2"))
    with pytest.raises(UserError, match=r"README.md: a place for the results of 'mine/table2'"):
        write_report(kept.workspace())
    assert Path(kept.root / "README.md").read_text(encoding="utf-8") == text.replace("mine/table1", "mine/table2")


def test_tables_without_published_values_are_shown_for_what_no_other_has(kept: Project) -> None:
    kept.write("specs/mine/tried.yaml", SPEC.replace(", published: table1.csv", "").replace("Table 1", "Tried"))
    write_report(kept.workspace())
    assert "Tried" not in (kept.root / "docs/results.md").read_text(encoding="utf-8")  # all of it is in Table 1
    kept.write("specs/mine/table1.yaml", SPEC + "grid: {only: {method: FedAvg}}\n")
    kept.write("specs/mine/table1.csv", "".join(PUBLISHED.splitlines(keepends=True)[:2]))
    extra = SPEC.replace(", published: table1.csv", "").replace("Table 1", "Tried")
    kept.write("specs/mine/tried.yaml", extra + "grid: {axes: {method: {FedBABU: fedbabu}}}\n")
    entry = with_an_earlier_method(kept)
    write_report(kept.workspace())
    page = (kept.root / "docs/results.md").read_text(encoding="utf-8")
    assert "FedBABU" not in page  # of which nothing is kept
    assert "- published accuracies: 1\n- obtained: 1\n" in page
    tried = page[page.index("### Tried: Tiny, published") :]
    assert rows(tried, "FedPer") == [["FedPer", f"{last_accuracy(entry):.2f}{EARLIER}"]]
    assert f"{EARLIER}: by an earlier state of the code" in tried
    assert "2 runs" in tried and "- published accuracies" not in tried


def test_what_is_somebodys_own_is_left_alone(kept: Project) -> None:
    picture = kept.write("docs/results/mine.svg", "my own")
    write_report(kept.workspace())
    assert picture.read_text(encoding="utf-8") == "my own"
    (drawn,) = kept.root.glob("docs/results/mine-table1.svg")
    for path in Ledger(kept.root).files():
        path.unlink()
    write_report(kept.workspace())
    assert not drawn.exists() and picture.exists()
    page = kept.write("docs/results.md", "# My results\n")
    with pytest.raises(UserError, match=r"docs/results.md: was not written by this command; move it away"):
        write_report(kept.workspace())
    assert page.read_text(encoding="utf-8") == "# My results\n"


def test_without_anything_kept_the_page_says_so(reproduced: Project) -> None:
    reproduced.write("specs/mine/table1.yaml", SPEC)
    reproduced.write("specs/mine/table1.csv", PUBLISHED)
    write_report(reproduced.workspace())
    page = (reproduced.root / "docs/results.md").read_text(encoding="utf-8")
    assert "- published accuracies: 2\n- obtained: 0\n" in page
    assert rows(page, "Mine") == [["Mine", "2", "0", "0", "0", "0", "0"]]
