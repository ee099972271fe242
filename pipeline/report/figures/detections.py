"""What detectors find: boxes on test images, a row per method, and first the objects that are there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from pipeline.report.drawing.sections import Section, counted, draw_picture
from pipeline.report.table.cells import Key
from pipeline.report.table.results import Findings, Results

MAX_IMAGES = 6
_TEXT = (
    "Test images of some clients: above with the objects that are there, below with what a client's own model finds, "
    "if its score reaches the analysis's `least`. A colour is a class; difficult objects are dashed."
)
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE = {"axes.grid": False, "figure.constrained_layout.h_pad": 0.02, "figure.constrained_layout.w_pad": 0.02}
_KINDS = ("image", "found", "there")

Place = tuple[int, int]
"""Client, and row of the image in the dataset."""


@dataclass(frozen=True)
class Seen:
    """One image as one method's client sees it.

    Attributes:
        image: uint8 [H, W, 3].
        found, there: (n, 6): class, left, top, right, bottom, and the score, or whether the object is difficult.
    """

    image: NDArray[np.uint8]
    found: NDArray[np.float64]
    there: NDArray[np.float64]


def draw(results: Results) -> Section:
    """The section: the images with their objects once, then a line per method, for the first column that has any.

    Raises:
        UserError: Images or boxes have gaps.
    """
    results = results.of_runs
    cells = list(results.found("detections"))
    columns = list(dict.fromkeys(column for _, column, _ in cells))
    rows = {row: _read(first) for row, column, (first, *_) in cells if column == columns[0]}
    places = sorted({place for seen in rows.values() for place in seen})[:MAX_IMAGES]
    words = [_TEXT]
    if len(columns) > 1:
        words.append(f"Shown for {results.layout.column_title(columns[0])}, the first of {len(columns)} columns.")
    if any(len(of_cell) > 1 for _, _, of_cell in cells):
        words.append("Of several runs of a cell the first is shown.")
    alt = f"{counted(len(places), 'image')}, with objects and with what {counted(len(rows), 'method')} found."
    return Section(" ".join(words), draw_picture(lambda: _draw(rows, places), alt, _STYLE, photos=True))


def _read(findings: Findings) -> dict[Place, Seen]:
    parts: dict[Place, dict[str, NDArray[np.float64]]] = {}
    for key, part in findings.rows.groupby(["client", "item"], sort=True):
        client, item = map(str, key)
        kind, _, number = item.partition(".")
        values = part.sort_values("index")
        gaps = not np.array_equal(values["index"].to_numpy(), np.arange(len(values)))
        if kind not in _KINDS or not number.isdecimal() or gaps or (kind != "image" and len(values) % 6):
            raise findings.damaged(f"detections: client {client}, {item!r} is no complete image, found or there")
        parts.setdefault((int(client), int(number)), {})[kind] = values["value"].to_numpy(np.float64)
    none = np.empty((0, 6))
    made = {}
    for place, own in parts.items():
        if "image" not in own:
            raise findings.damaged(f"detections: client {place[0]}, row {place[1]}: boxes without their image")
        found, there = (own.get(kind, none).reshape(-1, 6) for kind in _KINDS[1:])
        made[place] = Seen(_image(own["image"]), found, there)
    return made


def _image(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Square images are of one channel or of three; no number is both a square and three times one."""
    channels = 1 if math.isqrt(len(values)) ** 2 == len(values) else 3
    side = math.isqrt(len(values) // channels)
    planes = values.reshape(channels, side, -1).transpose(1, 2, 0)
    return np.asarray(np.broadcast_to(planes, (*planes.shape[:2], 3)).clip(0, 255).round(), np.uint8)


def _draw(rows: dict[Key, dict[Place, Seen]], places: list[Place]) -> Figure:
    names = ["objects", *(" · ".join(row) for row in rows)]
    width = 0.075 * max(map(len, names)) + 1.5 * len(places)
    figure = Figure(figsize=(width, 1.5 * len(names) + 0.3), layout="constrained")
    grid: Any = figure.subplots(len(names), len(places), squeeze=False)
    for line, name in zip(grid, names, strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", parse_math=False)
    for panel in grid.flat:
        panel.set_xticks([])
        panel.set_yticks([])
        panel.spines[:].set_visible(False)
    for position, place in enumerate(places):
        shown = next(seen[place] for seen in rows.values() if place in seen)
        grid[0, position].set_title(f"client {place[0]}")
        _show(grid[0, position], shown.image, shown.there, difficult=True)
        for line, seen in zip(grid[1:], rows.values(), strict=True):
            if place in seen:
                _show(line[position], seen[place].image, seen[place].found, difficult=False)
    return figure


def _show(panel: Any, image: NDArray[np.uint8], boxes: NDArray[np.float64], difficult: bool) -> None:
    height, width = image.shape[:2]
    panel.imshow(image, interpolation="none")
    for label, left, top, right, bottom, last in boxes:
        colour = _COLOURS[int(label) % len(_COLOURS)]
        corner, across, down = (left * width - 0.5, top * height - 0.5), (right - left) * width, (bottom - top) * height
        style = "--" if difficult and last else "-"
        panel.add_patch(Rectangle(corner, across, down, fill=False, edgecolor=colour, linewidth=1.0, linestyle=style))
