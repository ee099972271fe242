"""The obtained values of a table as ``dvc metrics`` shows them: a file per row, an entry per column."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from pflcore.files import write_text
from pipeline.report.table.layout import Key
from pipeline.report.table.results import Results


def write_metrics(results: Results, out: Path) -> None:
    """Write ``<row>.json`` for every row with an obtained value into the folder `out`, which has nothing else then.

    A file is nested as the columns are, by label; a table without columns has one entry, called like its metric.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for row in results.layout.rows:
        if values := _values(results, row):
            write_text(_free(out, "-".join(row) or results.table.metric), json.dumps(values, indent=1) + "\n")


def _values(results: Results, row: Key) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for column in results.layout.columns:
        cell = results.layout.cell(row, column)
        if cell and cell.obtained:
            *outer, last = column or (results.table.metric,)
            inside = values
            for label in outer:
                inside = inside.setdefault(label, {})
            inside[last] = round(cell.obtained.mean, 4)
    return values


def _free(folder: Path, label: str) -> Path:
    """A file for a label in a folder: what is no letter, digit, dot or sign in it becomes ``_``."""
    name = re.sub(r"[^\w.()+-]+", "_", label, flags=re.ASCII).strip("._")[:80] or "row"
    number, path = 1, folder / f"{name}.json"
    while path.exists():
        number, path = number + 1, folder / f"{name}_{number + 1}.json"
    return path
