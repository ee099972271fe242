"""The cells of a table: published and obtained value, which is best, and how far they are apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pyarrow as pa

from pflcore.errors import UserError
from pipeline.report.table.measured import Measured, Value

CLOSE = 2.0
"""Percentage points within which an obtained value that does not match is still called close."""

VERDICTS = ("match", "close", "off", "missing", "diverged", "absent", "no published value")

_COLUMNS = pa.schema(
    [
        ("published_mean", pa.float64()),
        ("published_std", pa.float64()),
        ("quoted", pa.bool_()),
        ("obtained_mean", pa.float64()),
        ("obtained_std", pa.float64()),
        ("n", pa.int64()),
        ("difference", pa.float64()),
        ("best_published", pa.bool_()),
        ("best_obtained", pa.bool_()),
        ("verdict", pa.string()),
        ("runs", pa.string()),
    ]
)


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        labels: The label on every row and column axis.
        runs: Ids of the runs that belong to it, one per combination of the averaged axes; empty: none is planned.
        n: Runs that the obtained value is made of.
        client: The one client of the runs that it is about; None: all of them.
        absent: Why no run is planned, where the spec says so.
        verdict: One of :data:`VERDICTS`.
    """

    labels: dict[str, str]
    runs: tuple[str, ...]
    obtained: Value | None
    n: int
    published: Value | None
    quoted: bool
    note: str
    absent: str | None
    verdict: str
    client: int | None = None
    best_obtained: bool = False
    best_published: bool = False

    @property
    def difference(self) -> float | None:
        """Obtained minus published mean, in percentage points."""
        if self.obtained is None or self.published is None:
            return None
        return self.obtained.mean - self.published.mean

    @property
    def complete(self) -> bool:
        """Whether all planned runs are in the obtained value."""
        return self.n > 0 and self.n == len(self.runs)

    def key(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The labels on `axes`, in that order."""
        return tuple(self.labels[axis] for axis in axes)


def collect_cells(table: dict[str, Any], runs: dict[str, Measured]) -> list[Cell]:
    """The cells of a resolved table in its order, filled in from the runs.

    A run without a figure leaves its cell missing or made of fewer runs; one that diverged makes the cell diverged,
    because a mean over the survivors alone would flatter the method.
    """
    cells = [_cell(entry, runs, table["metric"]) for entry in table["cells"]]
    obtained = _best(table, cells, lambda cell: cell.obtained)
    published = _best(table, cells, lambda cell: cell.published)
    return [replace(cell, best_obtained=obtained[i], best_published=published[i]) for i, cell in enumerate(cells)]


def to_frame(table: dict[str, Any], cells: list[Cell]) -> pd.DataFrame:
    """Tidy rows, one per cell: spec, a column per axis, values, verdict and run ids joined by spaces."""
    axes = _axes(table)
    rows = [
        {
            "spec": table["spec"],
            **{axis: cell.labels[axis] for axis in axes},
            "published_mean": cell.published and cell.published.mean,
            "published_std": cell.published and cell.published.std,
            "quoted": cell.quoted,
            "obtained_mean": cell.obtained and cell.obtained.mean,
            "obtained_std": cell.obtained and cell.obtained.std,
            "n": cell.n,
            "difference": cell.difference,
            "best_published": cell.best_published,
            "best_obtained": cell.best_obtained,
            "verdict": cell.verdict,
            "runs": " ".join(cell.runs),
        }
        for cell in cells
    ]
    frame: pd.DataFrame = pa.Table.from_pylist(rows, schema=_schema(axes)).to_pandas()
    return frame


def to_arrow(table: dict[str, Any], frame: pd.DataFrame) -> pa.Table:
    """The frame of :func:`to_frame` as the columns of a ``table/1`` artifact; unknown numbers are null."""
    return pa.Table.from_pandas(frame, schema=_schema(_axes(table)), preserve_index=False)


def _axes(table: dict[str, Any]) -> list[str]:
    axes = [*table["rows"], *table["columns"]]
    for axis in axes:
        if axis == "spec" or axis in _COLUMNS.names:
            raise UserError(f"{table['spec']}: an axis cannot be named {axis!r}, which is a column of every report")
    return axes


def _schema(axes: list[str]) -> pa.Schema:
    labels = [pa.field(name, pa.string()) for name in ("spec", *axes)]
    return pa.schema([*labels, *_COLUMNS])


def _cell(entry: dict[str, Any], runs: dict[str, Measured], metric: str) -> Cell:
    mine = [runs[run] for run in entry["runs"]]
    diverged = any(run.diverged for run in mine)
    found = [] if diverged else [run.values_of(entry["client"]) for run in mine]
    values = [figures[metric] for figures in found if metric in figures]
    published = entry["published"]
    known = published and published["mean"] is not None
    cell = Cell(
        labels={axis: str(label) for axis, label in entry["labels"].items()},
        runs=tuple(entry["runs"]),
        obtained=_average(values),
        n=len(values),
        published=Value(published["mean"], published["std"]) if known else None,
        quoted=bool(published and published["quoted"]),
        note=(published and published["note"]) or "",
        absent=entry["absent"],
        verdict="",
        client=entry["client"],
    )
    return replace(cell, verdict="diverged" if diverged else _verdict(cell))


def _average(values: list[Value]) -> Value | None:
    if len(values) < 2:
        return values[0] if values else None
    means = [value.mean for value in values]
    return Value(statistics.fmean(means), statistics.pstdev(means))


def _verdict(cell: Cell) -> str:
    if not cell.runs:
        return "absent"
    if cell.obtained is None:
        return "missing"
    if cell.published is None:
        return "no published value"
    distance = abs(cell.obtained.mean - cell.published.mean)
    if distance <= noise(cell.obtained, cell.published) + 1e-9:
        return "match"
    return "close" if distance <= CLOSE + 1e-9 else "off"


def noise(one: Value, other: Value) -> float:
    """The combined standard deviation of two values; one without a deviation counts as exact."""
    return math.hypot(one.std or 0.0, other.std or 0.0)


def _best(table: dict[str, Any], cells: list[Cell], pick: Callable[[Cell], Value | None]) -> list[bool]:
    """Which cells hold the best picked value of their column; equal as printed is equal."""
    sign = -1.0 if table["better"] == "lower" else 1.0

    def score(cell: Cell) -> float | None:
        value = pick(cell)
        return None if value is None else sign * round(value.mean, table["decimals"])

    best: dict[tuple[str, ...], float] = {}
    for cell in cells:
        column, mine = cell.key(table["columns"]), score(cell)
        if mine is not None:
            best[column] = max(mine, best.get(column, mine))
    return [score(cell) is not None and score(cell) == best[cell.key(table["columns"])] for cell in cells]
