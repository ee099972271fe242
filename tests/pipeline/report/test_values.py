"""Figures of a table's own numbers: what lies where, what is left out, and what a box shows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from support.report_demo import cell, results_of, table, write_metrics

from pipeline.report.drawing.sections import Section
from pipeline.report.figures import build_sections
from pipeline.spec.table import ResolvedTable

Axes = dict[str, list[str]]

METHODS, DATASETS = ["FedAvg-T", "FedPer-T", "FedTP"], ["CIFAR-10", "CIFAR-100"]
RATES = ["0.05", "0.1", "0.15", "0.2", "0.25"]  # FedTP, figure 11


def make(rows: Axes, columns: Axes, *, published: bool = False, seeds: int = 1, **changes: Any) -> ResolvedTable:
    """A table of all combinations of labels; the runs of the first cell are a0, a1, …, of the second b0, b1, …"""
    axes, cells = {**rows, **columns}, []
    for index, labels in enumerate(itertools.product(*axes.values())):
        runs = [f"{chr(ord('a') + index)}{seed}" for seed in range(seeds)]
        cells.append(cell(dict(zip(axes, labels, strict=True)), runs, (70.0 + index, 0.5) if published else None))
    return table(cells, list(rows), list(columns), **{"figures": ["values"], **changes})


def drawn(root: Path, resolved: ResolvedTable, means: dict[str, float] | None = None) -> tuple[Figure, Section]:
    """The picture of a table's figure as matplotlib has it, and its section; runs have these numbers, or some."""
    some = {run: 60.0 + index for index, run in enumerate(resolved.runs)}
    for run, mean in (some if means is None else means).items():
        write_metrics(root, run, mean, 0.25)
    *_, section = build_sections(results_of(resolved, root))
    assert section.picture
    return section.picture.figure, section


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def test_what_runs_to_the_right(tmp_path: Path) -> None:
    # FedTP: figures 11 and 7. FedOFA: figure 3. Numbers go before names, of columns before those of rows; one number,
    # infinity or a repetition is no scale.
    cases: list[tuple[Axes, Axes, str, list[str], list[str]]] = [
        ({"method": METHODS}, {"rate": RATES}, "rate", METHODS, [""]),
        ({"method": METHODS}, {"dataset": DATASETS, "part": ["P", "D"]}, "part", METHODS, DATASETS),
        ({"heads": ["1", "2"]}, {"dataset": DATASETS, "kind": ["A", "B"]}, "heads", ["A", "B"], DATASETS),
        ({"depth": ["1", "2"]}, {"dim": ["3", "4"], "part": ["P", "D"]}, "dim", ["depth = 1", "depth = 2"], ["P", "D"]),
        ({"method": METHODS}, {"mu": ["0", "inf"]}, "mu", METHODS, [""]),
    ]
    for rows, columns, axis, series, panels in cases:
        figure, _ = drawn(tmp_path, make(rows, columns))
        ticks = [text.get_text().rpartition(" = ")[2] for text in figure.axes[0].get_xticklabels()]
        assert ticks == {**rows, **columns}[axis] and legend(figure) == series
        assert [axes.get_title() for axes in figure.axes] == panels
        marks = [len(container[0].get_xdata()) for axes in figure.axes for container in axes.containers]
        assert sum(marks) == np.prod([len(x) for x in {**rows, **columns}.values()])


def test_numbers_have_a_true_scale_where_it_can_be_read(tmp_path: Path) -> None:
    unordered, decades = ["0", "20", "5"], ["1e-4", "1e-3", "1e-2"]  # in their order, whatever that of the spec
    for labels, at in ((RATES, [0.05, 0.1, 0.15, 0.2, 0.25]), (unordered, [0, 5, 20]), (decades, [0, 1, 2])):
        figure, section = drawn(tmp_path, make({"method": METHODS}, {"x": labels}))
        assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == sorted(labels, key=float)
        assert list(figure.axes[0].containers[0][0].get_xdata()) == at
        assert ("evenly spaced" in section.text) == (at != sorted(map(float, labels)))


def test_a_line_per_row_that_breaks_where_a_number_is_missing(tmp_path: Path) -> None:
    resolved = make({"method": ["A", "B"]}, {"training.rate": ["1", "2", "3"]})
    figure, section = drawn(tmp_path, resolved, {"a0": 50.0, "c0": 54.0, "d0": 60.0, "e0": 61.5, "f0": 62.0})
    (axes,) = figure.axes
    (one, _, (bars,)), (other, *_) = axes.containers
    np.testing.assert_array_equal(one.get_xydata(), [[1, 50], [2, np.nan], [3, 54]])
    np.testing.assert_array_equal(other.get_xydata(), [[1, 60], [2, 61.5], [3, 62]])
    np.testing.assert_array_equal(bars.get_segments()[0], [[1, 49.75], [1, 50.25]])
    assert one.get_linestyle() != "None" and axes.get_xlabel() == "rate" and legend(figure) == ["A", "B"]
    assert section.picture and section.picture.alt.endswith("over rate, 2 series in 1 panel: from 50.00 to 62.00.")
    assert section.data["obtained_mean"].tolist() == [50, 54, 60, 61.5, 62]


def test_boxes_show_the_runs_of_each_cell(tmp_path: Path) -> None:
    spread = {"a": [91.0, 92.5, 90.0, 92.0, 94.5], "b": [80.0, 81.0], "c": [70.0, 70, 70, 70, 70]}
    means = {f"{name}{seed}": mean for name, own in spread.items() for seed, mean in enumerate(own)}
    figure, section = drawn(tmp_path, make({"mix": ["0.0", "0.5", "1.0"]}, {}, seeds=5, figures=["boxes"]), means)
    assert section.table and section.table.rows[:2] == [
        ("0.0", "5", "92.00", "90.00", "91.00", "92.00", "92.50", "94.50"),
        ("0.5", "2", "80.50", "80.00", "—", "—", "—", "81.00"),  # of fewer than five runs, dots show them
    ]
    lines = [np.asarray(line.get_ydata(), float) for line in figure.axes[0].lines]
    assert {*next(line for line in lines if len(line) == 5)} == {91.0, 92.5}
    shown = [list(line) for line in lines]
    assert all(line in shown for line in ([92.0, 92.0], [80.0, 81.0], [92.0, 80.5, 70.0]))  # the last joins the means
    assert section.data["accuracy"].tolist() == [x for own in spread.values() for x in own]
