"""Published values: a CSV file beside the spec, with a column per table axis, then mean, std, quoted and note.

There may be two columns more: ``misprint``, where some values are, which may be any text; and ``explained``, why what
is obtained is another value.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.csvfile import csv_lines
from pipeline.spec.metrics import read_printed
from pipeline.spec.table import Published
from pipeline.spec.yamlfile import show

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_VALUES = ("mean", "std", "quoted", "note")
_MISPRINT, _EXPLAINED = _OPTIONAL = ("misprint", "explained")


@dataclass(frozen=True)
class PublishedRow:
    """One line of the file: labels by axis, the value, and where it stands."""

    labels: dict[str, str]
    value: Published
    where: str


def read_published(path: Path, label: str, axes: list[str], *, units: bool = False) -> list[PublishedRow]:
    """Read published values strictly.

    Args:
        path: The file.
        label: How messages name it.
        axes: The row and column axes; each must be a column. The order of columns is free.
        units: Values are no accuracies and as the paper prints them, such as ``45.17 K``.

    Raises:
        UserError: With file and line, for anything but a complete table of finite numbers without duplicates.
    """
    rows: list[PublishedRow] = []
    seen: dict[tuple[str, ...], str] = {}
    header: list[str] | None = None
    columns = [*axes, *_VALUES]
    for where, cells in csv_lines(path, label):
        if header is None:
            header = _header(cells, columns, where)
            continue
        if len(cells) != len(header):
            raise UserError(f"{where}: {len(cells)} cells under {len(header)} columns")
        row = _row(dict(zip(header, cells, strict=True)), axes, where, units)
        key = tuple(row.labels.values())
        if key in seen:
            raise UserError(f"{where}: a second value for {', '.join(key)}; the first is in {seen[key]}")
        seen[key] = where
        rows.append(row)
    if header is None:
        raise UserError(f"{label}:1: the file is empty; its first line names the columns {', '.join(columns)}")
    return rows


def _header(cells: list[str], columns: list[str], where: str) -> list[str]:
    for cell in cells:
        if cell not in (*columns, *_OPTIONAL):
            raise UserError(f"{where}: unknown column {show(cell)}{did_you_mean(cell, [*columns, *_OPTIONAL])}")
        if cells.count(cell) > 1:
            raise UserError(f"{where}: the column {show(cell)} is stated twice")
    missing = [column for column in columns if column not in cells]
    if missing:
        raise UserError(f"{where}: no column {show(missing[0])}; the columns are {', '.join(columns)}")
    return cells


def _row(cells: dict[str, str], axes: list[str], where: str, units: bool) -> PublishedRow:
    for column in ("quoted", _MISPRINT):
        if cells.get(column, "") not in ("", "yes"):
            raise UserError(f"{where}: {column}: {show(cells[column])} must be yes or empty")
    labels = {axis: cells[axis] for axis in axes}
    if cells.get(_MISPRINT) == "yes":
        for column in ("mean", "note"):
            if not cells[column]:
                raise UserError(f"{where}: {column}: missing; a misprint has what is printed, and why it cannot be so")
        value = Published(mean=None, std=None, quoted=False, note=cells["note"], printed=cells["mean"], misprint=True)
        return PublishedRow(labels, value, where)
    std = _number(cells["std"], "std", where) if cells["std"] else None
    if std is not None and std < 0:
        raise UserError(f"{where}: std: {show(cells['std'])} must not be negative")
    # What cannot be read has a note and no mean.
    mean, step = None, 0.0
    if cells["mean"] or not cells["note"]:
        mean, step = _printed(cells["mean"], where) if units else (_number(cells["mean"], "mean", where), 0.0)
    if mean is None and std is not None:
        raise UserError(f"{where}: std: {show(cells['std'])} without a mean")
    printed = cells["mean"] if units else ""
    quoted = cells["quoted"] == "yes"
    value = Published(
        mean=mean,
        std=std,
        quoted=quoted,
        note=cells["note"],
        printed=printed,
        step=step,
        explained=cells.get(_EXPLAINED, ""),
    )
    return PublishedRow(labels, value, where)


def _printed(text: str, where: str) -> tuple[float, float]:
    try:
        return read_printed(text)
    except UserError:
        raise UserError(f"{where}: mean: {show(text)} is not a number such as 45.17 K") from None


def _number(text: str, column: str, where: str) -> float:
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise UserError(f"{where}: {column}: {show(text)} is not a number")
    return float(text)
