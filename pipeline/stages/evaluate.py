"""The evaluate stage: what the runs of a spec measured becomes one frame, with the figures of every protocol."""

from __future__ import annotations

from pathlib import Path

from pipeline.report.frame import write_frame
from pipeline.spec.table import ResolvedTable


def run(table: ResolvedTable, root: Path, out: Path) -> str:
    """Write the frame of a table's runs in the workspace `root` into the folder `out`; return a line to show."""
    write_frame(table, root, out)
    return f"{table.spec}: {len(table.runs)} runs"
