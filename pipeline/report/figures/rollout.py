"""Where a vision Transformer looks: attention rollout over test images, a row per method (FedTP)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.report.drawing.sections import Section, counted, draw_picture
from pipeline.report.table.cells import Key
from pipeline.report.table.results import Findings, Results

MAX_IMAGES = 10
_TEXT = (
    "Test images of some clients, and over the same images in grey what the class token of the client's own model "
    "attends to (attention rollout, relative to its strongest patch): dark is nothing, light is most."
)
_NOT_SQUARE = "Only square images are drawn; the attention on these is in the runs' analysis.parquet."
_LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue in the lightness of a pixel (ITU-R BT.601)
_STYLE = {"axes.grid": False, "figure.constrained_layout.h_pad": 0.02, "figure.constrained_layout.w_pad": 0.02}

Pixels = NDArray[np.uint8]
Mask = NDArray[np.float64]
Place = tuple[int, int]
"""Client, and row of the image in the dataset."""


@dataclass(frozen=True)
class Rollout:
    """One method.

    Attributes:
        images: uint8 [H, W, 3].
        masks: [patches down, patches across], 0 to 1.
    """

    row: Key
    images: dict[Place, Pixels]
    masks: dict[Place, Mask]


def draw(results: Results) -> Section:
    """The section: the images once, then a line of attention per method, for the first column that has any.

    The item ``image.<row>`` holds the pixels 0..255 of an image, channels first, ``mask.<row>`` the attention of its
    patches, 0 to 1, rows first; `index` counts both.

    Raises:
        UserError: An image or a mask has gaps, or one lacks the other.
    """
    results = results.of_runs
    cells = list(results.found("rollout"))
    if not all(_all_square(first) for _, _, (first, *_) in cells):
        return Section(_NOT_SQUARE)
    columns = list(dict.fromkeys(column for _, column, _ in cells))
    rows = [_read(row, first) for row, column, (first, *_) in cells if column == columns[0]]
    places = sorted({place for r in rows for place in r.masks})
    drawn = [
        places[i] for i in np.unique(np.linspace(0, len(places) - 1, min(len(places), MAX_IMAGES)).round()).astype(int)
    ]
    words = [_TEXT]
    if len(columns) > 1:
        words.append(f"Shown for {results.layout.column_title(columns[0])}, the first of {len(columns)} columns.")
    if len(drawn) < len(places):
        words.append(f"{len(drawn)} of {len(places)} images.")
    if any(len(of_cell) > 1 for _, _, of_cell in cells):
        words.append("Of several runs of a cell the first is shown.")
    clients = counted(len({client for client, _ in drawn}), "client")
    methods = f"{counted(len(rows), 'method')} attend" + ("s" if len(rows) == 1 else "")
    alt = f"{counted(len(drawn), 'image')} of {clients}, and over them what {methods} to."
    picture = draw_picture(lambda: _draw(rows, drawn), alt, _STYLE, photos=True)
    return Section(" ".join(words), picture)


def overlaid(image: Pixels, mask: Mask) -> Pixels:
    """Half the image in grey and half the mask as heat, the mask interpolated between the centres of its patches.

    The heat is lighter where there is more of it, so it can be seen in grey too, and over dark images.

    Args:
        image: [H, W, 3].
        mask: [h, w], 0 to 1.
    """
    for axis, size in enumerate(image.shape[:2]):
        centres = (np.arange(mask.shape[axis]) + 0.5) * size / mask.shape[axis]
        mask = np.apply_along_axis(partial(_between, centres, np.arange(size) + 0.5), axis, mask)
    heat = 255.0 * colormaps["inferno"](mask)[..., :3]
    grey = image @ _LUMA
    return np.asarray(np.rint((grey[..., None] + heat) / 2), np.uint8)


def _between(centres: Mask, at: Mask, values: Mask) -> Mask:
    return np.interp(at, centres, values)


def _read(row: Key, findings: Findings) -> Rollout:
    images: dict[Place, Pixels] = {}
    masks: dict[Place, Mask] = {}
    for key, part in findings.rows.groupby(["client", "item"], sort=True):
        client, item = map(str, key)
        kind, _, number = item.partition(".")
        values = part.sort_values("index")
        gaps = not np.array_equal(values["index"].to_numpy(), np.arange(len(values)))
        if kind not in ("image", "mask") or not number.isdecimal() or gaps:
            raise findings.damaged(f"rollout: client {client}, {item!r} is no complete image.<row> or mask.<row>")
        place = (int(client), int(number))
        numbers = values["value"].to_numpy(np.float64)
        if kind == "image":
            images[place] = _image(numbers)
        else:
            masks[place] = _square(numbers)
    alone = sorted(masks.keys() ^ images.keys())
    if alone:
        raise findings.damaged(f"rollout: client {alone[0][0]}, row {alone[0][1]}: an image and its mask go together")
    return Rollout(row, images, masks)


def _all_square(findings: Findings) -> bool:
    """Whether what a mask or an image holds is a square, or three squares, one per channel; it cannot be both."""
    counts = {int(count) for count in findings.rows.groupby(["client", "item"]).size()}
    return all(_is_square(count) or (count % 3 == 0 and _is_square(count // 3)) for count in counts)


def _is_square(count: int) -> bool:
    return math.isqrt(count) ** 2 == count


def _image(values: NDArray[np.float64]) -> Pixels:
    channels = 1 if _is_square(len(values)) else 3
    planes = [_square(plane) for plane in np.array_split(values, channels)]
    return np.asarray(np.stack(planes if channels == 3 else planes * 3, axis=-1).clip(0, 255).round(), np.uint8)


def _square(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values.reshape(math.isqrt(len(values)), -1)


def _draw(rows: list[Rollout], places: list[Place]) -> Figure:
    # Methods on one partition share their images; where one lacks them, another has them.
    originals = {place: image for r in reversed(rows) for place, image in r.images.items()}
    names = ["image", *(" · ".join(r.row) for r in rows)]
    figure = Figure(
        figsize=(0.075 * max(map(len, names)) + 0.95 * len(places), 0.95 * len(names) + 0.3), layout="constrained"
    )
    grid: Any = figure.subplots(len(names), len(places), squeeze=False)
    for line, name in zip(grid, names, strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", parse_math=False)
    for panel in grid.flat:
        panel.set_xticks([])
        panel.set_yticks([])
        panel.spines[:].set_visible(False)
    for position, place in enumerate(places):
        grid[0, position].set_title(f"client {place[0]}")
        _show(grid[0, position], originals[place])
        for line, r in zip(grid[1:], rows, strict=True):
            if place in r.masks:
                _show(line[position], overlaid(r.images[place], r.masks[place]))
    return figure


def _show(panel: Any, image: Pixels) -> None:
    panel.imshow(image, interpolation="none")
