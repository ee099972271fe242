"""What detectors find: boxes on test images, a row per method, and first the objects that are there."""

from __future__ import annotations

from functools import partial

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pipeline.report.drawing.images import Items, Place, image_grid, pixels, read_items
from pipeline.report.drawing.sections import Picture, Section, counted
from pipeline.report.figures._data import TableData

MAX_IMAGES = 6
_TEXT = (
    "Test images of some clients: above with the objects that are there, below with what a client's own model finds, "
    "if its score reaches the analysis's `least`. A colour is a class; difficult objects are dashed."
)
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw(data: TableData) -> Section:
    """Draw the images with their objects once, then a line per method.

    The item ``image.<row>`` holds the pixels 0..255 of an image, channels first, ``found.<row>`` and ``there.<row>``
    six numbers per box: class, left, top, right, bottom, and the score, or whether the object is difficult.
    """
    rows, words = read_items(data.findings("detections"))
    every = {place: kinds for items in reversed(rows.values()) for place, kinds in items.items()}
    places = sorted(every)[:MAX_IMAGES]
    lines = {"objects": partial(_show, every, "there")}
    lines |= {name: partial(_show, items, "found") for name, items in rows.items()}
    alt = f"{counted(len(places), 'image')}, with objects and with what {counted(len(rows), 'method')} found."
    return Section(_TEXT + words, Picture(image_grid(places, lines, 1.5), alt, photos=True))


def _show(items: Items, kind: str, panel: Axes, place: Place) -> None:
    if place not in items:
        return
    image = pixels(items[place]["image"])
    height, width = image.shape[:2]
    panel.imshow(image, interpolation="none")
    boxes = items[place].get(kind)
    for label, left, top, right, bottom, last in () if boxes is None else boxes.reshape(-1, 6):
        colour = _COLOURS[int(label) % len(_COLOURS)]
        corner, across, down = (left * width - 0.5, top * height - 0.5), (right - left) * width, (bottom - top) * height
        style = "--" if kind == "there" and last else "-"
        panel.add_patch(Rectangle(corner, across, down, fill=False, edgecolor=colour, linewidth=1.0, linestyle=style))
