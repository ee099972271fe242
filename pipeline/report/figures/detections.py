"""What detectors find: boxes on test images, a row per method, and first the objects that are there."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from pipeline.report.drawing.images import draw_images, pixels
from pipeline.report.drawing.panels import COLOURS
from pipeline.report.drawing.sections import Section
from pipeline.report.figures._data import TableData

_TEXT = (
    "Test images of some clients: above with the objects that are there, below with what a client's own model finds, "
    "if its score reaches the analysis's `least`. A colour is a class; difficult objects are dashed."
)


def draw(data: TableData) -> Section:
    """Draw the images with their objects once, then a line per method.

    The item ``image.<row>`` holds the pixels 0..255 of an image, channels first, ``found.<row>`` and ``there.<row>``
    six numbers per box: class, left, top, right, bottom, and the score, or whether the object is difficult.
    """
    return draw_images(data.findings("detections"), _TEXT, "objects", _show, most=6, inches=1.5)


def _show(panel: Axes, kinds: dict[str, NDArray[np.float64]], first: bool) -> None:
    image = pixels(kinds["image"])
    height, width = image.shape[:2]
    panel.imshow(image, interpolation="none")
    for label, left, top, right, bottom, last in kinds.get("there" if first else "found", np.empty(0)).reshape(-1, 6):
        corner, across, down = (left * width - 0.5, top * height - 0.5), (right - left) * width, (bottom - top) * height
        style, colour = "--" if first and last else "-", COLOURS[int(label) % len(COLOURS)]
        panel.add_patch(Rectangle(corner, across, down, fill=False, edgecolor=colour, linewidth=1.0, linestyle=style))
