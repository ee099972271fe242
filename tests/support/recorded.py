"""Tables that a test compares with what is so now, and which a command writes anew."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path


def recorded(file: Path) -> list[tuple[str, ...]]:
    """The table without its head."""
    with file.open(newline="", encoding="utf-8") as stream:
        return [tuple(row) for row in csv.reader(stream)][1:]


def record(file: Path, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Write it anew."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([columns, *rows])
