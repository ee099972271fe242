"""Figures of reports: :data:`pipeline.spec.figures.BUILT_IN`, and those of studies and packages, one file each.

The file of a figure has a function ``draw`` (:data:`Draw`) and a ``TITLE``, by default that of the analysis with its
name. ``NEEDS`` is what a figure reads besides rounds of runs, if anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pandas as pd

from pflcore.errors import UserError
from pipeline.report.drawing.sections import Picture, PlainTable, Section, figure_style, pluralize
from pipeline.report.figures._charts import draw_curves
from pipeline.report.figures._data import TableData as TableData
from pipeline.report.table import Results
from pipeline.spec.figures import BUILT_IN, figure_module, figure_names, figure_title

Draw = Callable[[TableData], Section]
"""A function that draws a figure. Raises :class:`UserError` if an artifact that it needs is damaged."""

MAX_LINES = 40


def build_sections(results: Results) -> list[Section]:
    """Return the convergence curves, if there are any, and the figures that a table's spec lists or, without a list,
    the analyses of its runs. Raises :class:`UserError` if an artifact that a figure needs is damaged."""
    data, analyses = TableData(results), results.table.analyses
    names = results.table.drawn
    if results.table.figures is None:
        names = [name for name in names if name not in analyses or not data.findings(name).empty]
    by_work = "Convergence over visits of a training sample"
    with figure_style():
        sections = [
            replace(draw_curves(data), name="curves", title="Convergence"),
            replace(draw_curves(data, work=True), name="curves_by_work", title=by_work),
        ]
        return [*(section for section in sections if section.picture), *(_section(name, data) for name in names)]


def curves_of(results: Results) -> Picture | None:
    """Return the picture of the convergence curves; None if there are none."""
    with figure_style():
        return draw_curves(TableData(results)).picture


def _section(name: str, data: TableData) -> Section:
    title = data.table.analyses.get(name, "")
    if title and data.findings(name).empty:
        section = Section(f"No run of this table has made this analysis; runs with analyses: [{name}] make it.")
    elif name in figure_names():
        section, title = _draw(name, data), title or figure_title(name)
    else:
        section = _numbers(name, data)
    lines = section.data.drop(columns="series", errors="ignore")
    names = {axis: axis.removeprefix("axis.") for axis in map(str, lines.columns) if axis.startswith("axis.")}
    names = {axis: f"{name} (axis)" if name in lines else name for axis, name in names.items()}
    return replace(section, data=lines.rename(columns=names), name=name, title=title)


def _draw(name: str, data: TableData) -> Section:
    """Draw a figure. Raises :class:`UserError` if its module has no function ``draw`` that returns a section."""
    module = import_module(figure_module(name))
    draw: Draw | None = getattr(module, f"draw_{name}" if name in BUILT_IN else "draw", None)
    if draw is None:
        raise UserError(f"figure {name!r}: {module.__file__} has no function draw(data)")
    section = draw(data)
    if not isinstance(section, Section):
        raise UserError(f"figure {name!r}: draw in {module.__file__} returned no Section, but {type(section).__name__}")
    return section


def _numbers(name: str, data: TableData) -> Section:
    """Return the numbers of an analysis without a figure: a line per cell and item."""
    findings = data.findings(name)
    axes = data.axes(findings)
    values = findings.groupby([*axes, "item"], observed=True, sort=False)["value"]
    numbers = {"mean": values.mean(), "std": values.std(ddof=0), "least": values.min(), "greatest": values.max()}
    summary = pd.DataFrame(numbers).map("{:.4g}".format)
    summary.insert(0, "numbers", values.size().map("{:,}".format))
    lines = summary.reset_index().sort_values(axes, kind="stable")
    text = "Numbers of each item over the clients, and over its series where it has one, of all runs of a cell."
    if len(lines) > MAX_LINES:
        text += f" The first {MAX_LINES} of {pluralize(len(lines), 'line')}; the others are in {name}.csv."
    table = PlainTable.of(lines[:MAX_LINES], axes, "item")
    return Section(text, table=table, data=findings[[*axes, "run", "client", "item", "index", "value"]])
