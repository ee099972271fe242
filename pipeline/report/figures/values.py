"""The numbers of a table as a figure: lines over an axis of numbers, points side by side over an axis of names.

Papers often draw bars. The length of a bar is its message, so it has to begin at 0, where a point or two between
methods cannot be seen; a mark has no length, and its axis may begin where the values do.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from pipeline.report.drawing.panels import Style
from pipeline.report.drawing.sections import Section
from pipeline.report.figures._chart import NOTHING, draw_chart, draw_values
from pipeline.report.figures._data import TableData

TITLE = "The table as a figure"

_TEXT = "The numbers of the table; error bars are their ±."


def draw(data: TableData) -> Section:
    """Draw the cells; one line when nothing has been obtained. CSV: both means and deviations, and of how many runs."""
    drawn = draw_chart(data, "values", _series, boxed=False)
    if drawn is None:
        return Section(NOTHING)
    words, picture = drawn
    names = {"mean": "obtained_mean", "std": "obtained_std", "published_mean": "published_mean"}
    cells = data.cells.dropna(subset=["mean", "published_mean"], how="all").rename(columns=names)
    columns = [*names.values(), "published_std", "n"]
    return Section(_TEXT + words, picture, data=cells[[*data.axes(cells), *columns]])


def _series(axes: Axes, cells: pd.DataFrame, style: Style, slot: float) -> None:
    draw_values(axes, cells["at"], cells["mean"], cells["std"], style)
