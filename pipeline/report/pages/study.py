"""One spec with all that is known of it: what its own report and the page of its paper are both made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflcore.artifacts import atomic_path
from pipeline.report.claims.claims import Judgement, judge_claims
from pipeline.report.figures.curves import Curve, Drawn, collect_curves, curves_csv, draw_curves
from pipeline.report.figures.figures import build_sections
from pipeline.report.figures.sections import Section
from pipeline.report.pages.view import Page, build_page
from pipeline.report.table.cells import Cell, collect_cells
from pipeline.report.table.layout import Layout
from pipeline.report.table.measured import Measured, measure

_YLABEL = "accuracy (%)"


@dataclass(frozen=True)
class Study:
    """A resolved table, its runs' measurements, and the page that says it all.

    Attributes:
        drawn: The convergence curves; of a study without any, an empty picture.
    """

    table: dict[str, Any]
    layout: Layout
    cells: list[Cell]
    runs: dict[str, Measured]
    judgements: list[Judgement]
    curves: list[Curve]
    drawn: Drawn
    page: Page

    @property
    def spec(self) -> str:
        return str(self.table["spec"])


def summarise(table: dict[str, Any], root: Path) -> tuple[list[Cell], list[Judgement]]:
    """The cells and claims of a resolved table, without drawing anything.

    Raises:
        UserError: An artifact is damaged.
    """
    runs = measure(table, root)
    cells = collect_cells(table, runs)
    return cells, judge_claims(table, cells, runs)


def examine(table: dict[str, Any], root: Path) -> Study:
    """Read and draw everything that there is of a resolved table.

    Args:
        table: A resolved table.
        root: The workspace, under which ``artifacts/runs/<run id>`` lies.

    Raises:
        UserError: An artifact is damaged.
    """
    runs = measure(table, root)
    cells = collect_cells(table, runs)
    layout = Layout(table, cells, single=_YLABEL)
    curves = collect_curves(layout, cells, runs)
    sections = build_sections(table, layout, runs, root)
    judgements = judge_claims(table, cells, runs)
    page = build_page(table, layout, cells, runs, curves, sections, judgements)
    drawn = draw_curves(layout, curves, _YLABEL)
    return Study(table, layout, cells, runs, judgements, curves, drawn, page)


def put(path: Path, content: str | bytes) -> bool:
    """Write a file as a whole, unless it has that content already; whether it was written."""
    raw = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == raw:
        return False
    with atomic_path(path) as temporary:
        temporary.write_bytes(raw)
    return True


def write_pictures(study: Study, out: Path, *, tidy: bool = False) -> None:
    """Write ``curves.svg .csv``, ``curves.png`` where there are any, and ``<figure>.svg .png .csv``, as far as a figure
    has a picture and numbers.

    Args:
        tidy: Leave out curves of which there are none, and remove pictures that the study no longer has.
    """
    files: dict[str, str | bytes] = {}
    if study.curves or not tidy:
        files = {"curves.svg": study.drawn.svg, "curves.csv": curves_csv(study.layout, study.curves)}
    if study.drawn.png:
        files["curves.png"] = study.drawn.png
    for section in study.page.sections:
        files |= _files(section)
    for name, content in files.items():
        put(out / name, content)
    if tidy:
        for path in (path for kind in ("svg", "png", "csv") for path in out.glob(f"*.{kind}")):
            if path.name not in files:
                path.unlink(missing_ok=True)


def _files(section: Section) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    if section.picture:
        files = {f"{section.name}.svg": section.picture.svg, f"{section.name}.png": section.picture.png}
    if not section.data.empty:
        text = section.data.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        files[f"{section.name}.csv"] = text
    return files
