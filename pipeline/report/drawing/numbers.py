"""What an analysis found that has no figure of its own: its numbers, item by item."""

from __future__ import annotations

import pandas as pd

from pipeline.report.drawing.sections import PlainTable, Section, counted, labelled
from pipeline.report.table.results import Results

_MOST = 40  # lines
_TEXT = "Numbers of each item over the clients, and over its series where it has one, of all runs of a cell."


def draw_numbers(name: str, results: Results) -> Section:
    """The section of the analysis `name`: a line per cell and item, and every number in the CSV file."""
    layout = results.of_runs.layout
    lines: list[tuple[str, ...]] = []
    data = []
    for row, column, of_cell in results.of_runs.found(name):
        rows = pd.concat([one.rows.assign(run=one.run) for one in of_cell], ignore_index=True)
        data.append(labelled(layout, row, column, rows[["run", "client", "item", "index", "value"]]))
        for item, values in rows.groupby("item", sort=False)["value"]:
            numbers = (values.mean(), values.std(ddof=0), values.min(), values.max())
            lines.append((*layout.place(row, column), str(item), f"{len(values):,}", *(f"{x:.4g}" for x in numbers)))
    header = (*layout.place_header, "item")
    cut = f" The first {_MOST} of {counted(len(lines), 'line')}; the others are in {name}.csv." if lines[_MOST:] else ""
    table = PlainTable((*header, "numbers", "mean", "std", "least", "greatest"), lines[:_MOST], labels=len(header))
    return Section(_TEXT + cut, table=table, data=pd.concat(data, ignore_index=True))
