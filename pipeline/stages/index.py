"""The index stage: one page that links the reports a bare ``dvc repro`` brings up to date."""

from __future__ import annotations

from pathlib import Path

from pflcore.artifacts import read_meta
from pflcore.files import write_text
from pipeline.escape import escape_markdown
from pipeline.spec.table import ResolvedTable


def run(tables: list[ResolvedTable], reports: Path) -> str:
    """Write ``index.md`` into the folder `reports`, a row per table; return a line to show."""
    rows = ["| report | cells obtained | of | |", "|---|---:|---:|---|"]
    for table in tables:
        read_meta(reports / table.spec / "table.parquet", "table/2")
        obtained = sum(bool(cell.runs) for cell in table.cells)
        links = " · ".join(f"[{kind}]({table.spec}/report.{kind})" for kind in ("md", "html", "tex"))
        rows.append(f"| {escape_markdown(table.title)} | {obtained} | {len(table.cells)} | {links} |")
    write_text(reports / "index.md", "# Reports\n\n" + "\n".join(rows) + "\n")
    return f"reports: {reports / 'index.md'}"
