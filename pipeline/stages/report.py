"""The report stage: a resolved table and the runs' artifacts become a folder of readable files."""

from __future__ import annotations

from pathlib import Path

from pipeline.report.frame import write_frame
from pipeline.report.write import build_report
from pipeline.spec.table import read_resolved
from pipeline.workspace import frame_path


def run(table_path: Path, root: Path, out: Path) -> str:
    """Render the table in `table_path` into the folder `out`; returns a line to show."""
    table = read_resolved(table_path)
    write_frame(table, root, root / frame_path(table.spec))
    build_report(table, root, out)
    return f"{table.title}: {out / 'report.md'}"
