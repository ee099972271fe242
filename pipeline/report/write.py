"""The report stage: write a folder of files from a resolved table and the frame of its runs."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from pflcore.artifacts import read_table, write_table
from pflcore.files import atomic_path, write_text
from pipeline.report.cells import Key
from pipeline.report.claim_tables import all_pairs
from pipeline.report.formats import csv_text, escape_markdown, md_table
from pipeline.report.frame import read_frame
from pipeline.report.render import Document, html, latex, markdown
from pipeline.report.spec_report import SpecReport
from pipeline.report.table import Results
from pipeline.spec.run import short_hash
from pipeline.spec.table import ResolvedTable
from pipeline.timing import read_timing
from pipeline.workspace import frame_path, partition_report_path, report_path, timings_path

_META = {"spec", "title", "profile", "rows", "columns", "metric", "better", "decimals"}


def build_report(table: ResolvedTable, root: Path, out: Path) -> None:
    """Write ``report.md .tex .html``, ``table.tex .csv .parquet``, ``results.csv .parquet`` (as ``study.results()``)
    and folders ``figures`` and ``metrics`` into `out`; durations, which vary, go to ``.pfl/timings/``. Raises
    :class:`UserError` if the frame is missing or damaged, or if an axis has the name of a column of the report."""
    folder, address = root / frame_path(table.spec), report_path(table.spec)
    results, paper = Results.from_frame(table, read_frame(folder)), table.paper
    rows, (measured, _) = results.to_arrow(), read_table(folder / "results.parquet", "results/1")
    federations = [partition.federation for partition in table.partitions if partition.page]
    pages = {name: posixpath.relpath(f"{partition_report_path(name)}/index", address) for name in federations}
    report, timings = SpecReport(results, pages=pages), timings_path(table.spec).as_posix()
    source = ", ".join(filter(None, (paper.name, paper.table, paper.citation))) if paper else ""
    document = Document(table.title, table.profile, [report], timings, source=source)
    write_text(out / "report.md", markdown("page.md.j2", page=document))
    write_text(out / "report.tex", latex("page.tex.j2", page=document))
    write_text(out / "report.html", html("page.html.j2", page=document))
    write_text(out / "table.tex", latex("table.tex.j2", report=report))
    write_text(out / "table.csv", csv_text(rows.drop_columns("by_seed").to_pandas()))
    write_table(out / "table.parquet", rows, "table/2", **table.model_dump(include=_META))
    write_text(out / "results.csv", csv_text(pd.DataFrame(measured.to_pandas())))
    write_table(out / "results.parquet", measured, "results/1", spec=table.spec)
    write_pictures(report, out / "figures")
    write_metrics(results, out / "metrics")
    write_timings(table, root)


def write_if_changed(path: Path, content: str | bytes) -> bool:
    """Write a file atomically unless it has that content; return whether it was written."""
    raw = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == raw:
        return False
    with atomic_path(path) as temporary:
        temporary.write_bytes(raw)
    return True


def write_pictures(report: SpecReport, out: Path, *, clean: bool = False) -> None:
    """Write ``claims.csv`` if there are claims, and ``<figure>.svg .png .csv`` for the curves and each figure, as far
    as it has a picture and numbers; `clean` removes such files that the report no longer has."""
    files = dict[str, str | bytes]()
    if report.judgements:
        files["claims.csv"] = csv_text(all_pairs(report.judgements))
    out.mkdir(parents=True, exist_ok=True)
    for section in report.sections:
        if section.picture:
            files |= {f"{section.name}.svg": section.picture.svg, f"{section.name}.png": section.picture.png}
        if not section.data.empty:
            files[f"{section.name}.csv"] = csv_text(section.data)
    for name, content in files.items():
        write_if_changed(out / name, content)
    for path in out.iterdir() if clean else ():
        if path.suffix in (".svg", ".png", ".csv") and path.name not in files:
            path.unlink(missing_ok=True)


def write_metrics(results: Results, out: Path) -> None:
    """Write the obtained values for ``dvc metrics`` into the folder `out`, which is emptied first: ``<row>.json`` for
    each row with values, nested like the columns; without columns one entry with the name of the metric."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    metric, by_row = results.table.metric, dict[Key, dict[str, Any]]()
    for cell in results.cells:
        if cell.obtained:
            *outer, innermost = cell.key(results.table.columns) or (metric,)
            values = by_row.setdefault(cell.key(results.table.rows), {})
            for label in outer:
                values = values.setdefault(label, {})
            values[innermost] = round(cell.obtained.mean, 4)
    names = [re.sub(r"[^\w.()+-]+", "_", "-".join(row) or metric, flags=re.ASCII).strip("._")[:80] for row in by_row]
    counts = Counter(names)
    for (row, values), name in zip(by_row.items(), names, strict=True):
        if not name or counts[name] > 1:  # add a hash, since numbers would change with rows that are added above
            name = f"{name or 'row'}_{short_hash(row)}"
        write_text(out / f"{name}.json", json.dumps(values, indent=1) + "\n")


def write_timings(table: ResolvedTable, root: Path) -> None:
    """Collect ``.pfl/timings/<run id>.json`` into one table, if there are any."""
    rows, total = [("run", "device", "seconds", "MiB at most")], 0.0
    for run in sorted(table.runs):
        if timing := read_timing(root / ".pfl" / "timings" / f"{run}.json"):
            memory = f"{timing.peak_mb:,.0f}" if timing.peak_mb else ""
            rows.append((run, escape_markdown(timing.device), f"{timing.seconds:.1f}", memory))
            total += timing.seconds
    if len(rows) > 1:
        lines = md_table([*rows, ("**all**", "", f"{total:.1f}", "")], 2)
        write_text(root / timings_path(table.spec), f"# Training time and memory of {table.spec}\n\n{lines}\n")
