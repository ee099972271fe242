"""Where a vision Transformer looks: attention rollout over test images, a row per method (FedTP)."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pipeline.report.drawing.images import Items, Place, image_grid, pixels, read_items, square
from pipeline.report.drawing.sections import Picture, Section, counted
from pipeline.report.figures._data import TableData

MAX_IMAGES = 10
_TEXT = (
    "Test images of some clients, and over the same images in grey what the class token of the client's own model "
    "attends to (attention rollout, relative to its strongest patch): dark is nothing, light is most."
)
_LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue in the lightness of a pixel (ITU-R BT.601)

Mask = NDArray[np.float64]


def draw(data: TableData) -> Section:
    """Draw the images once, then a line of attention per method.

    The item ``image.<row>`` holds the pixels 0..255 of an image, channels first, ``mask.<row>`` the attention of its
    patches, 0 to 1, rows first; `index` counts both.
    """
    rows, words = read_items(data.findings("rollout"))
    # Methods on one partition share their images; where one lacks them, another has them.
    every = {place: kinds for items in reversed(rows.values()) for place, kinds in sorted(items.items())}
    places = sorted(every)
    shown = [places[at] for at in np.linspace(0, len(places) - 1, min(len(places), MAX_IMAGES)).round().astype(int)]
    if len(shown) < len(places):
        words += f" {len(shown)} of {len(places)} images."
    lines = {"image": partial(_image, every)} | {name: partial(_attention, items) for name, items in rows.items()}
    alt = f"{counted(len(shown), 'test image')}, and what the models of {counted(len(rows), 'method')} attend to."
    return Section(_TEXT + words, Picture(image_grid(shown, lines, 0.95), alt, photos=True))


def _image(items: Items, panel: Axes, place: Place) -> None:
    panel.imshow(pixels(items[place]["image"]), interpolation="none")


def _attention(items: Items, panel: Axes, place: Place) -> None:
    if place in items:
        panel.imshow(overlaid(pixels(items[place]["image"]), square(items[place]["mask"])), interpolation="none")


def overlaid(image: NDArray[np.uint8], mask: Mask) -> NDArray[np.uint8]:
    """Return half the image in grey and half the mask as heat, interpolated between the centres of its patches.

    The heat is lighter where there is more of it, so it can be seen in grey too, and over dark images.

    Args:
        image: [H, W, 3].
        mask: [h, w], 0 to 1.
    """
    for axis, size in enumerate(image.shape[:2]):
        centres = (np.arange(mask.shape[axis]) + 0.5) * size / mask.shape[axis]
        mask = np.apply_along_axis(
            lambda own, at, xp: np.interp(at, xp, own), axis, mask, np.arange(size) + 0.5, centres
        )
    heat = 255.0 * colormaps["inferno"](mask)[..., :3]
    return np.asarray(np.rint(((image @ _LUMA)[..., None] + heat) / 2), np.uint8)
