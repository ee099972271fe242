"""How the runs of each cell spread, as box plots beside their means (FedOFA, figure 4)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.report.drawing.panels import Style
from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section
from pipeline.report.figures._chart import NOTHING, draw_chart, draw_values
from pipeline.report.figures._data import TableData

TITLE = "Spread over the runs"
FEWEST = 5
"""Runs that a box needs: the five numbers that it shows are then those of the runs; of fewer it would invent some."""

_TEXT = (
    "A box shows the runs of a cell: their median, the first and the third quartile, and with its whiskers the least"
    " and the greatest of their numbers; of five runs, these are the five. The mark is their mean."
)
_FEW = f" Of a cell of fewer than {FEWEST} runs, dots show them one by one."
_NAMES = {"min": "least", "25%": "first quartile", "50%": "median", "75%": "third quartile", "max": "greatest"}


def draw(data: TableData) -> Section:
    """Draw the runs; one line when nothing has been obtained. CSV: a line per run."""
    values = data.results.frame.values
    runs = data.place(values[values["metric"] == data.table.metric], single=True).rename(columns={"mean": "accuracy"})
    axes = data.axes(runs)
    by_cell = runs.groupby(axes, observed=True)["accuracy"]
    spreads = {key: own.to_numpy() for key, own in by_cell}

    def series(panel: Axes, cells: pd.DataFrame, style: Style, slot: float) -> None:
        for at, *key in cells[["at", *axes]].itertuples(index=False, name=None):
            if tuple(key) in spreads:
                _box(panel, spreads[tuple(key)], at, 0.55 * slot, style["color"])  # beside it the published value
        draw_values(panel, cells["at"], cells["mean"], np.nan, {**style, "linewidth": 0.9})

    drawn = draw_chart(data, "boxes", series, boxed=True)
    if drawn is None:
        return NOTHING
    words, picture = drawn
    five = by_cell.describe()
    few = five["count"] < FEWEST
    printed = five.drop(columns=["count", "std"]).map(f"{{:.{data.table.decimals}f}}".format).rename(columns=_NAMES)
    printed.loc[few, list(_NAMES.values())[1:4]] = NO_VALUE
    printed.insert(0, "runs", five["count"].astype(int))
    table = PlainTable.of(printed.reset_index(), axes)
    return Section(_TEXT + _FEW * any(few) + words, picture, table, runs[[*axes, "run", "accuracy"]])


def _box(axes: Axes, numbers: np.ndarray, at: float, width: float, color: str) -> None:
    if len(numbers) < FEWEST:
        axes.plot([at] * len(numbers), numbers, linestyle="none", marker=".", markersize=3.0, color=color)
        return
    line: Style = {"color": color, "linewidth": 0.9}
    parts: Style = dict.fromkeys(("boxprops", "whiskerprops", "capprops"), line)
    parts["medianprops"] = {**line, "linewidth": 1.8}
    axes.boxplot([numbers], positions=[at], widths=width, whis=(0, 100), manage_ticks=False, **parts)
