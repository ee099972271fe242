"""Panels of series: a panel for each column of a table, a style for each row, and one legend."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

MAX_PANELS = 12
MAX_LEGEND = 8
"""The largest number of lines with a legend; more lines have their names at their ends."""

_WIDTH = 9.5  # inches: the width of a page on a screen, so that letters are as large as its text
_NAME = 0.11  # inches from a name at the end of a line to the next

Style = dict[str, Any]
K = TypeVar("K")

# Okabe and Ito's colours, which colour-blind readers can distinguish; line styles and markers differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def draw_panels(
    data: pd.DataFrame,
    xlabel: str,
    ylabel: str,
    draw: Callable[[Axes, pd.DataFrame, Style], None],
    legend: Style | None = None,
    extra_entries: Sequence[tuple[str, Style]] = (),
    lines: bool = False,
) -> Figure:
    """Return a figure with a panel for each ``panel``, in it each ``series`` (both categoricals), and a legend.

    The style of a series depends on its place among all categories, so a row looks the same in every figure. Panels
    beyond :data:`MAX_PANELS` are left out. The page finds a series by the ids of its elements: :func:`mark_series`.

    Args:
        draw: Called with a panel's axes, the lines of `data` of one series, and the style of the series.
        legend: Changes of these styles in the legend.
        extra_entries: Labels and styles of further entries of the legend.
        lines: Whether each series is a line from left to right. There is then no legend for more than
            :data:`MAX_LEGEND` series; call :func:`name_lines` after the last change of a scale.
    """
    titles = [str(panel) for panel in data["panel"].cat.categories if (data["panel"] == panel).any()][:MAX_PANELS]
    styles = styles_of(map(str, data["series"].cat.categories))
    drawn = set(data.loc[data["panel"].isin(titles), "series"])
    has_legend = not lines or len(drawn) <= MAX_LEGEND
    height = 2.5 if has_legend else max(2.5, 0.7 + _NAME * len(drawn))
    figure, panels = panel_grid(titles, xlabel, ylabel, height=height)
    for axes, title in zip(panels, titles, strict=True):
        for name, series in data[data["panel"] == title].groupby("series", observed=True):
            with mark_series(axes, str(name)):
                draw(axes, series, styles[str(name)])
    entries = [(name, {**style, **(legend or {})}) for name, style in styles.items() if name in drawn and name]
    if has_legend and (entries or extra_entries):
        add_legend(figure, [*entries, *extra_entries])
    return figure


def left_out(data: pd.DataFrame, name: str) -> str:
    """Return a sentence on panels of a figure that are not drawn, or "" if all are; the CSV file has all of them."""
    excess = data["panel"].nunique() - MAX_PANELS
    return f" Columns without a panel: {excess}; see {name}.csv." if excess > 0 else ""


@contextmanager
def mark_series(axes: Axes, name: str) -> Iterator[None]:
    """Give ids to what is drawn within the ``with``: ``line,<number>,<series>`` to lines, which have values to read
    off, ``part,…`` to the rest. The series is percent-encoded; the number is unique in the figure."""
    existing = set(axes.get_children())
    yield
    panel = axes.get_figure().axes.index(axes)  # type: ignore[union-attr]
    for number, artist in enumerate(axes.get_children()):
        if artist not in existing:
            is_line = isinstance(artist, Line2D) and artist.get_marker() not in ("_", "|")  # markers of error bars
            artist.set_gid(f"{'line' if is_line else 'part'},{panel}-{number},{quote(name, safe='')}")


def styles_of(keys: Iterable[K]) -> dict[K, Style]:
    """Return a colour, a line style and a marker for each key, by its position."""
    cycles = zip(*map(itertools.cycle, (COLOURS, _STYLES, _MARKERS)), strict=False)
    return {key: dict(zip(("color", "linestyle", "marker"), next(cycles), strict=True)) for key in keys}


def grid_shape(panels: int) -> tuple[int, int]:
    """Return the number of panels per line, three at most, and the number of lines."""
    across = 2 if panels == 4 else min(max(1, panels), 3)
    return across, math.ceil(panels / across) or 1


def panel_grid(titles: Sequence[str], xlabel: str, ylabel: str, *, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, one of `height` inches per title."""
    across, down = grid_shape(len(titles))
    figure = Figure(figsize=(_WIDTH, height * down + 0.7), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for panel in panels[len(titles) :]:
        panel.remove()
    for index, (panel, title) in enumerate(zip(panels, titles, strict=False)):
        panel.set_title(title, y=1.0, parse_math=False)  # no search for ticks above the panel
        panel.set_ylabel(ylabel if index % across == 0 else "")
        panel.set_xlabel(xlabel if index + across >= len(titles) else "")
        for axis in (panel.xaxis, panel.yaxis):
            if not axis.label.get_text():
                axis.set_label_coords(0, 0)  # no search for a place, which takes a tenth of the time
    return figure, panels[: len(titles)]


def add_legend(figure: Figure, entries: Sequence[tuple[str, Style]], title: str = "") -> None:
    """Put one legend under all panels: a line in its style for each label."""
    handles = [Line2D([], [], linewidth=1.3, markersize=4, **style) for _, style in entries]
    # Labels are set afterwards: matplotlib drops those that begin with an underscore and reads $ as mathematics.
    blank = ["x" * len(label) for label, _ in entries]
    ncols = max(1, int(12 * figure.get_figwidth() / (7 + max(map(len, blank)))))  # about 12 characters per inch
    excess = max(0, math.ceil(len(entries) / ncols) - 3)  # a higher figure, not lower panels, from the fourth line on
    figure.set_figheight(figure.get_figheight() + 0.2 * excess)
    legend = figure.legend(handles, blank, loc="outside lower center", ncols=ncols, frameon=False, title=title or None)
    for number, (text, (label, _)) in enumerate(zip(legend.get_texts(), entries, strict=True)):
        text.set_parse_math(False)
        text.set_text(label)
        text.set_gid(f"name,legend-{number},{quote(label, safe='')}")


def name_lines(figure: Figure) -> None:
    """Write the name of each series at the end of its line, without overlaps; nothing if the figure has a legend."""
    down = grid_shape(len(figure.axes))[1]
    gap = _NAME / (figure.get_figheight() / down - 0.6)
    for panel, axes in enumerate([] if figure.legends else figure.axes):
        axes.autoscale_view()  # sets the limits, which heights depend on
        ends = []
        for line in axes.lines:
            kind, _, name = (line.get_gid() or ",,").split(",")
            if kind == "line" and name:
                point = np.asarray(line.get_xydata())[-1]
                height = (axes.transData - axes.transAxes).transform(point)[1]
                ends.append((min(max(height, 0.0), 1.0), name, line.get_color(), tuple(point)))
        ends.sort(key=lambda end: end[0])
        heights = spread_out([end[0] for end in ends], gap)
        for number, (height, (_, name, colour, point)) in enumerate(zip(heights, ends, strict=True)):
            style: Style = {"color": colour, "fontsize": 7, "va": "center", "annotation_clip": False}
            leader: Style = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.5, "relpos": (0, 0.5)}
            leader |= {"patchA": None, "shrinkA": 4, "shrinkB": 0}  # by default clipped at three shapes, which is slow
            text = axes.annotate("", point, (1.04, height), "data", "axes fraction", leader, **style)
            text.set_parse_math(False)
            text.set_text(unquote(name))
            text.set_gid(f"name,{panel}-{number},{name}")


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Return ascending heights, raised until neighbours are a `gap` apart, then lowered so that none is above 1; the
    lowest may then be below 0."""
    steps = gap * np.arange(len(heights))
    raised = np.maximum.accumulate(np.asarray(heights) - steps)
    return list(np.minimum(raised, 1 - gap * (len(heights) - 1)) + steps)
