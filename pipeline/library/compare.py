"""``pfl compare``: compare the tables of two specs cell by cell, and test if the differences are beyond chance."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.library.found import Found
from pipeline.library.study import Study, labels_of
from pipeline.report.cells import DIFFERS
from pipeline.report.frame import Value
from pipeline.report.printed import NO_VALUE, format_value, signed
from pipeline.report.statistics import significant
from pipeline.spec.metrics import PERCENT, Quantity
from pipeline.spec.table import ResolvedTable

SAME, BEYOND, CHANCE = "the same", "beyond chance", "within chance"
ONE_SEED, NOT_RUN = "fewer than two seeds", "not obtained"
Row = dict[Any, Any]


@dataclass(frozen=True)
class CellPair:
    """A cell that two tables have in common, as printed, with published values in parentheses. The verdict is one of
    the constants above, or ``differs`` for costs that are equal under all seeds. The difference is over the seeds that
    both cells have, as the test is, if they share two."""

    labels: str
    first: str
    second: str
    difference: str
    verdict: str


def compare(study: Study, first: str, second: str, where: Mapping[str, str] | None = None) -> list[CellPair]:
    """Compare the cells of two tables that have the same labels on the axes of both.

    `where` has a label for some axes; cells of a table with that axis and another label are left out. Paired tests over
    the seeds of both tables, at 5 % over all cells together, decide if a difference is beyond chance. Raises
    :class:`UserError` if a table has nothing to show, their metrics differ, an axis or label of `where` is unknown, no
    labels match, or several cells of one table have the same labels.
    """
    where, tables = where or {}, [study.table(spec) for spec in (first, second)]
    decimals = Found.of(study.workspace, first).table.decimals
    metrics = [_metrics(Found.of(study.workspace, spec).table) for spec in (first, second)]
    ours, theirs = (list(dict.fromkeys(shown for shown, _ in own.values())) for own in metrics)
    if not set(ours) & set(theirs):
        both = f"{first} shows {', '.join(ours)} and {second} shows {', '.join(theirs)}"
        raise UserError(f"{both}; compare tables of one metric")
    shapes = [labels_of(table) for table in tables]
    known = list(dict.fromkeys(shapes[0] + shapes[1]))
    if unknown := [axis for axis in where if axis not in known]:
        raise UserError(f"--where {unknown[0]}: no axis of these tables{did_you_mean(unknown[0], known)}")
    for axis, label in where.items():
        labels = list(dict.fromkeys(row for table in tables if axis in table for row in table[axis]))
        if label not in labels:
            raise UserError(f"--where {axis}={label}: no label of this axis{did_you_mean(label, labels)}")
    if not set(shapes[0]) & set(shapes[1]):
        raise UserError(f"{first} and {second} have no axis in common; theirs are {', '.join(known)}")
    axes, sides = [axis for axis in shapes[0] if axis in shapes[1]], list[dict[tuple[str, ...], Row]]()
    for spec, table, shape in zip((first, second), tables, shapes, strict=True):
        every: list[Row] = table.to_dict("records")
        rows = [row for row in every if all(row.get(axis, label) == label for axis, label in where.items())]
        keys = [tuple(row[axis] for axis in axes) for row in rows]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            lacking = next(axis for axis in shape if axis not in axes and axis not in where)
            hint = f"choose one label of {lacking}, which the other table lacks: --where {lacking}=LABEL"
            raise UserError(f"{spec}: several cells for {', '.join(twice)}; {hint}")
        sides.append(dict(zip(keys, rows, strict=True)))
    left, right = sides
    pairs = {labels: (left[labels], right[labels]) for labels in left if labels in right}
    if not pairs:
        raise UserError(f"{first} and {second} have no cells with the same labels")
    differ = significant([(_by_seed(one), _by_seed(other)) for one, other in pairs.values()])
    found = []
    for (at, (one, other)), beyond in zip(pairs.items(), differ, strict=True):
        (here, quantity), (there, _) = (
            own.get(frozenset((axis, row[axis]) for axis in shape), ("", None))
            for own, row, shape in zip(metrics, (one, other), shapes, strict=True)
        )
        if here and there and here != there:  # a cell that a spec no longer has is not known
            both = f"{first} shows {here} and {second} shows {there}"
            raise UserError(f"{', '.join(at)}: {both}; choose cells of one metric by --where")
        found.append(_pair(", ".join(at), one, other, beyond, decimals, quantity))
    return found


def _metrics(table: ResolvedTable) -> dict[frozenset[tuple[str, str]], tuple[str, Quantity | None]]:
    """Return what each cell shows, in words and as its quantity, by the labels of the cell."""
    return {
        frozenset(cell.labels.items()): (f"{one.key} in {one.unit}".strip() if one else table.metric, one)
        for cell, one in ((cell, cell.quantity) for cell in table.cells)
    }


def _by_seed(row: Row) -> dict[int, float]:
    return {one["seed"]: one["value"] for one in row["by_seed"]}


def _value(row: Row, side: str, unit: str) -> Value | None:
    mean, std = row[f"{side}_mean"], row[f"{side}_std"]
    return None if pd.isna(mean) else Value(mean, None if pd.isna(std) else std, unit=unit)


def _pair(labels: str, one: Row, other: Row, beyond: bool | None, decimals: int, quantity: Quantity | None) -> CellPair:
    unit = quantity.unit if quantity else PERCENT
    before, after = (_value(row, "obtained", unit) for row in (one, other))
    published = [format_value(_value(row, "published", unit), decimals) for row in (one, other)]
    first, second = (
        (format_value(value, decimals) or NO_VALUE) + (f" ({beside})" if beside else "")
        for value, beside in zip((before, after), published, strict=True)
    )
    if before is None or after is None:
        return CellPair(labels, first, second, "", NOT_RUN)
    ours, theirs = _by_seed(one), _by_seed(other)
    verdict = SAME if before == after and ours == theirs else {None: ONE_SEED, True: BEYOND, False: CHANCE}[beyond]
    source, spreads = quantity and quantity.definition and quantity.definition.source, {before.std, after.std}
    if source == "plan" or (source == "run" and spreads == {0.0}):  # it does not depend on chance
        verdict = SAME if before.mean == after.mean else DIFFERS
    difference, shared, note = after.mean - before.mean, ours.keys() & theirs.keys(), ""
    if len(shared) > 1 and ours.keys() != theirs.keys():
        difference = statistics.fmean(theirs[seed] - ours[seed] for seed in sorted(shared))
        note = f" ({len(shared)} shared seeds)"
    return CellPair(labels, first, second, signed(difference, decimals, unit) + note, verdict)
