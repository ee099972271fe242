"""Matplotlib figures as SVG documents and PNG files: one style, and the same bytes for the same figure."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure

_STYLE = {
    "svg.hashsalt": "pfl",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
}
_NO_DATES = {"Date": None, "Creator": None, "Format": None, "Type": None}
_DPI = 200
_POINTS = 72  # user units of an SVG per inch


def svg_and_png(draw: Callable[[], Figure], style: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
    """What `draw` makes, drawn in the common style with changes of its own, and the same as PNG for LaTeX."""
    with _drawing(style):
        figure = draw()
        png = _png(figure)
        return _svg(figure), png


@dataclass(frozen=True)
class Box:
    """Where the axes of a drawing lie in its SVG, in user units from the top left, and which data they span."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]


@dataclass(frozen=True)
class Drawing:
    """A figure, as PNG if that was wanted and otherwise "", and the boxes of its axes that are not switched off."""

    svg: str
    png: bytes
    boxes: list[Box]


def svg_with_boxes(draw: Callable[[], Figure], style: Mapping[str, Any] | None = None, *, png: bool = False) -> Drawing:
    """As :func:`svg_and_png`, and where the axes lie."""
    with _drawing(style):
        figure = draw()
        document = _svg(figure)
        boxes = _boxes(figure)
        return Drawing(document, _png(figure) if png else b"", boxes)


@contextmanager
def _drawing(style: Mapping[str, Any] | None) -> Iterator[None]:
    with matplotlib.style.context(["default", {**_STYLE, **(style or {})}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_DATES)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


def _boxes(figure: Figure) -> list[Box]:
    width, height = (float(inches) * _POINTS for inches in figure.get_size_inches())
    boxes = []
    for axes in (axes for axes in figure.axes if axes.axison):
        at = axes.get_position()
        x, y = ((float(low), float(high)) for low, high in (axes.get_xlim(), axes.get_ylim()))
        boxes.append(Box(at.x0 * width, (1 - at.y1) * height, at.width * width, at.height * height, x, y))
    return boxes
