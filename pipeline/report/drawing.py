"""Matplotlib figures as SVG documents: one style, and the same bytes for the same figure."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
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


def svg(draw: Callable[[], Figure], style: Mapping[str, Any] | None = None) -> str:
    """What `draw` makes, drawn in the common style with changes of its own."""
    with matplotlib.style.context(["default", {**_STYLE, **(style or {})}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        buffer = io.StringIO()
        draw().savefig(buffer, format="svg", metadata=_NO_DATES)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
