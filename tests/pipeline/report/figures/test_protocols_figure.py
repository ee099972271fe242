"""The same runs under every protocol, on hand-made counts in which the order turns over."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from support.figure_demo import write_counts
from support.pages import Document, squeezed
from support.report_demo import RECORD, cell, claim, report, results_of, table, with_records

from pipeline.report.figures import build_sections
from pipeline.spec.table import ResolvedTable

CLIENTS = 10


def uneven(root: Path, **changes: Any) -> ResolvedTable:
    """Of three seeds: Uneven is at 90 % on nine clients and at 10 % on one, Even is at 80 % on all. A seed adds half a
    percent to all but the worst. In the second column Even is at 5 % and ahead nowhere."""
    cells, records = [], {}
    for setting, even in {"hard": 160, "easy": 10}.items():
        for method in ("Uneven", "Even"):
            runs = [f"{method}-{setting}-{seed}" for seed in range(3)]
            for seed, run in enumerate(runs):
                correct = [180 + seed] * 9 + [20] if method == "Uneven" else [even + seed] * CLIENTS
                write_counts(root, run, correct)
                records[run] = RECORD | {"seed": seed}
            cells.append(cell({"method": method, "setting": setting}, runs))
    resolved = table(cells, ["method"], ["setting"], **{"metric": "clients", "figures": ["protocols"], **changes})
    return with_records(root, resolved, records)


AHEAD = claim({"method": ["Uneven"]}, {"method": ["Even"]}, text="Uneven is ahead.")


def test_a_rank_that_turns_over_is_marked_in_every_format(tmp_path: Path) -> None:
    report(uneven(tmp_path), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    start = lines.index("| setting | method | mean of clients | window | last round | worst tenth |")
    assert lines[start + 2 : start + 8] == [
        # (9 · 90 + 10) / 10 = 82, 82.45 and 82.9; the deviation of three numbers that lie evenly is step · √(2/3)
        "| hard | Uneven | 82.45±0.37 (1) | 82.45±0.37 (1) | 82.45±0.37 (1) | 10.00±0.00 (2↓) |",
        "| | Even | 80.50±0.41 (2) | 80.50±0.41 (2) | 80.50±0.41 (2) | 80.50±0.41 (1↑) |",
        "| easy | Uneven | 82.45±0.37 (1) | 82.45±0.37 (1) | 82.45±0.37 (1) | 10.00±0.00 (1) |",
        "| | Even | 5.50±0.41 (2) | 5.50±0.41 (2) | 5.50±0.41 (2) | 5.50±0.41 (2) |",
        "| mean rank | Uneven | 1 | 1 | 1 | 1.5↓ |",
        "| | Even | 2 | 2 | 2 | 1.5↑ |",
    ]
    words = "Two rows change places in 1 of 2 columns; no row stays the best one in 1: hard."
    assert any(words in line for line in lines)
    assert r"10.00$\pm$0.00 (2$\downarrow$)" in (tmp_path / "out/report.tex").read_text("utf-8")
    document = Document((tmp_path / "out/report.html").read_text("utf-8"))
    assert "80.50±0.41 (1↑)" in document.text and words in document.text
    assert (tmp_path / "out/figures/protocols.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "out/figures/protocols.csv").open() as file:
        ranks = {(line["method"], line["setting"], line["protocol"]): line["rank"] for line in csv.DictReader(file)}
    assert ranks["Even", "hard", "worst_tenth"] == "1" and ranks["Even", "hard", "clients"] == "2"
    assert len(ranks) == 2 * 2 * 4


def test_claims_that_are_decided_otherwise_are_named(tmp_path: Path) -> None:
    resolved = uneven(tmp_path, claims=[AHEAD.model_copy(update={"where": {"setting": ["hard"]}})])
    (section,) = build_sections(results_of(resolved, tmp_path))
    sentence = "Claim “Uneven is ahead.”: holds under mean of clients, window, last round; fails under worst tenth."
    assert section.text.endswith(sentence)


def test_claims_that_no_protocol_changes_are_one_sentence(tmp_path: Path) -> None:
    resolved = uneven(tmp_path, claims=[AHEAD.model_copy(update={"where": {"setting": ["easy"]}})])
    (section,) = build_sections(results_of(resolved, tmp_path))
    assert section.text.endswith("Every claim has the same verdict under all protocols.")


def test_a_protocol_of_some_runs_only_and_cells_without_runs(tmp_path: Path) -> None:
    write_counts(tmp_path, "a", [100] * CLIENTS, best={"mean": 60.0, "std": 0.0, "n": 1})
    write_counts(tmp_path, "b", [120] * CLIENTS)
    cells = [cell({"method": name.upper()}, [name]) for name in ("a", "b", "not-run")]
    (section,) = build_sections(results_of(table(cells, ["method"], [], figures=["protocols"]), tmp_path))
    assert section.table and section.table.header[-2:] == ("worst tenth", "best")
    assert [line[0] for line in section.table.rows] == ["A", "B"]
    assert [line[-1] for line in section.table.rows] == ["60.00 (1↑)", "—"]
    assert "Claim" not in section.text


def test_accuracy_on_validation_samples_is_no_protocol(tmp_path: Path) -> None:
    chosen = {"mean": 60.0, "std": 0.0, "n": 1}
    write_counts(tmp_path, "a", [100] * CLIENTS, validation=chosen, best_by_validation=chosen)
    resolved = table([cell({"method": "A"}, ["a"])], ["method"], [], figures=["protocols"], metric="best_by_validation")
    (section,) = build_sections(results_of(resolved, tmp_path))
    assert section.table and section.table.header[1:] == (
        *("best by validation", "window", "last round", "mean of clients", "worst tenth"),
    )
    assert "trained anew. Best by validation: pooled, after the measured round that is best" in section.text
    assert "last position" not in section.text


def test_nothing_measured_is_one_line(tmp_path: Path) -> None:
    resolved = table([cell({"method": "A"}, ["a"])], ["method"], [], figures=["protocols"])
    (section,) = build_sections(results_of(resolved, tmp_path))
    assert section.text == "No run of this table has been measured yet." and not section.picture
