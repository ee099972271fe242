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

from pipeline.report.drawing.sections import Picture, Section, counted

Position = tuple[int, int]
"""Client, and row of the image in the dataset."""
Items = dict[Position, dict[str, NDArray[np.float64]]]
"""What is known of an image, by kind."""


def draw_images(
    found: pd.DataFrame,
    text: str,
    first: str,
    draw: Callable[[Axes, dict[str, NDArray[np.float64]], bool], None],
    *,
    most: int,
    inches: float,
) -> Section:
    """Draw at most `most` images, evenly chosen: a line called `first` of the images, then a line per row of the table.

    Items are called ``<kind>.<row of the image>``. Of columns the first is shown, and of a cell the first run.

    Args:
        draw: Called with a panel, what is known of its image by kind, and whether the panel is in the first line.
    """
    panels = found["panel"].unique()
    own = found[found["panel"] == panels[0]].sort_values(["series", "client", "item", "index"])
    lines: dict[str, Items] = {}
    for name, of_row in own.groupby("series", observed=True):
        items = lines.setdefault(str(name), {})
        for (client, item), values in of_row[of_row["run"] == of_row["run"].iloc[0]].groupby(["client", "item"])[
            "value"
        ]:
            kind, _, row = str(item).partition(".")
            items.setdefault((int(client), int(row)), {})[kind] = values.to_numpy(np.float64)
    # Methods on one partition share their images; where one lacks them, another has them.
    every = {place: kinds for items in reversed(lines.values()) for place, kinds in items.items()}
    places = sorted(every)
    shown = [places[at] for at in np.linspace(0, len(places) - 1, min(len(places), most)).round().astype(int)]
    text += f" Shown for {panels[0]}, the first of {len(panels)} columns." if len(panels) > 1 else ""
    if (found.groupby(["series", "panel"], observed=True)["run"].nunique() > 1).any():
        text += " Of several runs of a cell the first is shown."
    text += f" {len(shown)} of {len(places)} images." if len(shown) < len(places) else ""
    alt = f"{counted(len(shown), 'test image')}, and the same for {counted(len(lines), 'method')}."
    return Section(text, Picture(_grid(shown, {first: every} | lines, draw, inches), alt, photos=True))


def square(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of a square, rows first."""
    return values.reshape(math.isqrt(len(values)), -1)


def pixels(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a square image [H, W, 3] of numbers 0..255, channels first: three, or one where they are a square."""
    channels = 1 if math.isqrt(len(values)) ** 2 == len(values) else 3
    planes = [square(plane) for plane in np.array_split(values, channels)]
    return np.asarray(np.stack(planes * (3 // len(planes)), axis=-1).clip(0, 255).round(), np.uint8)


def _grid(places: Sequence[Position], lines: Mapping[str, Items], draw: Callable[..., None], inches: float) -> Figure:
    width = 0.075 * max(map(len, lines)) + inches * len(places)
    figure = Figure(figsize=(width, inches * len(lines) + 0.3), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.02, w_pad=0.02)  # type: ignore[union-attr, call-arg]
    grid: Any = figure.subplots(len(lines), len(places), squeeze=False)
    for at, (panels, (name, items)) in enumerate(zip(grid, lines.items(), strict=True)):
        panels[0].set_ylabel(name, rotation=0, ha="right", va="center", parse_math=False)
        for panel, place in zip(panels, places, strict=True):
            panel.grid(visible=False)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
            if place in items:
                draw(panel, items[place], at == 0)
    for panel, (client, _) in zip(grid[0], places, strict=True):
        panel.set_title(f"client {client}")
    return figure
