"""Resources: what each method stores, sends and computes, as the runs' metadata says; no times, which do not repeat.

A line of the table is a row of the report. Costs that differ between columns (a head for 100 classes is larger than one
for 10) give a row several lines, each of which names the columns it holds for.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section
from pipeline.report.table.cells import Key
from pipeline.report.table.layout import Layout
from pipeline.report.table.results import Measured, Results, closest

TITLE = "Resources"

_FLOAT32 = 4
_TEXT = (
    "All are counts of numbers, but for the bytes. Model: parameters of the backbone. Stored: what a client "
    "holds during a round, what it keeps between its rounds and what it receives; kept: the former alone. Sent up and "
    "down: by and to one sampled client in a round, in numbers of 4 bytes and in bytes. Multiply-adds: of one local "
    "step, forward and backward, per sample. Server: parameters that the server holds."
)
_RELATIVE = " Relative: multiply-adds against FedAvg on the same backbone"
_SMALLEST = "; with a star, where there is no FedAvg, against the cheapest method"

_FACTS = {
    "model": "parameters",
    "kept": "stored",
    "received": "received",
    "bytes_up": "communicated_up",
    "bytes_down": "communicated_down",
    "macs": "macs",
    "server": "server",
}
"""What a count is called in the metadata of runs."""
_HEADER = {
    "model": "model",
    "stored": "stored",
    "kept": "kept",
    "up": "sent up",
    "down": "sent down",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "macs": "multiply-adds",
    "relative": "relative",
    "server": "server",
}
_IN_DATA = ("model", "stored", "kept", "bytes_up", "bytes_down", "macs", "server")


@dataclass(frozen=True)
class Cost:
    """What one cell of the table costs, on average over its runs.

    Attributes:
        counts: By name: what :data:`_FACTS` has, ``stored``, which is kept and received, and ``up`` and ``down``, the
            numbers that the bytes are; None where runs do not say it.
        relative: Multiply-adds against those of FedAvg on the same backbone in the same column, or of the cheapest
            method.
        to_smallest: The latter.
    """

    counts: dict[str, int | None]
    relative: float | None
    to_smallest: bool

    @property
    def printed(self) -> tuple[str, ...]:
        """The numbers under :data:`_HEADER`."""
        ratio = NO_VALUE if self.relative is None else f"{self.relative:.2f}{'*' if self.to_smallest else ''}"
        numbers = {name: NO_VALUE if n is None else f"{n:,}" for name, n in self.counts.items()}
        return tuple({**numbers, "relative": ratio}[name] for name in _HEADER)


def draw(results: Results) -> Section:
    """The section; without a table while no run has been made."""
    results = results.of_runs
    layout, costs = results.layout, collect_costs(results)
    if not costs:
        return Section("No run has been made yet.")
    lines = [
        (row, columns, numbers)
        for row in layout.rows
        for numbers, columns in _lines({column: cost for (at, column), cost in costs.items() if at == row}).items()
    ]
    several = any(layout.settings(columns) for _, columns, _ in lines) and len(layout.columns) > 1
    header = layout.place_header if several else layout.place_header[: len(layout.row_axes)]
    table = PlainTable(
        header=(*header, *_HEADER.values()),
        rows=[
            (*row, *([layout.settings(columns) or "all"] if several else []), *numbers)
            for row, columns, numbers in lines
        ],
        labels=len(header),
    )
    to_smallest = any(cost.to_smallest for cost in costs.values())
    text = f"{_TEXT}{_RELATIVE}{_SMALLEST if to_smallest else ''}."
    return Section(text, table=table, data=_data(layout, costs))


def collect_costs(results: Results) -> dict[tuple[Key, Key], Cost]:
    """The cost of every (row, column) with a run that has been made and did not diverge, rows first."""
    measured = {place: runs for place in results.layout.places if (runs := results.measured(*place))}
    return {
        (row, column): _cost(runs, [run for (_, other), own in measured.items() if other == column for run in own])
        for (row, column), runs in measured.items()
    }


def _cost(runs: list[Measured], column: list[Measured]) -> Cost:
    """Of the runs of a cell, given all runs of its column."""
    counts = {name: _mean(fact, runs) for name, fact in _FACTS.items()}
    kept, received, macs = (counts[name] for name in ("kept", "received", "macs"))
    counts["stored"] = None if kept is None or received is None else kept + received
    for way in ("up", "down"):
        size = counts[f"bytes_{way}"]
        counts[way] = None if size is None else round(size / _FLOAT32)
    with_macs = [run for run in column if run.facts.get("macs")]
    yardstick = closest(runs[0], [run for run in with_macs if run.resolved.method == "fedavg"])
    to_smallest = yardstick is None
    if yardstick is None:
        rivals = [run for run in with_macs if run.resolved.backbone == runs[0].resolved.backbone]
        yardstick = min(rivals, key=lambda run: (run.facts["macs"], run.id), default=None)
    relative = macs / yardstick.facts["macs"] if macs is not None and yardstick else None
    return Cost(counts, relative, to_smallest and relative is not None)


def _mean(fact: str, runs: list[Measured]) -> int | None:
    numbers = [run.facts[fact] for run in runs if run.facts.get(fact) is not None]
    return round(statistics.fmean(numbers)) if numbers else None


def _lines(costs: dict[Key, Cost]) -> dict[tuple[str, ...], list[Key]]:
    """Printed numbers → the columns of one row that have them, in order."""
    lines: dict[tuple[str, ...], list[Key]] = {}
    for column, cost in costs.items():
        lines.setdefault(cost.printed, []).append(column)
    return lines


def _data(layout: Layout, costs: dict[tuple[Key, Key], Cost]) -> pd.DataFrame:
    axes = [*layout.row_axes, *layout.column_axes]
    frame = pd.DataFrame([dict(zip(axes, [*row, *column], strict=True)) for row, column in costs])
    for name in _IN_DATA:
        frame[name] = pd.array([cost.counts[name] for cost in costs.values()], dtype="Int64")
    frame["relative"] = [cost.relative for cost in costs.values()]
    return frame
