"""`pfl results report`: a page of published numbers from kept results alone, and tables in the README."""

from __future__ import annotations

import re
from dataclasses import replace

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
OTHER = SPEC.replace(", published: table1.csv", "").replace("Table 1", "Tried")
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


def page_of(project: Project) -> str:
    write_report(project.workspace())
    return (project.root / "docs/results.md").read_text(encoding="utf-8")


def rows(markdown: str, first: str) -> list[list[str]]:
    """The cells of the lines of a page that begin with a label."""
    lines = [line for line in markdown.splitlines() if re.match(rf"\| {first} +\|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def last_accuracy(entry: Entry) -> float:
    """Return the accuracy in percent after the last round, pooled over clients, as pages print it."""
    test = entry.measurements["test"]
    return round(100 * sum(test["correct"][-1]) / sum(test["total"]), 2)


def test_the_page_says_what_was_published_and_what_was_obtained(kept: Project) -> None:
    text = "# Mine\n<!-- results: mine/table1 -->\nold\n<!-- end -->\nmore\n"
    readme = kept.write("README.md", text)
    page = page_of(kept)
    assert set(tree(kept.root / "docs")) == {"results.md", "results/mine-table1.svg"}
    (entry,) = [entry for entry in Ledger(kept.root).entries() if entry.run.method == "fedavg"]
    ((_, published, obtained, difference, _),) = [row for row in rows(page, "FedAvg") if row[-1] == "1 of 1"]
    assert (published, float(obtained)) == ("0.50±0.10\\*", last_accuracy(entry))
    assert float(difference) == pytest.approx(last_accuracy(entry) - 0.5)
    assert "- distance in points: 0 within 1, 0 within 2.5, 0 within 5; median" in page
    assert "- FedAvg: it is \\| not so" in page and "- FedPer:" not in page
    assert rows(page, "Mine") == [["Mine", "2", "2", "0", "0", "0", "1"]]
    # The README has the table where it has a place for it.
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert lines[:2] == text.splitlines()[:2] and lines[-2:] == text.splitlines()[-2:] and "old" not in lines
    assert [*map(str.strip, lines[2].strip("|").split("|"))] == ["method", "published", "obtained", "difference"]
    # The same again, also where nothing else is than specs and the ledger.
    before = tree(kept.root / "docs")
    for name in ("artifacts", "docs", "stages"):
        (kept.root / name).rename(kept.root.parent / name)
    assert page_of(kept) == page and tree(kept.root / "docs") == before
    kept.write("README.md", text.replace("mine/table1", "mine/table2"))
    with pytest.raises(UserError, match=r"README.md: a place for the results of 'mine/table2'"):
        write_report(kept.workspace())
    # Nothing kept, and files of somebody's own.
    (kept.root / "README.md").unlink()
    picture = kept.write("docs/results/mine.svg", "my own")
    for path in Ledger(kept.root).files():
        path.unlink()
    assert "- published accuracies: 2\n- obtained: 0\n" in page_of(kept)
    assert picture.read_text("utf-8") == "my own" and not (kept.root / "docs/results/mine-table1.svg").exists()
    own = kept.write("docs/results.md", "# My results\n")
    with pytest.raises(UserError, match=r"docs/results.md: was not written by this command; move it away"):
        write_report(kept.workspace())
    assert own.read_text(encoding="utf-8") == "# My results\n"


def test_tables_without_published_values_are_shown_for_what_no_other_has(kept: Project) -> None:
    kept.write("specs/mine/tried.yaml", OTHER)
    assert "Tried" not in page_of(kept)  # all of it is in Table 1
    kept.write("specs/mine/table1.yaml", SPEC + "grid: {only: {method: FedAvg}}\n")
    kept.write("specs/mine/table1.csv", "".join(PUBLISHED.splitlines(keepends=True)[:2]))
    kept.write("specs/mine/tried.yaml", OTHER + "grid: {axes: {method: {FedBABU: fedbabu}}}\n")
    (entry,) = [entry for entry in Ledger(kept.root).entries() if entry.run.method == "fedper"]
    Ledger(kept.root).write("tiny", [replace(entry, made_by={**entry.made_by, "method.fedper": "0"})], {})
    page = page_of(kept)
    assert "FedBABU" not in page and "- published accuracies: 1\n- obtained: 1\n" in page
    tried = page[page.index("### Tried: Tiny, published") :]
    assert rows(tried, "FedPer") == [["FedPer", f"{last_accuracy(entry):.2f}{EARLIER}"]]
    assert f"{EARLIER}: by an earlier state of the code" in tried and "2 runs" in tried
