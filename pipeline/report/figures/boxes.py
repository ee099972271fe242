"""How the runs of each cell spread, as box plots beside their means (FedOFA, figure 4)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.report.drawing.chart import NOTHING, chart, draw_values
from pipeline.report.drawing.panels import Style
from pipeline.report.drawing.sections import NO_VALUE, OfCell, Section, all_points, draw_picture, line_per_cell
from pipeline.report.table.cells import Cell, Value
from pipeline.report.table.results import Results

TITLE = "Spread over the runs"
FEWEST = 5
"""Runs that a box needs: the five numbers that it shows are then those of the runs; of fewer it would invent some."""

_WIDTH = 0.55  # of a slot, which leaves room for the published value
_TEXT = (
    "A box shows the runs of a cell: their median, the first and the third quartile, and with its whiskers the least"
    " and the greatest of their numbers; of five runs, these are the five. The mark is their mean."
)
_FEW = f" Of a cell of fewer than {FEWEST} runs, dots show them one by one."
_NUMBERS = ("least", "first quartile", "median", "third quartile", "greatest")


def draw(results: Results) -> Section:
    """The section; one line when nothing has been obtained."""
    layout, metric = results.layout, results.table.metric
    drawn = chart(results, "boxes", boxed=True)
    if drawn is None:
        return Section(NOTHING)

    def numbers(cell: Cell) -> dict[str, float]:
        """By run, in percent, of what the obtained number of the cell is made of."""
        by_run = {run: results.runs[run].values_of(cell.client) for run in cell.runs} if cell.obtained else {}
        return {run: values[metric].mean for run, values in by_run.items() if metric in values}

    def draw_series(axes: Axes, cells: list[Cell], at: list[float], style: Style) -> None:
        for x, cell in zip(at, cells, strict=True):
            _box(axes, list(numbers(cell).values()), x, _WIDTH * drawn.arrangement.slot, style["color"])
        means = [Value(cell.obtained.mean) if cell.obtained else None for cell in cells]
        draw_values(axes, at, means, {**style, "linewidth": 0.9})

    spreads = [
        OfCell(*at, pd.DataFrame({"run": list(spread), "accuracy": list(spread.values())}))
        for at in layout.places
        if (cell := layout.cell(*at)) and cell.obtained and (spread := numbers(cell))
    ]
    text = _TEXT + _FEW * any(len(one.points) < FEWEST for one in spreads) + drawn.words
    header = ("runs", "mean", *_NUMBERS)
    summary = line_per_cell(layout, spreads, header, lambda one: _summary(one.points, results.table.decimals))
    picture = draw_picture(lambda: drawn.draw(draw_series), drawn.alt)
    return Section(text, picture, summary, all_points(layout, spreads))


def _summary(points: pd.DataFrame, decimals: int) -> list[str]:
    """Runs, mean and the five numbers of a box; no quartiles of fewer runs than a box needs."""
    count, numbers = len(points), points["accuracy"].to_numpy()
    least, *middle, greatest = (f"{x:.{decimals}f}" for x in np.percentile(numbers, [0, 25, 50, 75, 100]))
    quartiles = middle if count >= FEWEST else [NO_VALUE] * len(middle)
    return [str(count), f"{np.mean(numbers):.{decimals}f}", least, *quartiles, greatest]


def _box(axes: Axes, numbers: list[float], x: float, width: float, color: str) -> None:
    if len(numbers) < FEWEST:
        axes.plot([x] * len(numbers), numbers, linestyle="none", marker=".", markersize=3.0, color=color)
        return
    line = {"color": color, "linewidth": 0.9}
    axes.boxplot(
        [numbers],
        positions=[x],
        widths=width,
        whis=(0, 100),
        manage_ticks=False,
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        medianprops={**line, "linewidth": 1.8},
    )
