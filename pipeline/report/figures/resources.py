"""Resources: what each method stores, sends and computes, as the runs' metadata says; no times, which do not repeat.

A line of the table is a row of the report. Costs that differ between columns (a head for 100 classes is larger than one
for 10) give a row several lines, each of which names the columns it holds for.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from pipeline.report.drawing.sections import NO_VALUE, PlainTable, Section
from pipeline.report.table.clients import closest
from pipeline.report.table.layout import Key, Layout
from pipeline.report.table.measured import Measured
from pipeline.report.table.results import Results

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


@dataclass(frozen=True)
class MethodCost:
    """What one cell of the table costs, on average over its runs; a number is None where runs do not say it.

    Attributes:
        model: Parameters of the model.
        kept: Numbers a client holds between its rounds.
        received: Numbers it receives at the beginning of a round.
        up, down: Bytes one sampled client sends and receives in a round.
        macs: Multiply-adds per sample of one local step.
        server: Parameters the server holds.
        relative: `macs` against those of FedAvg on the same backbone in the same column, or of the cheapest method.
        to_smallest: The latter.
    """

    model: int | None
    kept: int | None
    received: int | None
    up: int | None
    down: int | None
    macs: int | None
    server: int | None
    relative: float | None
    to_smallest: bool

    @property
    def stored(self) -> int | None:
        """What a client holds during a round."""
        return None if self.kept is None or self.received is None else self.kept + self.received


_Print = Callable[[MethodCost], str]
_COLUMNS: dict[str, _Print] = {
    "model": lambda cost: _count(cost.model),
    "stored": lambda cost: _count(cost.stored),
    "kept": lambda cost: _count(cost.kept),
    "sent up": lambda cost: _count(_numbers(cost.up)),
    "sent down": lambda cost: _count(_numbers(cost.down)),
    "bytes up": lambda cost: _count(cost.up),
    "bytes down": lambda cost: _count(cost.down),
    "multiply-adds": lambda cost: _count(cost.macs),
    "relative": lambda cost: _ratio(cost),
    "server": lambda cost: _count(cost.server),
}


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
        header=(*header, *_COLUMNS),
        rows=[
            (*row, *([layout.settings(columns) or "all"] if several else []), *numbers)
            for row, columns, numbers in lines
        ],
        labels=len(header),
    )
    to_smallest = any(cost.to_smallest for cost in costs.values())
    text = f"{_TEXT}{_RELATIVE}{_SMALLEST if to_smallest else ''}."
    return Section(text, table=table, data=_data(layout, costs))


def collect_costs(results: Results) -> dict[tuple[Key, Key], MethodCost]:
    """The cost of every (row, column) with a run that has been made and did not diverge, rows first."""
    measured = {place: runs for place in results.layout.places if (runs := results.measured(*place))}
    return {
        (row, column): _cost(runs, [run for (_, other), own in measured.items() if other == column for run in own])
        for (row, column), runs in measured.items()
    }


def _cost(runs: list[Measured], column: list[Measured]) -> MethodCost:
    """Of the runs of a cell, given all runs of its column."""
    macs = _mean("macs", runs)
    with_macs = [run for run in column if run.facts.get("macs")]
    yardstick = closest(runs[0], [run for run in with_macs if run.resolved.method == "fedavg"])
    to_smallest = yardstick is None
    if yardstick is None:
        rivals = [run for run in with_macs if run.resolved.backbone == runs[0].resolved.backbone]
        yardstick = min(rivals, key=lambda run: (run.facts["macs"], run.id), default=None)
    relative = macs / yardstick.facts["macs"] if macs is not None and yardstick else None
    return MethodCost(
        model=_mean("parameters", runs),
        kept=_mean("stored", runs),
        received=_mean("received", runs),
        up=_mean("communicated_up", runs),
        down=_mean("communicated_down", runs),
        macs=macs,
        server=_mean("server", runs),
        relative=relative,
        to_smallest=to_smallest and relative is not None,
    )


def _mean(fact: str, runs: list[Measured]) -> int | None:
    numbers = [run.facts[fact] for run in runs if run.facts.get(fact) is not None]
    return round(statistics.fmean(numbers)) if numbers else None


def _lines(costs: dict[Key, MethodCost]) -> dict[tuple[str, ...], list[Key]]:
    """Printed numbers → the columns of one row that have them, in order."""
    lines: dict[tuple[str, ...], list[Key]] = {}
    for column, cost in costs.items():
        lines.setdefault(tuple(write(cost) for write in _COLUMNS.values()), []).append(column)
    return lines


def _numbers(size: int | None) -> int | None:
    return None if size is None else round(size / _FLOAT32)


def _count(number: int | None) -> str:
    return NO_VALUE if number is None else f"{number:,}"


def _ratio(cost: MethodCost) -> str:
    return NO_VALUE if cost.relative is None else f"{cost.relative:.2f}{'*' if cost.to_smallest else ''}"


def _data(layout: Layout, costs: dict[tuple[Key, Key], MethodCost]) -> pd.DataFrame:
    axes = [*layout.row_axes, *layout.column_axes]
    frame = pd.DataFrame([dict(zip(axes, [*row, *column], strict=True)) for row, column in costs])
    for name in ("model", "stored", "kept", "up", "down", "macs", "server"):
        frame[name] = pd.array([getattr(cost, name) for cost in costs.values()], dtype="Int64")
    frame["relative"] = [cost.relative for cost in costs.values()]
    return frame.rename(columns={"up": "bytes_up", "down": "bytes_down"})
