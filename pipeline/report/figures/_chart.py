"""The cells of a table as a chart: one axis to the right, the others as series and panels, published values beside."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.drawing.panels import MAX_PANELS, Style, draw_panels, grid_shape, left_out
from pipeline.report.drawing.sections import Picture, Section, counted
from pipeline.report.figures._data import TableData, joined
from pipeline.report.table import headed, short

NOTHING = Section("No number of this table has been obtained yet.")
_HOLLOW: Style = {"linestyle": "none", "markerfacecolor": "none", "alpha": 0.8}
_LETTER, _MARK, _WIDEST = 0.075, 0.2, 9.0  # inches: of a tick's label, of a mark with its neighbour, of panels
_SLANT = 35.0  # degrees, of labels that are too long to lie side by side


def draw_chart(
    data: TableData, name: str, draw: Callable[[Axes, pd.DataFrame, Style, float], None], *, boxed: bool
) -> tuple[str, Picture] | None:
    """Draw a table as the figure `name`: what it shows in sentences, and the picture. None where nothing is obtained.

    To the right runs the innermost column axis of numbers, or the innermost such row axis, or, where no axis has
    numbers only, the innermost column axis or row axis that has several labels. The other rows are series and the other
    columns panels; where that would be a single series in panels by several axes, the innermost of these are series as
    well.

    Args:
        draw: Draws the cells of a series, which are ``at`` a position, and takes the width that each has.
        boxed: What is drawn of a cell is wide, so that series must not lie over one another.
    """
    axis, cells = _laid_out(data)
    if cells.empty:
        return None
    labels = list(data.cells[axis].sort_values().unique()) if axis else [""]
    positions, numeric = _positions(labels)
    ticks = list(positions.values())
    present = [str(name) for name in cells["series"].cat.categories if (cells["series"] == name).any()]
    slot = 0.8 * _least_gap(ticks) / len(present) if boxed or not numeric else 0.0
    beside = 0.4 * slot if slot else 0.02 * (ticks[-1] - ticks[0])
    at = cells[axis].map(positions).astype(float) if axis else 0.0
    cells = cells.assign(at=at).sort_values("at", kind="stable")

    def series(axes: Axes, own: pd.DataFrame, style: Style) -> None:
        style = style if numeric else {**style, "linestyle": "none"}
        own = own.assign(at=own["at"] + slot * (present.index(str(own["series"].iloc[0])) - (len(present) - 1) / 2))
        draw(axes, own, style, slot)
        if len(there := own.dropna(subset="published_mean")):
            marks = {**style, **_HOLLOW}
            draw_values(axes, there["at"] + beside, there["published_mean"], there["published_std"], marks)

    published = bool(cells["published_mean"].notna().any())
    more = [("published", {"color": "#666666", "marker": "o", **_HOLLOW})] * published
    legend = {} if numeric else {"linestyle": "none"}
    figure = draw_panels(cells, short(axis) if numeric else "", data.measure, series, legend, more)
    _set_ticks(figure, ticks, [label if numeric else headed(axis, label) for label in positions], len(present), slot)
    panels, means = cells["panel"].nunique(), cells["mean"]
    words = " The axis upwards does not begin at 0: compare where marks lie."
    words += " Each panel has a scale of its own." * (panels > 1)
    words += " A line breaks where a number is missing." * numeric
    words += " To the right labels are evenly spaced." * (numeric and ticks != list(map(float, positions)))
    words += " Hollow, beside it: the published value." * published
    over = f" over {short(axis)}" if axis else ""
    alt = f"Test {data.measure}{over}, {len(present)} series in {counted(min(MAX_PANELS, panels), 'panel')}"
    return words + left_out(cells, name), Picture(figure, f"{alt}: from {means.min():.2f} to {means.max():.2f}.")


def draw_values(
    axes: Axes, at: pd.Series[float], means: pd.Series[float], stds: pd.Series[float] | float, style: Style
) -> None:
    """Draw marks with their deviations; the line, if the style has one, breaks where a mean is missing."""
    marks = {"linewidth": 1.3, "elinewidth": 0.9, "capsize": 2.0, "markersize": 4.5, **style}
    axes.errorbar(at, means, yerr=np.broadcast_to(stds, len(at)), **marks)


def _laid_out(data: TableData) -> tuple[str, pd.DataFrame]:
    """Return the axis that runs to the right, and the cells by series and panels; without series that have no numbers
    and panels in which none is obtained."""
    cells, inward = data.cells, [*reversed(data.columns), *reversed(data.rows)]
    several = [axis for axis in inward if cells[axis].nunique() > 1]
    axis = [*(axis for axis in several if _are_numbers(list(cells[axis].unique()))), *several, *inward, ""][0]
    rows, columns = ([name for name in axes if name != axis] for axes in (data.rows, data.columns))
    if len(columns) > 1 and (not rows or len(cells[rows].drop_duplicates()) < 2):
        rows.append(columns.pop())
    cells = cells.assign(series=joined(cells, rows), panel=joined(cells, columns))
    cells = cells[cells["panel"].isin(cells.dropna(subset="mean")["panel"])]
    return axis, cells[cells["series"].isin(cells.dropna(subset=["mean", "published_mean"], how="all")["series"])]


def _positions(labels: list[str]) -> tuple[dict[str, float], bool]:
    """Return the position of each label, and whether they are numbers: on a true scale if all can be read there."""
    numeric = _are_numbers(labels)
    labels = sorted(labels, key=float) if numeric else labels
    numbers = list(map(float, labels)) if numeric else []
    if numeric and _least_gap(numbers) >= (0.1 - 1e-9) * (numbers[-1] - numbers[0]):
        return dict(zip(labels, numbers, strict=True)), True
    return {label: float(at) for at, label in enumerate(labels)}, numeric


def _are_numbers(labels: Sequence[str]) -> bool:
    """Return whether these are two or more different numbers."""
    try:
        numbers = {float(label) for label in labels}
    except ValueError:
        return False
    return len(numbers) == len(labels) > 1 and all(map(math.isfinite, numbers))


def _least_gap(ticks: Sequence[float]) -> float:
    """Return the least distance of neighbours in a sorted list; 1 for a single one."""
    return min((b - a for a, b in itertools.pairwise(ticks)), default=1.0)


def _set_ticks(figure: Figure, ticks: list[float], labels: list[str], series: int, slot: float) -> None:
    """Label positions, slanted where they are long; series lie beside one another if they have a `slot`."""
    across, down = grid_shape(len(figure.axes))
    if slot:
        figure.set_figwidth(max(figure.get_figwidth(), min(_WIDEST, _MARK * series * len(ticks)) * across))
    longest = _LETTER * max(map(len, labels))
    slant = _SLANT if longest > 0.8 * figure.get_figwidth() / across / len(ticks) else 0.0
    figure.set_figheight(figure.get_figheight() + longest * math.sin(math.radians(slant)) * down)
    edge = _least_gap(ticks) / 2 if slot else 0.05 * (ticks[-1] - ticks[0])
    style: Style = {"rotation": slant, "ha": "right", "rotation_mode": "anchor"} if slant else {}
    for axes in figure.axes:
        axes.margins(y=0.1)
        axes.set_xlim(ticks[0] - edge, ticks[-1] + edge)
        if slot and series > 1:  # lines between ticks show what belongs to which
            axes.grid(visible=False, axis="x")
            for one, other in itertools.pairwise(ticks):
                axes.axvline((one + other) / 2, color="#dddddd", linewidth=0.6)
        axes.set_xticks(ticks, labels, parse_math=False, **style)
