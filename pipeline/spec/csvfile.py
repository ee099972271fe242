"""Small CSV files that people write beside specs, line by line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from pflcore.errors import UserError
from pipeline.spec.yamlfile import read_text


def csv_lines(path: Path, label: str) -> Iterator[tuple[str, list[str]]]:
    """Where a line is, ``label:2``, and its cells; empty lines, and on top those that begin with #, are passed over.

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
