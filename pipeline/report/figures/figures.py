"""Which figures a report has beside its table and curves: those that its spec lists, or the analyses that were made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipeline.report.figures.adaptation import adaptation
from pipeline.report.figures.analyses import ByRun, by_cell, read_analyses
from pipeline.report.figures.boxes import boxes
from pipeline.report.figures.embeddings import embeddings
from pipeline.report.figures.findings import findings
from pipeline.report.figures.gain import gain
from pipeline.report.figures.mixing import mixing
from pipeline.report.figures.noise_scatter import noise_scatter
from pipeline.report.figures.resources import resources
from pipeline.report.figures.rollout import rollout
from pipeline.report.figures.sections import Section
from pipeline.report.figures.values import values
from pipeline.report.table.results import Results
from pipeline.spec.figure_names import FIGURES, draws_analyses

_OF_CELLS: dict[str, Callable[[Results], Section]] = {"values": values, "boxes": boxes}
_OF_RUNS: dict[str, Callable[[Results], Section]] = {"resources": resources, "gain": gain, "noise": noise_scatter}
_OF_ANALYSES: dict[str, Callable[[Results, ByRun], Section]] = {
    "embeddings": embeddings,
    "mixing": mixing,
    "rollout": rollout,
    "adaptation": adaptation,
}


def build_sections(results: Results) -> list[Section]:
    """The figures of a table, in the order of its spec.

    Raises:
        UserError: An artifact that a figure needs is damaged.
    """
    table, of_runs = results.table, results.of_runs()
    analyses = read_analyses(results.runs) if draws_analyses(table.figures) else {}
    figures = table.figures
    if figures is None:
        figures = [name for name in table.analyses if any(by_cell(of_runs, analyses.get(name, {})))]

    def section(name: str) -> Section:
        if name in _OF_CELLS:
            return _OF_CELLS[name](results)
        if name in _OF_RUNS:
            return _OF_RUNS[name](of_runs)
        found = analyses.get(name, {})
        if not any(by_cell(of_runs, found)):
            return Section(name, f"No run of this table has made this analysis; runs with analyses: [{name}] make it.")
        if name in _OF_ANALYSES:
            return _OF_ANALYSES[name](of_runs, found)
        return findings(name, of_runs, found)

    headings = {**FIGURES, **table.analyses}
    return [replace(section(name), title=headings[name]) for name in figures]
