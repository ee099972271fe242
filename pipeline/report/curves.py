"""Convergence curves: pooled test accuracy over rounds, one panel per column of the table, as SVG and as wide CSV."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pflcore.artifacts import read_table
from pflcore.protocols import curve
from pipeline.report.cells import Cell
from pipeline.report.drawing import svg
from pipeline.report.layout import Layout
from pipeline.report.measured import Measured

MAX_PANELS = 8

# Okabe and Ito's colours, told apart by colour-blind readers; line styles and markers carry the same in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Curve:
    """The curve of one cell, averaged over its runs at the rounds that all of them measured."""

    row: tuple[str, ...]
    column: tuple[str, ...]
    points: pd.Series[float]  # pooled accuracy in percent, indexed by round


def collect_curves(layout: Layout, cells: list[Cell], runs: dict[str, Measured]) -> list[Curve]:
    """The curves of all cells whose runs were measured, rows first. A run that diverged is drawn up to that round."""
    curves = []
    for row, column in itertools.product(layout.rows, layout.columns):
        cell = layout.cell(row, column)
        series = [_points(runs[run]) for run in cell.runs if runs[run].rounds_path.is_file()] if cell else []
        if series:
            points = pd.concat(series, axis=1, join="inner").mean(axis=1).sort_index()
            curves.append(Curve(row, column, points))
    return curves


def curves_csv(layout: Layout, curves: list[Curve]) -> str:
    """Wide CSV: round, then a column per curve named "row label / column labels", empty where not measured."""
    named = {" / ".join((*c.row, *c.column)): c.points for c in curves}
    frame = pd.DataFrame(named, index=sorted({int(r) for c in curves for r in c.points.index}))
    return str(frame.to_csv(index_label="round", float_format="%.6g", lineterminator="\n"))


def curves_svg(layout: Layout, curves: list[Curve], ylabel: str) -> str:
    """The panels as one SVG document, the same bytes for the same curves."""
    return svg(lambda: _draw(layout, curves, ylabel))


def panels_left_out(curves: list[Curve]) -> int:
    """Columns with curves for which the figure has no room."""
    return max(0, len({c.column for c in curves}) - MAX_PANELS)


def _points(run: Measured) -> pd.Series[float]:
    columns = ["round", "population", "moment", "correct", "total", "loss"]
    rounds, accuracy, _ = curve(read_table(run.rounds_path, "rounds/2", columns)[0])
    return pd.Series(accuracy, index=rounds)


def _draw(layout: Layout, curves: list[Curve], ylabel: str) -> Figure:
    columns = [c for c in layout.columns if any(curve.column == c for curve in curves)][:MAX_PANELS]
    across = max(1, len(columns) if len(columns) <= 3 else math.ceil(len(columns) / 2))
    down = math.ceil(len(columns) / across) or 1
    width = max(5.0, (2.9 if across > 2 else 3.6) * across)
    figure = Figure(figsize=(width, 2.5 * down + 0.7), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False)
    styles = dict(zip(layout.rows, _line_styles(), strict=False))
    for panel in panels.flat[len(columns) :]:
        panel.set_axis_off()
    if not columns:
        panels[0, 0].text(0.5, 0.5, "no run has been measured yet", ha="center", transform=panels[0, 0].transAxes)
        return figure
    for index, (panel, column) in enumerate(zip(panels.flat, columns, strict=False)):
        _panel(panel, [c for c in curves if c.column == column], styles)
        panel.set_title(layout.column_title(column), parse_math=False)
        panel.set_ylabel(ylabel if index % across == 0 else "")
        panel.set_xlabel("round" if index + across >= len(columns) else "")
    drawn = [row for row in layout.rows if any(c.row == row and c.column in columns for c in curves)]
    _legend(figure, [(" · ".join(row), styles[row]) for row in drawn], width)
    return figure


def _panel(panel: Axes, curves: list[Curve], styles: dict[tuple[str, ...], dict[str, Any]]) -> None:
    for order, c in enumerate(curves):
        # Markers of different curves start at different points, so that they do not hide one another.
        every = max(1, len(c.points) // 6)
        panel.plot(
            np.asarray(c.points.index),
            c.points.to_numpy(),
            markevery=(order % every, every),
            linewidth=1.3,
            markersize=3.5,
            **styles[c.row],
        )


def _legend(figure: Figure, entries: list[tuple[str, dict[str, Any]]], width: float) -> None:
    handles = [Line2D([], [], linewidth=1.3, markersize=4, **style) for _, style in entries]
    # Labels are set afterwards: matplotlib drops those that begin with an underscore and reads $ as mathematics.
    blank = ["x" * len(label) for label, _ in entries]
    ncols = max(1, int(12 * width / (7 + max(map(len, blank)))))  # at about 12 characters per inch
    legend = figure.legend(handles, blank, loc="outside lower center", ncols=ncols, frameon=False)
    for text, (label, _) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def _line_styles() -> Iterator[dict[str, Any]]:
    for index in itertools.count():
        yield {
            "color": _COLOURS[index % len(_COLOURS)],
            "linestyle": _STYLES[index % len(_STYLES)],
            "marker": _MARKERS[index % len(_MARKERS)],
        }
