"""Images of clients in a grid, a line of them per method, from what analyses found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

Place = tuple[int, int]
"""Client, and row of the image in the dataset."""
Items = dict[Place, dict[str, NDArray[np.float64]]]
"""What is known of an image, by kind."""


def read_items(found: pd.DataFrame) -> tuple[dict[str, Items], str]:
    """Collect items called ``<kind>.<row of the image>`` by the row of the table: of the first column that has any, and
    of the first run of each cell.

    Returns:
        The items, and sentences on what is left out.
    """
    panels = found["panel"].unique()
    own = found[found["panel"] == panels[0]].sort_values(["series", "client", "item", "index"])
    rows: dict[str, Items] = {}
    for name, of_row in own.groupby("series", observed=True):
        first = of_row[of_row["run"] == of_row["run"].iloc[0]]
        for (client, item), values in first.groupby(["client", "item"])["value"]:
            kind, _, row = str(item).partition(".")
            items = rows.setdefault(str(name), {})
            items.setdefault((int(client), int(row)), {})[kind] = values.to_numpy(np.float64)
    words = f" Shown for {panels[0]}, the first of {len(panels)} columns." if len(panels) > 1 else ""
    if (found.groupby(["series", "panel"], observed=True)["run"].nunique() > 1).any():
        words += " Of several runs of a cell the first is shown."
    return rows, words


def square(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of a square, rows first."""
    return values.reshape(math.isqrt(len(values)), -1)


def pixels(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a square image [H, W, 3] of numbers 0..255, channels first: three, or one where they are a square."""
    channels = 1 if math.isqrt(len(values)) ** 2 == len(values) else 3
    planes = [square(plane) for plane in np.array_split(values, channels)]
    return np.asarray(np.stack(planes * (3 // len(planes)), axis=-1).clip(0, 255).round(), np.uint8)


def image_grid(places: Sequence[Place], lines: Mapping[str, Callable[[Axes, Place], None]], inches: float) -> Figure:
    """Make a figure with a panel for each place in each line, which draws what it has of the place."""
    width = 0.075 * max(map(len, lines)) + inches * len(places)
    figure = Figure(figsize=(width, inches * len(lines) + 0.3), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.02, w_pad=0.02)  # type: ignore[union-attr, call-arg]
    grid: Any = figure.subplots(len(lines), len(places), squeeze=False)
    for panels, (name, draw) in zip(grid, lines.items(), strict=True):
        panels[0].set_ylabel(name, rotation=0, ha="right", va="center", parse_math=False)
        for panel, place in zip(panels, places, strict=True):
            panel.grid(visible=False)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
            draw(panel, place)
    for panel, (client, _) in zip(grid[0], places, strict=True):
        panel.set_title(f"client {client}")
    return figure
