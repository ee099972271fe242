"""A section of a report beside its table and curves: a picture, the numbers under it, and the data as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.drawing.panels import Placed
from pipeline.report.drawing.svg import svg_and_png
from pipeline.report.table.cells import Key
from pipeline.report.table.layout import Layout

NO_VALUE = "—"


@dataclass(frozen=True)
class Picture:
    """A drawing in the two formats that reports use.

    Attributes:
        alt: The picture in a sentence, for those who do not see it.
        photos: It shows images, which are not inverted on a dark page.
    """

    svg: str
    png: bytes
    alt: str
    photos: bool = False


@dataclass(frozen=True)
class PlainTable:
    """Printed numbers: a header and rows of the same width, the first `labels` columns of which are labels."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    labels: int


@dataclass(frozen=True)
class Section:
    """What one figure puts into a report.

    Attributes:
        text: What is shown, in sentences; all there is when there is nothing to show.
        data: The numbers unrounded, for ``<name>.csv``.
        name: Of its files and in the spec; like its heading it is put in when a report is built.
    """

    text: str
    picture: Picture | None = None
    table: PlainTable | None = None
    data: pd.DataFrame = field(default_factory=pd.DataFrame)
    name: str = ""
    title: str = ""


@dataclass(frozen=True)
class OfCell(Placed):
    """What a figure shows of one cell: numbers, as they stand in its CSV file."""

    points: pd.DataFrame


Shown = TypeVar("Shown", bound=OfCell)


def line_per_cell(
    layout: Layout, shown: Sequence[Shown], header: Sequence[str], numbers: Callable[[Shown], Iterable[str]]
) -> PlainTable:
    """The cells with what `numbers` says of each, under `header`."""
    lines = [(*layout.place(one.row, one.column), *numbers(one)) for one in shown]
    return PlainTable((*layout.place_header, *header), lines, labels=len(layout.place_header))


def told_once(table: PlainTable, stay: int = 1) -> tuple[PlainTable, str]:
    """A table of several rows without the columns in which all of them say the same, and what these say, as ``device
    cpu, torch 2.11``. The first columns `stay`."""
    told = [
        place
        for place in range(stay, len(table.header))
        if len(table.rows) > 1 and len({row[place] for row in table.rows}) == 1
    ]
    kept = [place for place in range(len(table.header)) if place not in told]
    rest = PlainTable(
        tuple(table.header[place] for place in kept),
        [tuple(row[place] for place in kept) for row in table.rows],
        labels=sum(place < table.labels for place in kept),
    )
    return rest, ", ".join(f"{table.header[place]} {table.rows[0][place]}" for place in told)


def without_empty(table: PlainTable) -> PlainTable:
    """Return a table without the columns in which no row has anything."""
    kept = [place for place in range(len(table.header)) if any(row[place] for row in table.rows)]
    return PlainTable(
        tuple(table.header[place] for place in kept),
        [tuple(row[place] for place in kept) for row in table.rows],
        labels=sum(place < table.labels for place in kept),
    )


def all_points(layout: Layout, shown: Iterable[OfCell]) -> pd.DataFrame:
    """The data of all cells with their labels in front."""
    return pd.concat([labelled(layout, one.row, one.column, one.points) for one in shown], ignore_index=True)


def labelled(layout: Layout, row: Key, column: Key, data: pd.DataFrame) -> pd.DataFrame:
    """The data of one cell with its labels in front, a column per axis."""
    axes, labels = [*layout.row_axes, *layout.column_axes], [*row, *column]
    own = pd.DataFrame([labels] * len(data), columns=axes, index=data.index)
    return pd.concat([own, data], axis=1)


def counted(number: int, noun: str) -> str:
    """``1 method``, ``2 methods``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def draw_picture(
    draw: Callable[[], Figure], alt: str, style: Mapping[str, Any] | None = None, *, photos: bool = False
) -> Picture:
    """The picture that `draw` makes, in the common style with changes of its own."""
    document, png = svg_and_png(draw, style)
    return Picture(document, png, alt, photos)
