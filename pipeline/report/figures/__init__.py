"""Figures beside the table, one per file: the file's name is the figure's.

A file has a ``TITLE``, unless it draws what the analysis of its name found, whose title it then has; what the figure
``NEEDS`` beside the rounds of runs, if anything (:func:`pipeline.spec.figures.figure_needs`); and :data:`Draw`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from pipeline.report.drawing.numbers import draw_numbers
from pipeline.report.drawing.sections import Section
from pipeline.report.table.results import Results
from pipeline.spec.figures import figure_module, figure_names

Draw = Callable[[Results], Section]
"""The function ``draw`` of a figure's file. Raises :class:`UserError` when an artifact that it needs is damaged."""


def build_sections(results: Results) -> list[Section]:
    """The figures that a table's spec lists, in its order, or else the analyses that its runs made.

    Raises:
        UserError: An artifact that a figure needs is damaged.
    """
    names = results.table.drawn
    if results.table.figures is None:
        unmade = {name for name in results.table.analyses if not any(results.of_runs.found(name))}
        names = [name for name in names if name not in unmade]
    return [_section(name, results) for name in names]


def _section(name: str, results: Results) -> Section:
    title = results.table.analyses.get(name, "")
    if title and not any(results.of_runs.found(name)):
        section = Section(f"No run of this table has made this analysis; runs with analyses: [{name}] make it.")
    elif name in figure_names():
        file = import_module(figure_module(name))
        draw: Draw = file.draw
        section, title = draw(results), title or file.TITLE
    else:
        section = draw_numbers(name, results)
    return replace(section, name=name, title=title)
