"""Convergence curves: test accuracy over rounds, one panel per column of the table, as SVG and as wide CSV.

It is pooled over clients; the curve of a cell that is about one client is that client's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.drawing.panels import Placed, Style, columns_of, draw_columns, panel_grid, with_room
from pipeline.report.drawing.svg import Drawing, svg_with_boxes
from pipeline.report.formats import csv_text
from pipeline.report.table.cells import Cell, Key
from pipeline.report.table.layout import Layout
from pipeline.report.table.results import Measured, Results


@dataclass(frozen=True)
class Curve(Placed):
    """The curve of one cell, averaged over its runs at the rounds that all of them measured."""

    points: pd.Series[float]  # accuracy in percent, indexed by round


def collect_curves(results: Results) -> list[Curve]:
    """The curves of all cells whose runs were measured, rows first. A run that diverged is drawn up to that round.

    Where labels choose quantities there are none, as cells are no more than several numbers of one run.
    """
    if results.table.quantities:
        return []
    curves = []
    for row, column in results.layout.places:
        cell = results.layout.cell(row, column)
        series = _series(cell, results.runs) if cell else []
        if series:
            points = pd.concat(series, axis=1, join="inner").mean(axis=1).sort_index()
            curves.append(Curve(row, column, points))
    return curves


def curves_csv(curves: list[Curve]) -> str:
    """Wide CSV: round, then a column per curve named "row label / column labels", empty where not measured."""
    named = {" / ".join((*c.row, *c.column)): c.points for c in curves}
    frame = pd.DataFrame(named, index=sorted({int(r) for c in curves for r in c.points.index}))
    return csv_text(frame, "round")


def draw_curves(layout: Layout, curves: list[Curve]) -> Drawing:
    """All curves that there is room for; the same bytes for the same curves. Without any there is no PNG."""
    return svg_with_boxes(lambda: _draw(layout, curves), png=bool(curves))


def series_id(row: int, panel: int) -> str:
    """The name of a curve in a drawing, by the numbers of its row in the table and of its panel, from 0."""
    return f"series-{row}-{panel}"


def panels_of(layout: Layout, curves: list[Curve]) -> tuple[list[Key], str]:
    """The columns that have a panel, and a sentence on those that there is no room for, or ""."""
    return with_room(columns_of(layout, curves), "curves")


def curves_alt(layout: Layout, curves: list[Curve]) -> str:
    """The picture in a sentence, for those who do not see it."""
    words = f"Test {layout.figure} over rounds, {len(curves)} curve{'' if len(curves) == 1 else 's'}"
    # A run that diverged at once has none.
    best = max((c for c in curves if len(c.points)), key=lambda c: float(c.points.iloc[-1]), default=None)
    if best is None:
        return f"{words}."
    what = " · ".join((*best.row, *best.column))
    return f"{words}; the highest ends at {best.points.iloc[-1]:.2f} ({what})."


def _series(cell: Cell, runs: dict[str, Measured]) -> list[pd.Series[float]]:
    measured = [run.curve(cell.client) for run in (runs[name] for name in cell.runs) if run.made]
    return [points for points in measured if cell.client is None or len(points)]


def _draw(layout: Layout, curves: list[Curve]) -> Figure:
    columns, _ = panels_of(layout, curves)
    if not columns:
        figure, (panel,) = panel_grid([""], "", "")
        panel.set_axis_off()
        panel.text(0.5, 0.5, "no run has been measured yet", ha="center", transform=panel.transAxes)
        return figure
    figure = draw_columns(layout, curves, layout.rows, columns, ("round", layout.figure), _panel)
    for number, (panel, column) in enumerate(zip(figure.axes, columns, strict=False)):
        for line, one in zip(panel.lines, (one for one in curves if one.column == column), strict=True):
            line.set_gid(series_id(layout.rows.index(one.row), number))
    return figure


def _panel(panel: Axes, curves: list[Curve], styles: dict[Key, Style]) -> None:
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
