"""How the cells of a table are laid out as a chart: which axis runs to the right, what are series, what are panels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.report.table.cells import Cell, Key
from pipeline.report.table.layout import Layout, headed, short
from pipeline.report.table.results import Results

_ROOM = 0.1 - 1e-9
"""The least distance of two ticks on a true scale, as a share of the whole scale, at which both labels can be read."""
_GROUP = 0.8
"""The share of the distance between two ticks that the series beside one another take."""


@dataclass(frozen=True)
class Arrangement:
    """The cells of a table on a chart.

    Attributes:
        axis: Of the table, which runs to the right; "" for a table without axes.
        ticks: Its labels in the order of their positions.
        at: Label → position.
        numeric: Its labels are numbers.
        even: Positions are 0, 1, 2, …; otherwise they are the numbers.
        series: What is told apart by style within a panel, in the table's order, and its words.
        panels: What has a panel each, in the table's order, and its title.
        cells: (panel, series) → its cells by position.
    """

    axis: str
    ticks: list[str]
    at: dict[str, float]
    numeric: bool
    even: bool
    series: dict[Key, str]
    panels: dict[Key, str]
    cells: dict[tuple[Key, Key], list[Cell]]

    def position(self, cell: Cell) -> float:
        """Where a cell lies to the right."""
        return self.at[cell.labels[self.axis]] if self.axis else 0.0

    @property
    def gap(self) -> float:
        """The least distance of two ticks."""
        return _least_gap(list(self.at.values()))

    @property
    def reach(self) -> float:
        """From the first tick to the last."""
        places = list(self.at.values())
        return places[-1] - places[0]

    @property
    def slot(self) -> float:
        """How wide a series is at each tick when all lie beside one another."""
        return _GROUP * self.gap / len(self.series)

    def shift(self, series: Key) -> float:
        """How far from its tick a series lies when all lie beside one another."""
        return (list(self.series).index(series) - (len(self.series) - 1) / 2) * self.slot

    @property
    def title(self) -> str:
        """What to write under the axis; names need no words about them."""
        return short(self.axis) if self.numeric else ""

    @property
    def tick_words(self) -> list[str]:
        """The labels as they are written at the axis."""
        return self.ticks if self.numeric else [headed(self.axis, label) for label in self.ticks]


def arrange(results: Results) -> Arrangement:
    """Lay out a table.

    To the right runs the innermost column axis of numbers, or the innermost such row axis, or, where no axis has
    numbers only, the innermost column axis or row axis that has several labels. The other rows are series and the other
    columns panels; where that would be a single series in panels by several axes, the innermost of these are series as
    well.
    """
    labels, layout = results.table.labels, results.layout
    axis = _rightwards(layout, labels)
    series_axes = [name for name in layout.row_axes if name != axis]
    panel_axes = [name for name in layout.column_axes if name != axis]
    cells = layout.cells
    if len(panel_axes) > 1 and len({cell.key(series_axes) for cell in cells}) < 2:
        series_axes.append(panel_axes.pop())

    present = {cell.labels[axis] for cell in cells} if axis else {""}
    ticks = [label for label in labels.get(axis, [""]) if label in present]
    numeric = _are_numbers(ticks)
    even = True
    if numeric:
        ticks = sorted(ticks, key=float)
        numbers = [float(label) for label in ticks]
        even = _least_gap(numbers) < _ROOM * (numbers[-1] - numbers[0])
    at = {label: float(rank) if even else float(label) for rank, label in enumerate(ticks)}

    def words(axes: list[str]) -> dict[Key, str]:
        ranks = {name: {label: rank for rank, label in enumerate(labels[name])} for name in axes}
        keys = sorted(
            {cell.key(axes) for cell in cells},
            key=lambda key: [ranks[name][label] for name, label in zip(axes, key, strict=True)],
        )
        return {key: " · ".join(map(headed, axes, key)) for key in keys}

    placed: dict[tuple[Key, Key], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: at[cell.labels[axis]] if axis else 0.0):
        placed.setdefault((cell.key(panel_axes), cell.key(series_axes)), []).append(cell)
    return Arrangement(axis, ticks, at, numeric, even, words(series_axes), words(panel_axes), placed)


def _rightwards(layout: Layout, labels: dict[str, list[str]]) -> str:
    axes = [*reversed(layout.column_axes), *reversed(layout.row_axes)]
    several = [axis for axis in axes if len(labels[axis]) > 1]
    return next((axis for axis in several if _are_numbers(labels[axis])), [*several, *axes, ""][0])


def _are_numbers(labels: Iterable[str]) -> bool:
    """Whether these are two or more different numbers."""
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return False
    return len(numbers) > 1 and len(set(numbers)) == len(numbers) and all(map(math.isfinite, numbers))


def _least_gap(places: Sequence[float]) -> float:
    """Between neighbours in a sorted list; 1 for a single one."""
    return min((b - a for a, b in itertools.pairwise(places)), default=1.0)
