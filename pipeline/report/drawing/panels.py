"""What figures with a panel per setting share: a style for each row of the table, panels in lines, one legend."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.report.table.cells import Key
from pipeline.report.table.layout import Layout

MAX_PANELS = 8
_LEGEND_LINES = 3
_LINE = 0.2  # inches

Style = dict[str, Any]
K = TypeVar("K")


@dataclass(frozen=True)
class Placed:
    """What is shown of a cell."""

    row: Key
    column: Key

    @property
    def name(self) -> Key:
        """What it is called in a legend, and told apart by within a panel."""
        return self.row


P = TypeVar("P", bound=Placed)

# Okabe and Ito's colours, told apart by colour-blind readers; line styles and markers carry the same in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def styles_of(keys: Iterable[K]) -> dict[K, Style]:
    """A colour, a line style and a marker for each key, by its position: a row looks the same in every figure."""
    return dict(zip(keys, _line_styles(), strict=False))


def columns_of(layout: Layout, shown: Iterable[Placed]) -> list[Key]:
    """The columns of which anything is shown, in the table's order."""
    present = {one.column for one in shown}
    return [column for column in layout.columns if column in present]


def with_room(columns: Sequence[Key], name: str) -> tuple[list[Key], str]:
    """The columns that panels are drawn for, and a sentence on those that there is no room for, or "".

    Args:
        name: Of the figure, whose CSV file has them all.
    """
    left_out = max(0, len(columns) - MAX_PANELS)
    return list(columns[:MAX_PANELS]), f" Columns without a panel: {left_out}; see {name}.csv." if left_out else ""


def grid_shape(panels: int) -> tuple[int, int]:
    """How many panels lie beside one another, and how many below."""
    across = max(1, panels if panels <= 3 else math.ceil(panels / 2))
    return across, math.ceil(panels / across) or 1


def panel_grid(titles: Sequence[str], xlabel: str, ylabel: str, *, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per title, in at most two lines of panels if there are more than three.

    Args:
        height: Of a panel, in inches.
    """
    across, down = grid_shape(len(titles))
    width = max(5.0, (2.9 if across > 2 else 3.6) * across)
    figure = Figure(figsize=(width, height * down + 0.7), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for panel in grid.flat[len(titles) :]:
        panel.set_axis_off()
    panels = list(grid.flat[: len(titles)])
    for index, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        panel.set_title(title, parse_math=False)
        panel.set_ylabel(ylabel if index % across == 0 else "")
        panel.set_xlabel(xlabel if index + across >= len(titles) else "")
    return figure, panels


def draw_columns(
    layout: Layout,
    shown: Sequence[P],
    names: Iterable[Key],
    columns: Sequence[Key],
    labels: tuple[str, str],
    draw: Callable[[Axes, list[P], dict[Key, Style]], None],
    **legend: Any,
) -> Figure:
    """A panel for each of some columns of a table, and a legend of what is in them.

    Args:
        names: Of all that may be shown, in the order of their styles.
        labels: Of the axis to the right and of the one upwards.
        draw: Draws what is shown of a column, in the styles of the names.
        legend: What is different from these styles in the legend.
    """
    styles = styles_of(names)
    figure, panels = panel_grid([layout.column_title(column) for column in columns], *labels)
    for panel, column in zip(panels, columns, strict=True):
        draw(panel, [one for one in shown if one.column == column], styles)
    drawn = {one.name for one in shown if one.column in columns}
    add_legend(figure, [(" · ".join(name), {**style, **legend}) for name, style in styles.items() if name in drawn])
    return figure


def add_legend(figure: Figure, entries: Sequence[tuple[str, Style]], title: str = "") -> None:
    """One legend under all panels: a line in its style for each label."""
    handles = [Line2D([], [], linewidth=1.3, markersize=4, **style) for _, style in entries]
    # Labels are set afterwards: matplotlib drops those that begin with an underscore and reads $ as mathematics.
    blank = ["x" * len(label) for label, _ in entries]
    ncols = max(1, int(12 * figure.get_figwidth() / (7 + max(map(len, blank)))))  # at about 12 characters per inch
    # The figure has room for a few lines of a legend; what is more makes it higher, not its panels lower.
    more = math.ceil(len(entries) / ncols) - _LEGEND_LINES
    figure.set_figheight(figure.get_figheight() + _LINE * max(0, more))
    legend = figure.legend(handles, blank, loc="outside lower center", ncols=ncols, frameon=False, title=title or None)
    for text, (label, _) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def _line_styles() -> Iterator[Style]:
    for index in itertools.count():
        yield {
            "color": _COLOURS[index % len(_COLOURS)],
            "linestyle": _STYLES[index % len(_STYLES)],
            "marker": _MARKERS[index % len(_MARKERS)],
        }
