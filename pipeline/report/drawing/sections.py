"""A section of a page: text, a picture, the numbers under it, and its data as CSV."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import quote

import matplotlib.style
import pandas as pd
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_STYLE = {
    "svg.hashsalt": "pfl",
    "svg.fonttype": "path",
    "path.simplify": False,  # the page reads values off the lines
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
}
_NO_DATES = {"Date": None, "Creator": None, "Format": None, "Type": None}


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw figures in the style of reports, independent of the user's settings."""
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure in the two formats of reports, with a sentence `alt` for people who cannot see it. `photos`
    are not inverted on a dark page and have no values to read off."""

    figure: Figure
    alt: str
    photos: bool = False

    @cached_property
    def svg(self) -> str:
        """The SVG document. A panel's id has its ranges: ``panel,<number>,<x scale>,<y scale>,x0,x1,y0,y1,<x label>``,
        in units of the scale: exponents of ten if logarithmic. The y scale of an axis without ticks is ``none``."""
        label = quote(next((axes.get_xlabel() for axes in self.figure.axes if axes.get_xlabel()), ""), safe="")
        for number, axes in enumerate([] if self.photos else self.figure.axes):
            ends = [axes.transScale.transform((x, y)) for x, y in zip(axes.get_xlim(), axes.get_ylim(), strict=True)]
            spans = [f"{end[i]:.7g}" for i in (0, 1) for end in ends]
            up = axes.get_yscale() if len(axes.get_yticks()) else "none"
            axes.set_gid(",".join(["panel", str(number), axes.get_xscale(), up, *spans, label]))
        buffer = io.StringIO()
        with figure_style():
            self._final_figure.savefig(buffer, format="svg", metadata=_NO_DATES)
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"

    @cached_property
    def png(self) -> bytes:
        """The PNG file, for LaTeX."""
        buffer = io.BytesIO()
        with figure_style():
            self._final_figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
        return buffer.getvalue()

    @cached_property
    def _final_figure(self) -> Figure:
        """The figure with its panels in their final places, which are computed once for both formats."""
        engine = self.figure.get_layout_engine()
        if engine:
            FigureCanvasSVG(self.figure)  # sizes of text as in the SVG document
            engine.execute(self.figure)
            self.figure.set_layout_engine(None)
        return self.figure


@dataclass(frozen=True)
class PlainTable:
    """A table of printed numbers: a header and rows of the same width, whose first `labels` columns are labels."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    labels: int

    @classmethod
    def of(cls, frame: pd.DataFrame, axes: Sequence[str], *labels: str) -> PlainTable:
        """Return a printed frame: labels on the axes (categoricals) that have several categories, further `labels`,
        then the other columns. An axis is headed by the last part of its dotted name."""
        shown_axes = [axis for axis in axes if len(frame[axis].cat.categories) > 1]
        shown_axes = shown_axes or [axis for axis in axes[:1] if axis != "series"]
        columns = [*shown_axes, *labels, *(name for name in frame if name not in (*axes, *labels))]
        header = [name.rpartition(".")[2].replace("_", " ") if name in axes else name for name in map(str, columns)]
        lines = [tuple(map(str, line)) for line in frame[columns].itertuples(index=False, name=None)]
        return cls(tuple(header), lines, labels=len(shown_axes) + len(labels))

    def select(self, columns: Sequence[int]) -> PlainTable:
        """Return the table with the columns at these positions only."""
        rows = [tuple(row[i] for i in columns) for row in self.rows]
        return PlainTable(tuple(self.header[i] for i in columns), rows, sum(i < self.labels for i in columns))


@dataclass(frozen=True)
class Section:
    """A section of a page, such as a figure; every format prints the fields that are set.

    Attributes:
        text: Paragraphs with blank lines between them.
        data: The numbers unrounded, for ``<name>.csv``.
        name: Name of its files, and of a figure in the spec; set with the title when a report is built.
        results: Whether it begins with the table of results.
        claims: Judgements on claims, which only templates read.
        items: Lines with the address of a page without suffix, or "".
        folded: The heading of a table that a click opens.
    """

    text: str = ""
    picture: Picture | None = None
    table: PlainTable | None = None
    data: pd.DataFrame = field(default_factory=pd.DataFrame)
    name: str = ""
    title: str = ""
    results: bool = False
    facts: Sequence[tuple[str, str]] = ()
    claims: Sequence[object] = ()
    items: Sequence[tuple[str, str]] = ()
    folded: str = ""
    note: str = ""


def drop_constant_columns(table: PlainTable, keep: int = 1) -> tuple[PlainTable, str]:
    """Return a table without constant columns after the first `keep`, and these as text, ``device cpu``."""
    if len(table.rows) < 2:
        return table, ""
    constant = [i for i in range(keep, len(table.header)) if len({row[i] for row in table.rows}) == 1]
    text = ", ".join(f"{table.header[i]} {table.rows[0][i]}" for i in constant)
    return table.select([i for i in range(len(table.header)) if i not in constant]), text


def pluralize(number: int, noun: str) -> str:
    """Return ``1 method``, ``2 methods``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
