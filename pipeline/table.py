"""The resolved table: all that the report stage needs to know about a spec, as one JSON file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pipeline.schema import Better, Metric


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TablePaper(_Frozen):
    """The publication whose table it is."""

    name: str
    citation: str
    table: str


class Published(_Frozen):
    """A published value in percent. `quoted` values were taken by the paper from another one.

    Without `mean` the value cannot be told, and the note says why.
    """

    mean: float | None
    std: float | None
    quoted: bool
    note: str


class Cell(_Frozen):
    """One cell: a label for each row and column axis. Without `runs` nothing can be obtained for it here."""

    labels: dict[str, str]
    runs: list[str]
    published: Published | None = None
    absent: str | None = None


class TableRun(_Frozen):
    """A run behind the table: its record, and a fingerprint of the code that can affect it."""

    record: dict[str, Any]
    code: str = ""


class TablePartition(_Frozen):
    """A partition behind the table, shown for the first of its seeds."""

    federation: str
    words: str


class TableClaim(_Frozen):
    """A statement over cells: each cell with `better` labels against the same cell with `than` labels."""

    text: str
    better: dict[str, list[str]]
    than: dict[str, list[str]]
    where: dict[str, list[str]]
    margin: float


class ResolvedTable(_Frozen):
    """A table with its cells in reading order, rows first.

    `labels` orders the labels of each row and column axis; `runs` holds every run that a cell names, and
    `partitions` what their clients hold. Without a list of `figures` the report shows the analyses that runs made.
    """

    spec: str
    title: str
    profile: str
    paper: TablePaper | None
    notes: list[str]
    caption: str
    rows: list[str]
    columns: list[str]
    metric: Metric
    better: Better
    decimals: int
    labels: dict[str, list[str]]
    cells: list[Cell]
    runs: dict[str, TableRun] = Field(default_factory=dict)
    partitions: list[TablePartition]
    claims: list[TableClaim]
    figures: list[str] | None
