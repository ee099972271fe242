"""Small CSV files that people write beside specs, line by line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from pflcore.errors import UserError
from pipeline.spec.yamlfile import read_text


def csv_lines(path: Path, label: str) -> Iterator[tuple[str, list[str]]]:
    """Where a line is, ``label:2``, and its cells; empty lines are passed over.

    Args:
        label: How messages name the file.

    Raises:
        UserError: It cannot be read, is too large, or is not valid CSV in UTF-8.
    """
    lines = csv.reader(io.StringIO(read_text(path, label), newline=""), strict=True)
    try:
        for cells in lines:
            if cells:
                yield f"{label}:{lines.line_num}", cells
    except csv.Error as error:
        raise UserError(f"{label}:{lines.line_num}: not valid CSV: {error}") from None
