"""``pfl compare``: the tables of two specs, cell by cell: by how much they differ, and whether beyond chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.report.statistics import significant
from pipeline.report.table import NO_VALUE, Value, format_value, signed
from pipeline.workspace import Workspace, report_path

SAME, BEYOND, CHANCE = "the same", "beyond chance", "within chance"
ONE_SEED, NOT_RUN = "fewer than two seeds", "not obtained"
Row = dict[str, Any]


@dataclass(frozen=True)
class CellPair:
    """A cell of two tables, as printed, and as verdict one of the words above."""

    labels: str
    first: str
    second: str
    difference: str
    verdict: str


def compare(workspace: Workspace, first: str, second: str) -> list[CellPair]:
    """Compare the cells of two reports that have the same labels on the axes that both tables have.

    A difference is beyond chance by paired tests over the seeds of both, at 5 % over all cells together.

    Raises:
        UserError: A report has not been made, no cells have the same labels, or several cells of one table have.
    """
    tables = [_table(workspace, spec) for spec in (first, second)]
    (_, meta), (_, other) = tables
    axes = [axis for axis in (*meta["rows"], *meta["columns"]) if axis in (*other["rows"], *other["columns"])]
    sides = []
    for spec, (rows, _) in zip((first, second), tables, strict=True):
        sides.append(cells := dict[tuple[str, ...], Row]())
        for row in rows:
            if (labels := tuple(row[axis] for axis in axes)) in cells:
                raise UserError(f"{spec}: several cells for {', '.join(labels)}; the other table lacks one of its axes")
            cells[labels] = row
    left, right = sides
    pairs = {labels: (left[labels], right[labels]) for labels in left if labels in right}
    if not pairs:
        raise UserError(f"{first} and {second} have no cells with the same labels")
    differ = significant([(_by_seed(one), _by_seed(other)) for one, other in pairs.values()])
    return [
        _pair(", ".join(labels), one, other, beyond, meta["decimals"])
        for (labels, (one, other)), beyond in zip(pairs.items(), differ, strict=True)
    ]


def _table(workspace: Workspace, spec: str) -> tuple[list[Row], Row]:
    path = workspace.root / report_path(spec) / "table.parquet"
    if not path.is_file():
        raise UserError(f"{spec}: its report has not been made; type `pfl run {spec}`")
    rows, meta = read_table(path, "table/2")
    return rows.to_pylist(), meta


def _by_seed(row: Row) -> dict[int, float]:
    return {one["seed"]: one["value"] for one in row["by_seed"]}


def _value(row: Row) -> Value | None:
    return None if row["obtained_mean"] is None else Value(row["obtained_mean"], row["obtained_std"])


def _pair(labels: str, one: Row, other: Row, beyond: bool | None, decimals: int) -> CellPair:
    before, after = (_value(row) for row in (one, other))
    first, second = (format_value(value, decimals) if value else NO_VALUE for value in (before, after))
    if before is None or after is None:
        return CellPair(labels, first, second, "", NOT_RUN)
    same = before == after and _by_seed(one) == _by_seed(other)
    verdict = SAME if same else {None: ONE_SEED, True: BEYOND, False: CHANCE}[beyond]
    return CellPair(labels, first, second, signed(after.mean - before.mean, decimals), verdict)
