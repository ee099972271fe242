"""Which figures a report has beside its table and curves: those that its spec lists, or the analyses that were made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.report.figures.adaptation import adaptation
from pipeline.report.figures.analyses import Analyses, Found, by_cell, read_analyses
from pipeline.report.figures.boxes import boxes
from pipeline.report.figures.embeddings import embeddings
from pipeline.report.figures.gain import gain
from pipeline.report.figures.mixing import mixing
from pipeline.report.figures.noise_scatter import noise_scatter
from pipeline.report.figures.resources import resources
from pipeline.report.figures.rollout import rollout
from pipeline.report.figures.sections import Section
from pipeline.report.figures.values import values
from pipeline.report.table.layout import Layout
from pipeline.report.table.measured import Measured
from pipeline.spec.figure_names import ANALYSES, draws_analyses


def build_sections(table: dict[str, Any], layout: Layout, runs: dict[str, Measured], root: Path) -> list[Section]:
    """The figures of a resolved table, in the order of its spec.

    Raises:
        UserError: An artifact that a figure needs is damaged.
    """
    figures: list[str] | None = table["figures"]
    of_runs = layout.of_runs()
    found = read_analyses(runs) if draws_analyses(figures) else {}
    if figures is None:
        figures = [name for name in ANALYSES if any(by_cell(of_runs, runs, found.get(name, {})))]
    of_cells = {
        "values": lambda: values(table, layout),
        "boxes": lambda: boxes(table, layout, runs, table["decimals"]),
    }
    return [
        of_cells[name]() if name in of_cells else _section(name, of_runs, runs, found, root, table["decimals"])
        for name in figures
    ]


def _section(
    name: str, layout: Layout, runs: dict[str, Measured], analyses: Analyses, root: Path, decimals: int
) -> Section:
    """A figure of what runs left behind, not of the table's own cells."""
    if name in ANALYSES:
        found = analyses.get(name, {})
        if not any(by_cell(layout, runs, found)):
            words = (
                f"No run of this table has made this analysis; runs with evaluation: {{analyses: [{name}]}} make it."
            )
            return Section(name, words)
        return _draw_analysis(name, layout, runs, found, decimals)
    make: dict[str, Callable[[], Section]] = {
        "resources": lambda: resources(layout, runs),
        "gain": lambda: gain(layout, runs, decimals),
        "noise": lambda: noise_scatter(layout, runs, root, decimals),
    }
    return make[name]()


def _draw_analysis(
    name: str, layout: Layout, runs: dict[str, Measured], found: dict[str, Found], decimals: int
) -> Section:
    if name == "adaptation":
        return adaptation(layout, runs, found, decimals)
    return {"embeddings": embeddings, "mixing": mixing, "rollout": rollout}[name](layout, runs, found)
