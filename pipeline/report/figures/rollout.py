"""Where a vision Transformer looks: attention rollout over test images, a row per method (FedTP)."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pipeline.report.drawing.images import draw_images, pixels, square
from pipeline.report.drawing.sections import Section
from pipeline.report.figures._data import TableData

_TEXT = (
    "Test images of some clients, and over the same images in grey what the class token of the client's own model "
    "attends to (attention rollout, relative to its strongest patch): dark is nothing, light is most."
)
_LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue in the lightness of a pixel (ITU-R BT.601)


def draw(data: TableData) -> Section:
    """Draw the images once, then a line of attention per method.

    The item ``image.<row>`` holds the pixels 0..255 of an image, channels first, ``mask.<row>`` the attention of its
    patches, 0 to 1, rows first; `index` counts both.
    """
    return draw_images(data.findings("rollout"), _TEXT, "image", _show, most=10, inches=0.95)


def _show(panel: Axes, kinds: dict[str, NDArray[np.float64]], first: bool) -> None:
    image = pixels(kinds["image"])
    panel.imshow(image if first else overlaid(image, square(kinds["mask"])), interpolation="none")


def overlaid(image: NDArray[np.uint8], mask: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return half the image [H, W, 3] in grey and half the mask [h, w], 0 to 1, as heat, smoothed between patches."""
    for axis, size in enumerate(image.shape[:2]):
        centres = (np.arange(mask.shape[axis]) + 0.5) * size / mask.shape[axis]
        at = np.arange(size) + 0.5
        mask = np.apply_along_axis(lambda own, at, xp: np.interp(at, xp, own), axis, mask, at, centres)
    heat = 255.0 * colormaps["inferno"](mask)[..., :3]
    return np.asarray(np.rint(((image @ _LUMA)[..., None] + heat) / 2), np.uint8)
