"""The resolved table: all that the report stage needs to know about a spec, as one JSON file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from pipeline.spec.schema import Better, Metric


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


class TableCell(_Frozen):
    """One cell: a label for each row and column axis. Without `runs` nothing can be obtained for it here.

    Of the runs it shows all clients, or one `client`.
    """

    labels: dict[str, str]
    runs: list[str]
    client: int | None = None
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
    """A statement over cells in one of the forms of :class:`~pipeline.spec.schema.Claim`; what it does not use is
    left out.

    Each cell with the labels of its form is compared with the same cell with `than` labels; with `over` the means or
    the ranges over these axes are. `within` is about the range of each group.
    """

    text: str
    better: dict[str, list[str]] | None = None
    sooner: dict[str, list[str]] | None = None
    steadier: dict[str, list[str]] | None = None
    within: float | None = None
    than: dict[str, list[str]] | None = None
    over: list[str] | None = None
    reach: float | None = None
    where: dict[str, list[str]]
    margin: float

    @model_serializer(mode="wrap")
    def _what_is_used(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in write(self).items() if value is not None}


class ResolvedTable(_Frozen):
    """A table with its cells in reading order, rows first.

    `labels` orders the labels of each row and column axis; `clients` has, of one axis or none, those that stand for
    one client. `runs` holds every run that a cell names, and `partitions` what their clients hold. Without a list of
    `figures` the report shows the analyses that runs made.
    """

    spec: str
    title: str
    profile: str
    paper: TablePaper | None
    notes: list[str]
    caption: str
    rows: list[str]
    columns: list[str]
    clients: dict[str, dict[str, int]]
    metric: Metric
    better: Better
    decimals: int
    labels: dict[str, list[str]]
    cells: list[TableCell]
    runs: dict[str, TableRun] = Field(default_factory=dict)
    partitions: list[TablePartition]
    claims: list[TableClaim]
    figures: list[str] | None
