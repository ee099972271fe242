"""The report stage: a resolved table and the frame of its runs become a folder of readable files."""

from __future__ import annotations

from pathlib import Path

from pipeline.report.write import build_report
from pipeline.spec.table import ResolvedTable


def run(table: ResolvedTable, root: Path, out: Path) -> str:
    """Render a table of the workspace `root` into the folder `out`; return a line to show."""
    build_report(table, root, out)
    return f"{table.title}: {out / 'report.md'}"
