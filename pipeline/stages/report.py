"""The report stage: a resolved table and the runs' artifacts become a folder of readable files."""

from __future__ import annotations

import json
from pathlib import Path

from pflcore.errors import UserError
from pipeline.report.build import build_report


def run(table_path: Path, root: Path, out: Path) -> str:
    """Render the table in `table_path` into the folder `out`; returns a line to show."""
    if not table_path.is_file():
        raise UserError(f"{table_path}: no such file; run `pfl compile`")
    try:
        table = json.loads(table_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{table_path}: not JSON ({error}); run `pfl compile`") from None
    build_report(table, root, out)
    return f"{table['title']}: {out / 'report.md'}"
