"""What the figures of a table's own numbers share: panels and ticks, marks with deviations, published values beside."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.drawing.arrangement import Arrangement, arrange
from pipeline.report.drawing.panels import Style, add_legend, grid_shape, panel_grid, styles_of, with_room
from pipeline.report.drawing.sections import counted
from pipeline.report.table.cells import ACCURACY, Cell, Key, Value
from pipeline.report.table.layout import short
from pipeline.report.table.results import Results

NOTHING = "No number of this table has been obtained yet."
_HOLLOW: Style = {"linestyle": "none", "markerfacecolor": "none", "alpha": 0.8}
_BESIDE = 0.4  # of a slot: how far right of its cell a published value lies where series lie beside one another
_NEAR = 0.02  # of the axis: the same where they do not
_EDGE = 0.05  # of the axis, before the first tick and after the last

# Inches.
_LETTER = 0.075  # of a tick's label
_MARK = 0.1  # wide enough for a mark not to touch the next
_WIDEST = 9.0  # of panels

_SLANT = 35.0  # degrees, of labels that have no room side by side

DrawSeries = Callable[[Axes, list[Cell], list[float], Style], None]
"""Draws the cells of a series at these positions."""


@dataclass(frozen=True)
class Chart:
    """A table laid out, and the panels of it that are drawn.

    Attributes:
        beside: Series lie beside one another at each tick, not over one another.
        left_out: A sentence on panels without room, or "".
    """

    arrangement: Arrangement
    panels: list[Key]
    beside: bool
    left_out: str

    @property
    def words(self) -> str:
        """Sentences on what such figures have in common."""
        said = [" The axis of accuracy begins where the values do, not at 0: compare where marks lie."]
        if len(self.panels) > 1:
            said.append(" Each panel has a scale of its own.")
        if self.arrangement.numeric:
            said.append(" A line breaks where a number is missing.")
            if self.arrangement.even:
                said.append(" To the right, labels are evenly spaced, as on a true scale some would hide others.")
        if any(cell.published for cell in self._cells()):
            said.append(" Hollow, beside it: the published value.")
        return "".join([*said, self.left_out])

    @property
    def figure(self) -> str:
        """What is measured."""
        return next((cell.figure for cell in self._cells()), ACCURACY)

    @property
    def alt(self) -> str:
        """The picture in a sentence, for those who do not see it."""
        of, means = self.arrangement, [cell.obtained.mean for cell in self._cells() if cell.obtained]
        over = f" over {short(of.axis)}" if of.axis else ""
        return (
            f"Test {self.figure}{over}, {len(self._series())} series in {counted(len(self.panels), 'panel')}: "
            f"from {min(means):.2f} to {max(means):.2f}."
        )

    def draw(self, draw: DrawSeries) -> Figure:
        """Panels with ticks and what `draw` puts into them, published values, and a legend."""
        of = self.arrangement
        titles = [of.panels[panel] for panel in self.panels]
        figure, all_axes = panel_grid(titles, of.title, self.figure)
        styles = {
            key: style if of.numeric else {**style, "linestyle": "none"} for key, style in styles_of(of.series).items()
        }
        series = self._series()
        for axes, panel in zip(all_axes, self.panels, strict=True):
            for key in series:
                cells = of.cells.get((panel, key), [])
                at = [of.position(cell) + (of.shift(key) if self.beside else 0.0) for cell in cells]
                draw(axes, cells, at, styles[key])
                right = _BESIDE * of.slot if self.beside else _NEAR * of.reach
                published = {x + right: cell.published for x, cell in zip(at, cells, strict=True) if cell.published}
                if published:
                    draw_values(axes, list(published), list(published.values()), {**styles[key], **_HOLLOW})
            axes.margins(y=0.1)
        self._set_ticks(figure, all_axes)
        entries = [(of.series[key], styles[key]) for key in series if key]
        if any(cell.published for cell in self._cells()):
            entries.append(("published", {"color": "#666666", "marker": "o", **_HOLLOW}))
        if entries:
            add_legend(figure, entries)
        return figure

    def _series(self) -> list[Key]:
        return [key for key in self.arrangement.series if any(c.published or c.obtained for c in self._cells(key))]

    def _cells(self, series: Key | None = None) -> list[Cell]:
        """Of the panels that are drawn, of all series or one."""
        cells = self.arrangement.cells.items()
        return [c for (panel, key), own in cells if panel in self.panels and series in (None, key) for c in own]

    def _set_ticks(self, figure: Figure, all_axes: Sequence[Axes]) -> None:
        of = self.arrangement
        across, down = grid_shape(len(all_axes))
        if self.beside:
            needed = min(_WIDEST, _MARK * 2 * len(of.series) * len(of.ticks))
            figure.set_figwidth(max(figure.get_figwidth(), needed * across))
        room = 0.8 * figure.get_figwidth() / across / len(of.ticks)
        longest = _LETTER * max(map(len, of.tick_words))
        slant = _SLANT if longest > room else 0.0
        figure.set_figheight(figure.get_figheight() + longest * math.sin(math.radians(slant)) * down)
        edge = of.gap / 2 if self.beside else _EDGE * of.reach
        places = list(of.at.values())
        for axes in all_axes:
            axes.set_xlim(places[0] - edge, places[-1] + edge)
            if self.beside and len(of.series) > 1:  # what is at one tick is told from the next by lines between them
                axes.grid(visible=False, axis="x")
                for one, other in itertools.pairwise(places):
                    axes.axvline((one + other) / 2, color="#dddddd", linewidth=0.6)
            axes.set_xticks(places, of.tick_words, parse_math=False)
            if slant:
                for label in axes.get_xticklabels():
                    label.set(rotation=slant, ha="right", rotation_mode="anchor")


def chart(results: Results, name: str, *, boxed: bool) -> Chart | None:
    """The chart of a figure called `name`; None where no number has been obtained.

    Args:
        boxed: What is drawn of a cell is wide, so that series must not lie over one another.
    """
    of = arrange(results)
    panels = [
        panel for panel in of.panels if any(c.obtained for key in of.series for c in of.cells.get((panel, key), []))
    ]
    drawn, left_out = with_room(panels, name)
    return Chart(of, drawn, boxed or not of.numeric, left_out) if drawn else None


def draw_values(axes: Axes, at: list[float], numbers: Sequence[Value | None], style: Style) -> None:
    """Marks with their deviations; the line, if the style has one, breaks at None."""
    means = [math.nan if value is None else value.mean for value in numbers]
    stds = [math.nan if value is None or value.std is None else value.std for value in numbers]
    marks = {"linewidth": 1.3, "elinewidth": 0.9, "capsize": 2.0, "markersize": 4.5, **style}
    axes.errorbar(at, means, yerr=stds, **marks)
