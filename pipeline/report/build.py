"""The report stage: one resolved table in, a folder of files out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pflcore.artifacts import atomic_path, write_table, write_text
from pipeline.report.cells import collect_cells, to_arrow, to_frame
from pipeline.report.curves import collect_curves, curves_csv, curves_svg
from pipeline.report.figures import build_sections
from pipeline.report.layout import Layout
from pipeline.report.measured import measure
from pipeline.report.provenance import write_timings
from pipeline.report.render import render_html, render_latex, render_markdown
from pipeline.report.sections import Section
from pipeline.report.view import build_page

_META = ("spec", "title", "profile", "rows", "columns", "metric", "better", "decimals")
_YLABEL = "accuracy (%)"


def build_report(table: dict[str, Any], root: Path, out: Path) -> None:
    """Write ``report.md .tex .html``, ``table.csv .parquet`` and ``curves.svg .csv`` into `out`.

    Every figure that the table asks for adds ``<figure>.svg .png .csv``, as far as it has a picture and numbers.

    Runs that have not been made are reported as missing, so a report can be built at any time. The same table and
    artifacts give the same bytes. Durations, which do not repeat, go to ``root/.pfl/timings/<spec>.md`` instead.

    Args:
        table: A resolved table.
        root: The workspace, under which ``artifacts/runs/<run id>`` lies.
        out: The folder to write into; made if it does not exist.

    Raises:
        UserError: An artifact is damaged, or an axis has the name of one of the report's own columns.
    """
    runs = measure(table, root)
    cells = collect_cells(table, runs)
    frame = to_frame(table, cells)
    layout = Layout(table, cells, single=_YLABEL)
    curves = collect_curves(layout, cells, runs)
    sections = build_sections(table, layout, runs, root)
    page = build_page(table, layout, cells, runs, curves, sections)
    svg = curves_svg(layout, curves, _YLABEL)

    write_text(out / "report.md", render_markdown(page))
    write_text(out / "report.tex", render_latex(page))
    write_text(out / "report.html", render_html(page, svg))
    write_text(out / "table.csv", frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    write_table(out / "table.parquet", to_arrow(table, frame), "table/1", **{key: table[key] for key in _META})
    write_text(out / "curves.svg", svg)
    write_text(out / "curves.csv", curves_csv(layout, curves))
    for section in sections:
        _write_section(section, out)
    write_timings(table, root)


def _write_section(section: Section, out: Path) -> None:
    if section.picture:
        write_text(out / f"{section.name}.svg", section.picture.svg)
        with atomic_path(out / f"{section.name}.png") as temporary:
            temporary.write_bytes(section.picture.png)
    if not section.data.empty:
        text = section.data.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_text(out / f"{section.name}.csv", text)
