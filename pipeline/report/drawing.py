"""Matplotlib figures as SVG documents and PNG files: one style, and the same bytes for the same figure."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


def svg(draw: Callable[[], Figure], style: Mapping[str, Any] | None = None) -> str:
    """What `draw` makes, drawn in the common style with changes of its own."""
    with _drawing(style):
        return _svg(draw())


def svg_and_png(draw: Callable[[], Figure], style: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
    """As :func:`svg`, and the same figure as a PNG file, which LaTeX can include."""
    with _drawing(style):
        figure = draw()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
        return _svg(figure), buffer.getvalue()


@contextmanager
def _drawing(style: Mapping[str, Any] | None) -> Iterator[None]:
    with matplotlib.style.context(["default", {**_STYLE, **(style or {})}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_DATES)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
