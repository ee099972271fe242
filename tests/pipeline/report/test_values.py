"""Figures of a table's own numbers: what lies where, what is left out, and what a box shows."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.pages import squeezed
from support.report_demo import cell, changed, results_of, table, write_metrics, write_run
from support.report_demo import report as write_report

from pipeline.report.drawing.sections import Section
from pipeline.report.figures import build_sections
from pipeline.spec.table import ResolvedTable

Axes = dict[str, list[str]]

METHODS, DATASETS = ["FedAvg-T", "FedPer-T", "FedTP"], ["CIFAR-10", "CIFAR-100"]
RATES = ["0.05", "0.1", "0.15", "0.2", "0.25"]  # FedTP, figure 11


def make(rows: Axes, columns: Axes, *, published: bool = False, seeds: int = 1, **changes: Any) -> ResolvedTable:
    """A table of all combinations of labels; the runs of the first cell are a0, a1, …, of the second b0, b1, …"""
    axes = {**rows, **columns}
    cells = []
    for index, labels in enumerate(itertools.product(*axes.values())):
        runs = [f"{chr(ord('a') + index)}{seed}" for seed in range(seeds)]
        named = dict(zip(axes, labels, strict=True))
        cells.append(cell(named, runs, (70.0 + index, 0.5) if published else None))
    return table(cells, list(rows), list(columns), **changes)


def filled(root: Path, resolved: ResolvedTable) -> ResolvedTable:
    """The table with a number for each of its runs, which differ."""
    for index, run in enumerate(resolved.runs):
        write_metrics(root, run, 60.0 + index, 0.25)
    return resolved


def drawn(root: Path, resolved: ResolvedTable, figure: str = "values") -> tuple[Figure, Section]:
    """The picture of a figure as matplotlib has it, and its section."""
    *_, section = build_sections(results_of(changed(resolved, figures=[figure]), root))
    assert section.picture
    return section.picture.figure, section


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def report(root: Path, resolved: ResolvedTable, *figures: str) -> tuple[str, Path]:
    """The report in Markdown, blanks squeezed, and its folder."""
    write_report(changed(resolved, figures=list(figures)), root, root / "out")
    return "\n".join(squeezed((root / "out/report.md").read_text(encoding="utf-8"))), root / "out"


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    ("rows", "columns", "axis", "series", "panels"),
    [
        # FedTP: figures 10 and 11, 7, and the older version's 10.
        ({"method": METHODS}, {"rate": RATES}, "rate", METHODS, [""]),
        ({"method": METHODS}, {"dataset": DATASETS, "part": ["P", "D"]}, "part", METHODS, DATASETS),
        ({"embedding": ["13", "32", "64"]}, {"part": ["P", "D"]}, "embedding", [""], ["P", "D"]),
        # FedOFA: figures 3 and 4.
        ({"heads": ["1", "2"]}, {"dataset": DATASETS, "kind": ["A", "B"]}, "heads", ["A", "B"], DATASETS),
        ({"mix": ["0.0", "0.5", "1.0"]}, {}, "mix", [""], [""]),
        # pFedLA: figure 4(a).
        ({"method": ["FedBN"], "attention": ["without", "SE"]}, {}, "attention", ["FedBN"], [""]),
        # Numbers go before names, of columns before those of rows; one number, infinity or a repetition is no scale.
        ({"depth": ["1", "2"]}, {"dim": ["3", "4"], "part": ["P", "D"]}, "dim", ["depth = 1", "depth = 2"], ["P", "D"]),
        ({"depth": ["1", "2"], "method": METHODS}, {"dim": ["8"]}, "depth", METHODS, ["dim = 8"]),
        ({"method": METHODS}, {"mu": ["0", "inf"]}, "mu", METHODS, [""]),
        ({"method": METHODS}, {"mu": ["1", "1.0"]}, "mu", METHODS, [""]),
        ({"method": METHODS}, {"dataset": ["CIFAR-10"]}, "method", [""], ["CIFAR-10"]),
        ({}, {}, "", [""], [""]),
    ],
)  # fmt: skip
def test_what_runs_to_the_right(
    tmp_path: Path, rows: Axes, columns: Axes, axis: str, series: list[str], panels: list[str]
) -> None:
    figure, _ = drawn(tmp_path, filled(tmp_path, make(rows, columns)))
    labels = {**rows, **columns}.get(axis, [""])
    assert [text.get_text().rpartition(" = ")[2] for text in figure.axes[0].get_xticklabels()] == labels
    assert legend(figure) == [name for name in series if name]
    assert [axes.get_title() for axes in figure.axes] == panels
    marks = [len(container[0].get_xdata()) for axes in figure.axes for container in axes.containers]
    assert sum(marks) == np.prod([len(x) for x in {**rows, **columns}.values()])


@pytest.mark.parametrize(
    ("labels", "at"),
    [
        (RATES, [0.05, 0.1, 0.15, 0.2, 0.25]),
        (["0", "20", "5"], [0, 5, 20]),  # in their order, whatever that of the spec
        (["0.0", "0.1", "0.3", "0.5", "0.7", "0.9", "1.0"], [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1]),
        (["1", "2", "4", "8", "16"], [0, 1, 2, 3, 4]),
        (["1e-4", "1e-3", "1e-2"], [0, 1, 2]),
        (["-1", "0", "1"], [-1, 0, 1]),
    ],
)
def test_numbers_have_a_true_scale_where_it_can_be_read(tmp_path: Path, labels: list[str], at: list[float]) -> None:
    figure, section = drawn(tmp_path, filled(tmp_path, make({"method": METHODS}, {"x": labels})))
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == sorted(labels, key=float)
    assert list(figure.axes[0].containers[0][0].get_xdata()) == at
    assert ("evenly spaced" in section.text) == (at != sorted(map(float, labels)))


def test_a_line_per_row_that_breaks_where_a_number_is_missing(tmp_path: Path) -> None:
    resolved = make({"method": ["A", "B"]}, {"training.rate": ["1", "2", "3"]})
    for run, mean in {"a0": 50.0, "c0": 54.0, "d0": 60.0, "e0": 61.5, "f0": 62.0}.items():
        write_metrics(tmp_path, run, mean, 0.25)
    markdown, out = report(tmp_path, resolved, "values")
    figure, _ = drawn(tmp_path, resolved)
    (axes,) = figure.axes
    (one, _, (bars,)), (other, *_) = axes.containers
    np.testing.assert_array_equal(one.get_xydata(), [[1, 50], [2, np.nan], [3, 54]])
    np.testing.assert_array_equal(other.get_xydata(), [[1, 60], [2, 61.5], [3, 62]])
    np.testing.assert_array_equal(bars.get_segments()[0], [[1, 49.75], [1, 50.25]])
    assert one.get_linestyle() != "None" and axes.get_xlabel() == "rate"
    assert legend(figure) == ["A", "B"]
    assert "\n## The table as a figure\n" in markdown and "A line breaks where a number is missing." in markdown
    assert "![Test accuracy (%) over rate, 2 series in 1 panel: from 50.00 to 62.00.](figures/values.svg)" in markdown
    assert "evenly spaced" not in markdown and "published" not in markdown and "scale of its own" not in markdown
    rows = rows_of(out / "figures/values.csv")
    assert [row["obtained_mean"] for row in rows] == ["50", "54", "60", "61.5", "62"]
    assert rows[0] == {
        "method": "A", "training.rate": "1", "obtained_mean": "50", "obtained_std": "0.25",
        "published_mean": "", "published_std": "", "n": "1",
    }  # fmt: skip


def test_points_side_by_side_and_published_ones_hollow(tmp_path: Path) -> None:
    resolved = make({"method": METHODS}, {"dataset": DATASETS, "part": ["P", "D"]}, published=True)
    for index in range(11):
        write_metrics(tmp_path, f"{chr(ord('a') + index)}0", 60.0 + index, 0.25)
    write_run(tmp_path, "l0", 60.0, diverged=True)
    markdown, out = report(tmp_path, resolved, "values")
    figure, _ = drawn(tmp_path, resolved)
    assert [axes.get_title() for axes in figure.axes] == DATASETS
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["P", "D"]
    marks = [container[0] for container in figure.axes[1].containers]
    assert all(mark.get_linestyle() == "None" for mark in marks)
    obtained, published = marks[::2], marks[1::2]
    assert [list(mark.get_ydata()) for mark in obtained[:2]] == [[62, 63], [66, 67]]
    np.testing.assert_array_equal(np.asarray(obtained[2].get_ydata(), float), [70, np.nan])  # diverged
    assert [list(mark.get_ydata()) for mark in published] == [[72, 73], [76, 77], [80, 81]]
    assert {mark.get_markerfacecolor() for mark in published} == {"none"}
    places = [mark.get_xdata()[0] for mark in marks]
    assert places == sorted(places) and places[0] > -0.5 and places[-1] < 0.5
    assert legend(figure) == [*METHODS, "published"]
    assert "Each panel has a scale of its own. Hollow, beside it: the published value." in markdown
    assert rows_of(out / "figures/values.csv")[-1]["obtained_mean"] == ""  # published all the same


def test_boxes_show_the_runs_of_each_cell(tmp_path: Path) -> None:
    spread = {"a": [91.0, 92.5, 90.0, 92.0, 94.5], "b": [80.0, 81.0], "c": [70.0, 70, 70, 70, 70]}
    resolved = make({"mix": ["0.0", "0.5", "1.0"]}, {}, seeds=5)
    for name, means in spread.items():
        for seed, mean in enumerate(means):
            write_metrics(tmp_path, f"{name}{seed}", mean, 3.0)  # within a run, which a box is not about
    markdown, out = report(tmp_path, resolved, "boxes")
    assert "| mix | runs | mean | least | first quartile | median | third quartile | greatest |" in markdown
    assert "| 0.0 | 5 | 92.00 | 90.00 | 91.00 | 92.00 | 92.50 | 94.50 |" in markdown
    assert "| 0.5 | 2 | 80.50 | 80.00 | — | — | — | 81.00 |" in markdown
    assert "Of a cell of fewer than 5 runs, dots show them one by one." in markdown
    lines = [np.asarray(line.get_ydata(), float) for line in drawn(tmp_path, resolved, "boxes")[0].axes[0].lines]
    box = next(line for line in lines if len(line) == 5)
    assert {*box} == {91.0, 92.5}
    assert [92.0, 92.0] in [list(line) for line in lines] and [80.0, 81.0] in [list(line) for line in lines]
    assert [92.0, 80.5, 70.0] in [list(line) for line in lines]  # the means, joined
    rows = rows_of(out / "figures/boxes.csv")
    assert [float(row["accuracy"]) for row in rows] == [x for means in spread.values() for x in means]
    assert rows[5] == {"mix": "0.5", "run": "b0", "accuracy": "80"}


def test_more_panels_than_there_is_room_for(tmp_path: Path) -> None:
    settings = [f"s{index}" for index in range(9)]
    resolved = make({"method": ["A", "B"]}, {"setting": settings, "part": ["P", "D"]})
    for run in resolved.runs:
        write_metrics(tmp_path, run, 60.0)
    markdown, out = report(tmp_path, resolved, "values")
    assert len(drawn(tmp_path, resolved)[0].axes) == 8
    assert "Columns without a panel: 1; see values.csv" in markdown and len(rows_of(out / "figures/values.csv")) == 36
