"""The numbers of a table as a figure: lines over an axis of numbers, points side by side over an axis of names.

Papers often draw bars. The length of a bar is its message, so it has to begin at 0, where a point or two between
methods cannot be seen; a mark has no length, and its axis may begin where the values do.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from pipeline.report.drawing.chart import NOTHING, chart, draw_values
from pipeline.report.drawing.panels import Style
from pipeline.report.drawing.sections import Section, draw_picture
from pipeline.report.table.cells import Cell
from pipeline.report.table.layout import Layout
from pipeline.report.table.results import Results

TITLE = "The table as a figure"

_TEXT = "The numbers of the table; error bars are their ±."


def draw(results: Results) -> Section:
    """The section; one line when nothing has been obtained."""
    drawn = chart(results, "values", boxed=False)
    if drawn is None:
        return Section(NOTHING)
    picture = draw_picture(lambda: drawn.draw(_draw_series), drawn.alt)
    return Section(_TEXT + drawn.words, picture, data=_data(results.layout))


def _draw_series(axes: Axes, cells: list[Cell], at: list[float], style: Style) -> None:
    draw_values(axes, at, [cell.obtained for cell in cells], style)


def _data(layout: Layout) -> pd.DataFrame:
    """A row per cell that has a number: its labels, both means and deviations, and of how many runs it is."""
    return pd.DataFrame(
        {
            **{axis: cell.labels[axis] for axis in (*layout.row_axes, *layout.column_axes)},
            "obtained_mean": cell.obtained and cell.obtained.mean,
            "obtained_std": cell.obtained and cell.obtained.std,
            "published_mean": cell.published and cell.published.mean,
            "published_std": cell.published and cell.published.std,
            "n": cell.n,
        }
        for cell in layout.cells
        if cell.obtained or cell.published
    )
