"""``pfl compare``: compare the tables of two specs cell by cell, and test if the differences are beyond chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.report.frame import Value
from pipeline.report.printed import NO_VALUE, format_value, signed
from pipeline.report.statistics import significant
from pipeline.workspace import Workspace, report_path

SAME, BEYOND, CHANCE = "the same", "beyond chance", "within chance"
ONE_SEED, NOT_RUN = "fewer than two seeds", "not obtained"
Row = dict[str, Any]


@dataclass(frozen=True)
class CellPair:
    """A cell that two tables have in common, as printed. The verdict is one of the constants above."""

    labels: str
    first: str
    second: str
    difference: str
    verdict: str


def compare(workspace: Workspace, first: str, second: str) -> list[CellPair]:
    """Compare the cells of two reports that have the same labels on the axes of both tables. Paired tests over the
    seeds of both reports, at 5 % over all cells together, decide if a difference is beyond chance. Raises
    :class:`UserError` if a report has not been made, no labels match, or several cells of one table have the same."""
    tables = [_table(workspace, spec) for spec in (first, second)]
    shape, other = ([*meta["rows"], *meta["columns"]] for _, meta in tables)
    axes, sides = [axis for axis in shape if axis in other], list[dict[tuple[str, ...], Row]]()
    for spec, (rows, _) in zip((first, second), tables, strict=True):
        keys = [tuple(row[axis] for axis in axes) for row in rows]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise UserError(f"{spec}: several cells for {', '.join(twice)}; the other table lacks one of its axes")
        sides.append(dict(zip(keys, rows, strict=True)))
    left, right = sides
    pairs = {labels: (left[labels], right[labels]) for labels in left if labels in right}
    if not pairs:
        raise UserError(f"{first} and {second} have no cells with the same labels")
    differ = significant([(_by_seed(one), _by_seed(other)) for one, other in pairs.values()])
    decimals = tables[0][1]["decimals"]
    return [_pair(", ".join(at), *pairs[at], beyond, decimals) for at, beyond in zip(pairs, differ, strict=True)]


def _table(workspace: Workspace, spec: str) -> tuple[list[Row], Row]:
    path = workspace.root / report_path(spec) / "table.parquet"
    if not path.is_file():
        raise UserError(f"{spec}: its report has not been made; type `pfl run {spec}`")
    rows, meta = read_table(path, "table/2")
    return rows.to_pylist(), meta


def _by_seed(row: Row) -> dict[int, float]:
    return {one["seed"]: one["value"] for one in row["by_seed"]}


def _pair(labels: str, one: Row, other: Row, beyond: bool | None, decimals: int) -> CellPair:
    rows = [(row["obtained_mean"], row["obtained_std"]) for row in (one, other)]
    before, after = (None if mean is None else Value(mean, std) for mean, std in rows)
    first, second = (format_value(value, decimals) or NO_VALUE for value in (before, after))
    if before is None or after is None:
        return CellPair(labels, first, second, "", NOT_RUN)
    same = before == after and _by_seed(one) == _by_seed(other)
    verdict = SAME if same else {None: ONE_SEED, True: BEYOND, False: CHANCE}[beyond]
    return CellPair(labels, first, second, signed(after.mean - before.mean, decimals), verdict)
