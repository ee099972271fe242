"""The numbers of a table as a figure: lines over an axis of numbers, points side by side over an axis of names.

Papers often draw bars. The length of a bar is its message, so it has to begin at 0, where a point or two between
methods cannot be seen; a mark has no length, and its axis may begin where the values do.
"""

from __future__ import annotations

from pipeline.report.drawing.sections import Section
from pipeline.report.figures._chart import NOTHING, draw_chart, draw_values
from pipeline.report.figures._data import TableData

TITLE = "The table as a figure"


def draw(data: TableData) -> Section:
    """Draw the cells; one line when nothing has been obtained. CSV: both means and deviations, and of how many runs."""
    drawn = draw_chart(
        data,
        "values",
        lambda axes, cells, style, _: draw_values(axes, cells["at"], cells["mean"], cells["std"], style),
        boxed=False,
    )
    if drawn is None:
        return NOTHING
    words, picture = drawn
    cells = data.cells.dropna(subset=["mean", "published_mean"], how="all")
    cells = cells.rename(columns={"mean": "obtained_mean", "std": "obtained_std"})
    columns = ["obtained_mean", "obtained_std", "published_mean", "published_std", "n"]
    text = "The numbers of the table; error bars are their ±." + words
    return Section(text, picture, data=cells[[*data.axes(cells), *columns]])
