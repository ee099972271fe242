"""What figures are drawn from: a table and its runs as DataFrames. Nothing else here reads a table's results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from pflcore.json_text import parse_json
from pipeline.report.claims import judge_claims
from pipeline.report.table.cells import Cell, Key, Value
from pipeline.report.table.layout import Layout, headed, short
from pipeline.report.table.results import Measured, Results
from pipeline.spec.table import ResolvedTable

COSTS = {
    "model": "parameters",
    "kept": "stored",
    "received": "received",
    "bytes_up": "communicated_up",
    "bytes_down": "communicated_down",
    "macs": "macs",
    "server": "server",
}
"""Costs of a run, in numbers but for the bytes, and the names that its metadata has for them."""

_CELL = ("mean", "std", "n", "complete", "tied", "published_mean", "published_std")
_RUN = ("run", "method", "federation", "backbone", "options", "training", *COSTS)


@dataclass(frozen=True)
class TableData:
    """A table as figures see it.

    A frame has a column ``axis.<name>`` per axis of the table; ``series``, the labels of a row in one; and ``panel``,
    those of a column. They are ordered categoricals whose categories are the labels of the whole table, so that lines
    are sorted as the table is and are grouped in its order. Accuracies are in percent.
    """

    results: Results

    @property
    def table(self) -> ResolvedTable:
        """The table as its spec says."""
        return self.results.table

    @property
    def rows(self) -> list[str]:
        """The axes of the table's rows."""
        return _columns(self.table.rows)

    @property
    def columns(self) -> list[str]:
        """The axes of the table's columns."""
        return _columns(self.table.columns)

    @property
    def sign(self) -> float:
        """1, or -1 where the lower number is the better one."""
        return -1.0 if self.table.better == "lower" else 1.0

    @property
    def measure(self) -> str:
        """What is measured, as it stands at an axis: ``accuracy (%)`` or ``mAP (%)``."""
        return self.results.layout.figure

    def axes(self, frame: pd.DataFrame) -> list[str]:
        """Return the axes that a frame has, or ``series`` of a table without any: frames of runs lack those that choose
        one client or one quantity."""
        return [axis for axis in (*self.rows, *self.columns) if axis in frame] or ["series"]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A line per cell: mean, std, n (runs), complete (all that are planned), tied (with the best of its column by
        seeds), published_mean, published_std."""
        return _cells(self.results)

    @cached_property
    def protocols(self) -> pd.DataFrame:
        """The same under each protocol, the table's own first, where a cell is complete: protocol, mean, std, tied."""
        names = {name: None for run in self.results.runs.values() for name in run.values if name != "validation"}
        frames = [
            _cells(self.results.under(name)).assign(protocol=name)
            for name in sorted(names, key=lambda name: name != self.table.metric)
        ]
        every = pd.concat([self.cells[:0].assign(protocol=""), *frames], ignore_index=True)
        return _categorical(every[every["complete"] & every["mean"].notna()], self.results, self.results.layout)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """A line per protocol and claim: protocol, claim, verdict."""
        lines = [
            (protocol, judged.claim.text, judged.obtained.verdict)
            for protocol in self.protocols["protocol"].unique()
            for judged in judge_claims(self.results.under(protocol))
        ]
        return pd.DataFrame(lines, columns=["protocol", "claim", "verdict"])

    @cached_property
    def values(self) -> pd.DataFrame:
        """A line per run of each cell with a value: run, accuracy by the table's protocol."""
        lines = (
            (cell, (run, value.mean))
            for cell in self.results.layout.cells
            for run in (cell.runs if cell.obtained else ())
            if (value := self.results.runs[run].values_of(cell.client).get(self.table.metric))
        )
        return _placed(self.results, self.results.layout, lines, ("run", "accuracy"))

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A line per cell, run and measured round, up to where a run diverged: run, round, accuracy, pooled over
        clients or of a cell's one client. Tables of quantities have none."""
        lines = (
            (cell, (run, at, accuracy))
            for cell in ([] if self.table.quantities else self.results.layout.cells)
            for run, points in _curves(self.results, cell).items()
            for at, accuracy in points
        )
        return _placed(self.results, self.results.layout, lines, ("run", "round", "accuracy"))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A line per cell and run of those cells of which no run diverged: run, method, federation (data, partition,
        clients and seed), backbone, options (of the backbone), training, and :data:`COSTS`."""
        results = self.results.of_runs
        lines = ((cell, _facts(run)) for cell in results.layout.cells for run in _measured(results, cell))
        return _placed(results, results.layout, lines, _RUN)

    @cached_property
    def accuracies(self) -> pd.DataFrame:
        """A line per run and client with test samples, after the last round: run, client, accuracy."""
        frame = self.results.frame.clients
        return frame[frame["run"].isin(self.runs["run"])].dropna(subset="accuracy")[["run", "client", "accuracy"]]

    @cached_property
    def noise(self) -> pd.DataFrame:
        """A line per client of those federations that have noise: federation, client, noise (standard deviation)."""
        noise = {run.resolved.federation_id: run.facts.get("noise", ()) for run in self.results.runs.values()}
        lines = [(federation, client, std) for federation, own in noise.items() for client, std in enumerate(own)]
        return pd.DataFrame(lines, columns=["federation", "client", "noise"])

    def findings(self, analysis: str) -> pd.DataFrame:
        """A line for each number that an analysis found in :attr:`runs`: run, client (-1 where it is about none), item,
        index, value."""
        results, columns = self.results.of_runs, ["client", "item", "index", "value"]
        found = results.frame.findings[results.frame.findings["analysis"] == analysis]
        by_run = {run: list(rows[columns].itertuples(index=False, name=None)) for run, rows in found.groupby("run")}
        lines = (
            (cell, (run.id, *line))
            for cell in results.layout.cells
            for run in _measured(results, cell)
            for line in by_run.get(run.id, ())
        )
        return _placed(results, results.layout, lines, ("run", *columns))

    @cached_property
    def selections(self) -> pd.DataFrame:
        """A line per cell whose settings were chosen: selection, as the select stage writes it, and rounds of a run."""
        results, tuned = self.results.of_runs, self.table.tuned
        lines = (
            (cell, (parse_json(results.selections[name]), results.runs[cell.runs[0]].resolved.training.rounds))
            for cell in results.layout.cells
            for name in sorted({tuned[run] for run in cell.runs if run in tuned})
            if name in results.selections
        )
        return _placed(results, results.layout, lines, ("selection", "rounds"))


def closest(run: pd.Series[Any], others: pd.DataFrame) -> str | None:
    """Return the run among `others` that a number of this one may be compared with; None where there is none.

    It must have a backbone of the same name. Of several the one is taken whose backbone has the same options, then
    whose training has the same settings. Both are as lines of :attr:`TableData.runs`.
    """
    same = others[others["backbone"] == run["backbone"]]
    if same.empty:
        return None
    order = same.assign(options=same["options"] != run["options"], training=same["training"] != run["training"])
    return str(order.sort_values(["options", "training", "run"])["run"].iloc[0])


def heading(axes: Sequence[str]) -> str:
    """Return what heads labels on some axes in one."""
    return " · ".join(short(axis) for axis in axes)


def joined(frame: pd.DataFrame, axes: Sequence[str], keys: Iterable[Key] | None = None) -> pd.Categorical[Any]:
    """Return the labels of some axes as one text per line, ordered.

    Args:
        keys: All labels that there may be, in their order; by default those that the frame has.
    """
    own = list(zip(*(frame[axis] for axis in axes), strict=True)) if axes else [()] * len(frame)
    if keys is None:
        keys = frame.sort_values([*axes])[[*axes]].itertuples(index=False, name=None) if axes else [()]
    texts = {key: " · ".join(map(headed, axes, key)) for key in keys}
    return pd.Categorical([texts[key] for key in own], list(dict.fromkeys(texts.values())), ordered=True)


def _columns(axes: Sequence[str]) -> list[str]:
    return [f"axis.{axis}" for axis in axes]


def _placed(
    results: Results, layout: Layout, lines: Iterable[tuple[Cell, tuple[Any, ...]]], columns: Sequence[str]
) -> pd.DataFrame:
    axes = [*layout.row_axes, *layout.column_axes]
    frame = pd.DataFrame([(*cell.key(axes), *line) for cell, line in lines], columns=[*_columns(axes), *columns])
    return _categorical(frame, results, layout)


def _categorical(frame: pd.DataFrame, results: Results, layout: Layout) -> pd.DataFrame:
    sides = {"series": (layout.row_axes, layout.rows), "panel": (layout.column_axes, layout.columns)}
    for name, (axes, keys) in sides.items():
        for place, axis in enumerate(axes):
            present = {key[place] for key in keys}
            labels = [label for label in results.table.labels[axis] if label in present]
            frame[f"axis.{axis}"] = pd.Categorical(frame[f"axis.{axis}"], labels, ordered=True)
        frame[name] = joined(frame, _columns(axes), keys)
    return frame


def _cells(results: Results) -> pd.DataFrame:
    lines = (
        (cell, (*_numbers(cell.obtained), cell.n, cell.complete, cell.tied, *_numbers(cell.published)))
        for cell in results.layout.cells
    )
    numbers = [name for name in _CELL if name.endswith(("mean", "std"))]
    return _placed(results, results.layout, lines, _CELL).astype(dict.fromkeys(numbers, float) | {"complete": bool})


def _numbers(value: Value | None) -> tuple[float | None, float | None]:
    return (value.mean, value.std) if value else (None, None)


def _measured(results: Results, cell: Cell) -> list[Measured]:
    return results.measured(cell.key(results.layout.row_axes), cell.key(results.layout.column_axes))


def _facts(run: Measured) -> tuple[Any, ...]:
    of = run.resolved
    settings = (of.method, of.federation_id, of.backbone, json.dumps(of.options("backbone")), repr(of.training))
    return run.id, *settings, *(run.facts.get(name) for name in COSTS.values())


def _curves(results: Results, cell: Cell) -> dict[str, list[tuple[Any, float]]]:
    """Return the curves of the runs of a cell that were measured; none where one of them diverged at once."""
    runs = [run for run in map(results.runs.__getitem__, cell.runs) if run.made]
    curves = {run.id: list(run.curve(cell.client).items()) for run in runs}
    return curves if all(curves.values()) else {}
