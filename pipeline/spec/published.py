"""Published values: a CSV file beside the spec, with a column per table axis, then mean, std, quoted and note.

There may be two columns more: ``misprint``, where some values are, which may be any text; and ``explained``, why what
is obtained is another value.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.spec.metrics import read_printed
from pipeline.spec.table import Published
from pipeline.spec.yamlfile import read_text, show

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_VALUES = ("mean", "std", "quoted", "note")
_OPTIONAL = ("misprint", "explained")


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
    rows: dict[tuple[str, ...], PublishedRow] = {}
    header: list[str] = []
    columns = [*axes, *_VALUES]
    for where, cells in csv_lines(path, label):
        if not header:
            _check_header(cells, columns, where)
            header = cells
            continue
        if len(cells) != len(header):
            raise UserError(f"{where}: {len(cells)} cells under {len(header)} columns")
        by_column = dict(zip(header, cells, strict=True))
        labels = {axis: by_column[axis] for axis in axes}
        key = tuple(labels.values())
        row = PublishedRow(labels, _value(by_column, where, units), where)
        if key in rows:
            raise UserError(f"{where}: a second value for {', '.join(key)}; the first is in {rows[key].where}")
        rows[key] = row
    if not header:
        raise UserError(f"{label}:1: the file is empty; its first line names the columns {', '.join(columns)}")
    return list(rows.values())


def csv_lines(path: Path, label: str) -> Iterator[tuple[str, list[str]]]:
    """Yield where a line is, ``label:2``, and its cells; skip empty lines, and on top those that begin with #.

    Args:
        label: How messages name the file.

    Raises:
        UserError: It cannot be read, is too large, or is not valid CSV in UTF-8.
    """
    # Further down a label may begin with #.
    text = re.sub(r"\A((#.*)?\r?\n)+", lambda top: "\n" * top[0].count("\n"), read_text(path, label))
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in lines:
            if cells:
                yield f"{label}:{lines.line_num}", cells
    except csv.Error as error:
        raise UserError(f"{label}:{lines.line_num}: not valid CSV: {error}") from None


def _check_header(cells: list[str], columns: list[str], where: str) -> None:
    for cell in cells:
        if cell not in (*columns, *_OPTIONAL):
            raise UserError(f"{where}: unknown column {show(cell)}{did_you_mean(cell, [*columns, *_OPTIONAL])}")
        if cells.count(cell) > 1:
            raise UserError(f"{where}: the column {show(cell)} is stated twice")
    for column in columns:
        if column not in cells:
            raise UserError(f"{where}: no column {show(column)}; the columns are {', '.join(columns)}")


def _value(cells: dict[str, str], where: str, units: bool) -> Published:
    for column in ("quoted", "misprint"):
        if cells.get(column, "") not in ("", "yes"):
            raise UserError(f"{where}: {column}: {show(cells[column])} must be yes or empty")
    printed, note = cells["mean"], cells["note"]
    if cells.get("misprint") == "yes":
        for column in ("mean", "note"):
            if not cells[column]:
                raise UserError(f"{where}: {column}: missing; a misprint has what is printed, and why it cannot be so")
        return Published(mean=None, std=None, quoted=False, note=note, printed=printed, misprint=True)
    std = _number(cells["std"], "std", where)[0] if cells["std"] else None
    if std is not None and std < 0:
        raise UserError(f"{where}: std: {show(cells['std'])} must not be negative")
    mean, step = None, 0.0
    if printed or not note:  # what cannot be read has a note and no mean
        mean, step = _number(printed, "mean", where, units)
    if mean is None and std is not None:
        raise UserError(f"{where}: std: {show(cells['std'])} without a mean")
    return Published(
        mean=mean,
        std=std,
        quoted=cells["quoted"] == "yes",
        note=note,
        printed=printed if units else "",
        step=step,
        explained=cells.get("explained", ""),
    )


def _number(text: str, column: str, where: str, units: bool = False) -> tuple[float, float]:
    """Return a number, and what one is worth in its last digit where it is printed with a unit."""
    try:
        if units:
            return read_printed(text)
        if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
            return float(text), 0.0
    except UserError:
        pass
    raise UserError(f"{where}: {column}: {show(text)} is not a number{' such as 45.17 K' if units else ''}")
