"""Published values: a CSV file beside the spec, with a column per table axis, then mean and std.

Four further columns are optional: ``quoted`` marks a value from an earlier paper, ``note`` is printed with it,
``misprint`` marks a printed mean that cannot be right and may be any text, and ``explained`` says why the obtained
value differs.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pflcore.settings import LOWER
from pipeline.spec.metrics import read_printed
from pipeline.spec.table import Published
from pipeline.spec.yamlfile import read_text, show

_NUMBER = re.compile(r"-?[0-9]{1,300}(\.[0-9]+)?")
_VALUES = ("mean", "std")
_OPTIONAL = ("quoted", "note", "misprint", "explained")


class PublishedRow(NamedTuple):
    """One line of the file: labels by axis, the value, and its place, ``label:line``."""

    labels: dict[str, str]
    value: Published
    where: str


def read_published(
    path: Path, label: str, axes: list[str], units: bool, score: Callable[[Mapping[str, str]], str | None]
) -> list[PublishedRow]:
    """Read published values: accuracies and other metrics, or with `units` quantities. `score` returns the metric of a
    line by its labels, None for accuracy. Raises :class:`UserError` with file and line."""
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
        key = tuple(by_column[axis] for axis in axes)
        if key in rows:
            raise UserError(f"{where}: a second value for {', '.join(key)}; the first is in {rows[key].where}")
        rows[key] = PublishedRow(dict(zip(axes, key, strict=True)), _value(by_column, where, units), where)
    if not header:
        raise UserError(f"{label}:1: the file is empty; its first line names the columns {', '.join(columns)}")
    if not units:
        _check_percent([(row.where, row.value.mean, score(row.labels)) for row in rows.values()], label)
    return list(rows.values())


def _check_percent(rows: list[tuple[str, float | None, str | None]], label: str) -> None:
    """Raise :class:`UserError` for percentages below 0 or above 100, or if several accuracies are all at most 1.
    `rows` have place, mean and metric; a likelihood is no percentage, and an error may be small."""
    for where, mean, metric in rows:
        if metric != "nll" and mean is not None and not 0 <= mean <= 100:
            raise UserError(f"{where}: mean: an accuracy of {mean:g} percent is not between 0 and 100")
    high = [mean for _, mean, metric in rows if metric not in LOWER and mean is not None]
    if len(high) > 1 and max(high) <= 1:
        raise UserError(f"{label}: all accuracies are at most 1; write them in percent, not as fractions")


def csv_lines(path: Path, label: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place (``label:2``) and the cells of each line. Skip empty lines, and lines with # at the top."""
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
        for mark in ";\t":
            _check(mark not in cell, where, show(cell), f"the cells are separated by {show(mark)}; use commas")
        if cell not in (*columns, *_OPTIONAL):
            raise UserError(f"{where}: unknown column {show(cell)}{did_you_mean(cell, [*columns, *_OPTIONAL])}")
        if cells.count(cell) > 1:
            raise UserError(f"{where}: the column {show(cell)} is stated twice")
    if missing := [column for column in columns if column not in cells]:
        raise UserError(f"{where}: no column {show(missing[0])}; the columns are {', '.join(columns)}")


def _value(cells: dict[str, str], where: str, units: bool) -> Published:
    for column in ("quoted", "misprint"):
        text = cells.get(column, "")
        _check(text in ("", "yes"), where, column, f"{show(text)} must be yes or empty")
    if cells.get("misprint") == "yes":
        for column in ("mean", "note"):
            _check(cells.get(column), where, column, "missing; say what is printed, and why it must be a misprint")
        return Published(mean=None, std=None, quoted=False, note=cells["note"], printed=cells["mean"], misprint=True)
    std = None
    if cells["std"]:
        std = _number(cells["std"], where, "std")
        _check(units or std <= 100, where, "std", f"a deviation of {std:g} percent is above 100")
        _check(std >= 0, where, "std", f"{show(cells['std'])} must not be negative")
    mean, step = None, 0.0
    note = cells.get("note", "")
    if not cells["mean"] and note:  # unreadable or unknown, as the note says
        _check(std is None, where, "std", f"{show(cells['std'])} without a mean")
    elif units:
        try:
            mean, step = read_printed(cells["mean"])
        except UserError:
            raise UserError(f"{where}: mean: {show(cells['mean'])} is not a number such as 45.17 K") from None
    else:
        mean = _number(cells["mean"], where, "mean")
    printed, quoted, explained = (
        cells["mean"] if units else "",
        cells.get("quoted") == "yes",
        cells.get("explained", ""),
    )
    return Published(mean=mean, std=std, quoted=quoted, note=note, printed=printed, step=step, explained=explained)


def _number(text: str, where: str, column: str) -> float:
    hint = "; write a decimal point" if re.fullmatch(r"-?[0-9]+,[0-9]+", text) else ""
    _check(_NUMBER.fullmatch(text), where, column, f"{show(text)} is not a number{hint}")
    return float(text)


def _check(right: object, where: str, column: str, message: str) -> None:
    if not right:
        raise UserError(f"{where}: {column}: {message}")
