"""The report stage: one resolved table in, a folder of files out."""

from __future__ import annotations

from pathlib import Path

from pflcore.artifacts import write_table
from pflcore.files import write_text
from pipeline.report.formats import csv_text
from pipeline.report.pages.metrics import write_metrics
from pipeline.report.pages.provenance import write_timings
from pipeline.report.pages.render import latex, markdown, render_html
from pipeline.report.pages.study import examine, write_pictures
from pipeline.report.table.derived import rows_with_derived
from pipeline.spec.table import ResolvedTable, read_runs

_META = {"spec", "title", "profile", "rows", "columns", "metric", "better", "decimals"}


def build_report(table: ResolvedTable, root: Path, out: Path) -> None:
    """Write ``report.md .tex .html`` and ``table.csv .parquet`` into `out`, and pictures into its folder ``figures``.

    These are ``claims.csv`` where there are claims, and ``<figure>.svg .png .csv`` of the curves and of every figure
    that the table asks for, as far as it has a picture and numbers.

    Runs that have not been made are reported as missing, so a report can be built at any time. The same table and
    artifacts give the same bytes. Durations, which do not repeat, go to ``root/.pfl/timings/<spec>.md`` instead.

    Args:
        root: The workspace, under which the records of the table's runs lie, and their artifacts.
        out: The folder to write into; made if it does not exist.

    Raises:
        UserError: A record or an artifact is damaged, or an axis has the name of one of the report's own columns.
    """
    study = examine(table, read_runs(table, root), root)
    rows = rows_with_derived(study.results, study.results.to_arrow())

    write_text(out / "report.md", markdown("report.md.j2", page=study.page))
    write_text(out / "report.tex", latex("report.tex.j2", page=study.page))
    write_text(out / "report.html", render_html(study))
    write_text(out / "table.csv", csv_text(rows.drop_columns("by_seed").to_pandas()))
    write_table(out / "table.parquet", rows, "table/2", **table.model_dump(include=_META))
    write_pictures(study, out / "figures")
    write_metrics(study.results, out / "metrics")
    write_timings(table, root)
