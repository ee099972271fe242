"""``pfl compare``: compare the tables of two specs cell by cell, and test if the differences are beyond chance."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.library.spec_results import SpecResults
from pipeline.library.study import Study, labels_of
from pipeline.report.cells import DIFFERS
from pipeline.report.frame import Value
from pipeline.report.printed import NO_VALUE, format_difference, format_value
from pipeline.report.statistics import significant
from pipeline.spec.metrics import PERCENT, Quantity
from pipeline.spec.table import ResolvedTable, TableCell

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
    where, specs = where or {}, (first, second)
    frames = [study.table(spec) for spec in specs]
    tables = [SpecResults.load(study.workspace, spec).table for spec in specs]
    cells = [{frozenset(cell.labels.items()): cell for cell in table.cells} for table in tables]
    metrics = [list(dict.fromkeys(_metric(table, cell) for cell in table.cells)) for table in tables]
    if not set(metrics[0]) & set(metrics[1]):
        message = f"{first} shows {', '.join(metrics[0])} and {second} shows {', '.join(metrics[1])}"
        raise UserError(f"{message}; compare tables of one metric")
    axes = [labels_of(frame) for frame in frames]
    all_axes = list(dict.fromkeys(axes[0] + axes[1]))
    if unknown := [axis for axis in where if axis not in all_axes]:
        raise UserError(f"--where {unknown[0]}: no axis of these tables{did_you_mean(unknown[0], all_axes)}")
    for axis, label in where.items():
        labels = list(dict.fromkeys(row for frame in frames if axis in frame for row in frame[axis]))
        if label not in labels:
            raise UserError(f"--where {axis}={label}: no label of this axis{did_you_mean(label, labels)}")
    shared = [axis for axis in axes[0] if axis in axes[1]]
    if not shared:
        raise UserError(f"{first} and {second} have no axis in common; theirs are {', '.join(all_axes)}")
    by_labels: list[dict[tuple[str, ...], Row]] = []
    for spec, frame, frame_axes in zip(specs, frames, axes, strict=True):
        all_rows: list[Row] = frame.to_dict("records")
        rows = [row for row in all_rows if all(row.get(axis, label) == label for axis, label in where.items())]
        keys = [tuple(row[axis] for axis in shared) for row in rows]
        if duplicate := next((key for key in keys if keys.count(key) > 1), None):
            extra = next(axis for axis in frame_axes if axis not in shared and axis not in where)
            hint = f"choose one label of {extra}, which the other table lacks: --where {extra}=LABEL"
            raise UserError(f"{spec}: several cells for {', '.join(duplicate)}; {hint}")
        by_labels.append(dict(zip(keys, rows, strict=True)))
    pairs = {key: (row, by_labels[1][key]) for key, row in by_labels[0].items() if key in by_labels[1]}
    if not pairs:
        raise UserError(f"{first} and {second} have no cells with the same labels")
    differences = significant([(_by_seed(before), _by_seed(after)) for before, after in pairs.values()])
    compared: list[CellPair] = []
    for (key, pair), beyond_chance in zip(pairs.items(), differences, strict=True):
        # A cell that a spec no longer has is None.
        before, after = (cells[i].get(frozenset((axis, pair[i][axis]) for axis in axes[i])) for i in (0, 1))
        if before and after and _metric(tables[0], before) != _metric(tables[1], after):
            message = f"{first} shows {_metric(tables[0], before)} and {second} shows {_metric(tables[1], after)}"
            raise UserError(f"{', '.join(key)}: {message}; choose cells of one metric by --where")
        quantity = before.quantity if before else None
        compared.append(_pair(", ".join(key), pair, beyond_chance, tables[0].decimals, quantity))
    return compared


def _metric(table: ResolvedTable, cell: TableCell) -> str:
    return f"{cell.quantity.key} in {cell.quantity.unit}".strip() if cell.quantity else table.metric


def _by_seed(row: Row) -> dict[int, float]:
    return {entry["seed"]: entry["value"] for entry in row["by_seed"]}


def _value(row: Row, side: str, unit: str) -> Value | None:
    mean, std = row[f"{side}_mean"], row[f"{side}_std"]
    return None if pd.isna(mean) else Value(mean, None if pd.isna(std) else std, unit=unit)


def _text(row: Row, unit: str, decimals: int) -> str:
    published = format_value(_value(row, "published", unit), decimals)
    obtained = format_value(_value(row, "obtained", unit), decimals) or NO_VALUE
    return f"{obtained} ({published})" if published else obtained


def _pair(
    labels: str, rows: tuple[Row, Row], beyond_chance: bool | None, decimals: int, quantity: Quantity | None
) -> CellPair:
    unit = quantity.unit if quantity else PERCENT
    first, second = (_text(row, unit, decimals) for row in rows)
    before, after = (_value(row, "obtained", unit) for row in rows)
    if before is None or after is None:
        return CellPair(labels, first, second, "", NOT_RUN)
    old, new = map(_by_seed, rows)
    verdict = {None: ONE_SEED, True: BEYOND, False: CHANCE}[beyond_chance]
    if before == after and old == new:
        verdict = SAME
    source = quantity.definition.source if quantity and quantity.definition else ""
    if source == "plan" or (source == "run" and {before.std, after.std} == {0.0}):  # it does not depend on chance
        verdict = SAME if before.mean == after.mean else DIFFERS
    difference, shared, note = after.mean - before.mean, old.keys() & new.keys(), ""
    if len(shared) > 1 and old.keys() != new.keys():
        difference = statistics.fmean(new[seed] - old[seed] for seed in sorted(shared))
        note = f" ({len(shared)} shared seeds)"
    return CellPair(labels, first, second, format_difference(difference, decimals, unit) + note, verdict)
