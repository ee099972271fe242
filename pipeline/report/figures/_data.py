"""The data of figures: a table's cells, and rows of the tidy frame, with their places in the table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from pflcore.files import parse_json
from pipeline.report.cells import Key
from pipeline.report.drawing.sections import Section
from pipeline.report.frame import ALL
from pipeline.report.printed import full_label
from pipeline.report.table import Results
from pipeline.spec.run import Run

COSTS = {
    "model": "parameters",
    "kept": "stored",
    "received": "received",
    "bytes_up": "communicated_up",
    "bytes_down": "communicated_down",
    "macs": "macs",
    "server": "server",
}
"""Costs of a run (counts of numbers, except the bytes), and their columns in the frame."""

MIXED_QUANTITIES = Section("Its cells are of different quantities, which one scale does not show.")
"""The section of a figure of one metric if the table has several quantities."""


class TableData:
    """The data of a table for figures.

    A frame has a column ``axis.<name>`` per axis of the table; ``series``, the labels of a row in one; and ``panel``,
    the labels of a column in one. They are ordered categoricals, so sorting and grouping follow the order of the table.
    Accuracies are in percent.

    Attributes:
        table: The resolved table.
        rows, columns: The row axes and the column axes, as columns of the frames.
        quantity: The quantity of all cells, if no axis chooses quantities; None for the metric in the usual view.
        sign: 1, or -1 if lower numbers are better.
        measure: The label of an axis for the values, such as ``accuracy (%)`` or ``mAP (%)``.
    """

    def __init__(self, results: Results) -> None:
        self.results, self.table, self.measure = results, results.table, results.heading
        self.rows, self.columns = ([f"axis.{axis}" for axis in axes] for axes in (self.table.rows, self.table.columns))
        self.quantity = self.table.cells[0].quantity if self.table.cells and not self.table.quantities else None
        self.sign = -1.0 if self.table.lower(self.quantity) else 1.0

    def axes(self, frame: pd.DataFrame) -> list[str]:
        """Return the axes that a frame has, or ``series``; frames of runs lack axes over clients or quantities."""
        return [axis for axis in (*self.rows, *self.columns) if axis in frame] or ["series"]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A line per cell: mean, std, n (runs), complete (whether all planned runs have a value), tied (with the best
        of its column by seeds), sign (-1 if lower numbers are better), published_mean, published_std."""
        axes, numbers = self.table.axes, ("mean", "std", "published_mean", "published_std")
        lines = []
        for cell in self.results.cells:
            values = [(value.mean, value.std) if value else (None, None) for value in (cell.obtained, cell.published)]
            sign = -1.0 if self.table.lower(cell.quantity) else 1.0
            lines.append((*cell.key(axes), *values[0], *values[1], cell.n, cell.complete, cell.tied, sign))
        columns = [*(f"axis.{axis}" for axis in axes), *numbers, "n", "complete", "tied", "sign"]
        frame = pd.DataFrame(lines, columns=columns)
        return self._categorized(frame.astype(dict.fromkeys(numbers, float) | {"complete": bool}), self.results)

    def place(self, rows: pd.DataFrame, *, single: bool = False, diverged: bool = False) -> pd.DataFrame:
        """Return rows, which have a column ``run``, once per cell of the run; ``finished`` is the number of finished
        runs of the cell.

        Args:
            single: Whether rows have a column ``client``, the cell's client or :data:`ALL`; otherwise cells that
                differ only in client or quantity are merged.
            diverged: Include cells with a diverged run; the mean of their other runs would be too good.
        """
        results, runs, lines = self.results if single else self.results.run_level, self.results.runs, []
        axes = results.table.axes
        for cell in results.cells:
            if diverged or not any(runs[run].diverged for run in cell.runs):
                client = ALL if cell.client is None else cell.client
                finished = sum(runs[run].finished for run in cell.runs)
                lines += [(*cell.key(axes), run, client, finished) for run in cell.runs]
        columns = [*(f"axis.{axis}" for axis in axes), "run", "client", "finished"]
        planned = pd.DataFrame(lines, columns=columns).astype({"run": str, "client": int})
        frame = planned.merge(rows) if single else planned.drop(columns="client").merge(rows, on="run")
        return self._categorized(frame, results)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A line per measured run of each cell without a diverged run: run, method, federation (data, partition,
        clients, seeds and condition), backbone, options (of the backbone), training, noise (JSON), :data:`COSTS`."""
        frame = self.results.frame
        runs = frame.runs[(frame.runs["state"] == "measured") & frame.runs["run"].isin(frame.values["run"])]
        lines = []
        for run in map(Run, map(json.loads, runs["settings"])):
            federation = f"{run.federation_id} {run.seed} {json.dumps(run.record.get('condition'))}"
            options, training = json.dumps(run.options("backbone")), repr(run.training)
            lines.append((run.method, federation, run.backbone, options, training))
        settings = pd.DataFrame(lines, runs.index, ["method", "federation", "backbone", "options", "training"])
        costs = runs[["run", "noise", *COSTS.values()]].set_axis(["run", "noise", *COSTS], axis="columns")
        return self.place(pd.concat([costs, settings], axis="columns"))

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A line per measured round of each run: run, client, round, accuracy, loss, train_loss."""
        return self.place(self.results.frame.rounds, single=True, diverged=True)

    @cached_property
    def accuracies(self) -> pd.DataFrame:
        """A line per run and client with test samples, after the last round: run, client, accuracy."""
        frame = self.results.frame.clients
        return frame[frame["run"].isin(self.runs["run"])].dropna(subset="accuracy")[["run", "client", "accuracy"]]

    def findings(self, analysis: str) -> pd.DataFrame:
        """Return a line per number of an analysis of :attr:`runs`: run, client (-1 for none), item, index, value."""
        findings = self.results.frame.findings
        return self.place(findings[findings["analysis"] == analysis].drop(columns="analysis"))

    @cached_property
    def selections(self) -> pd.DataFrame:
        """A line per cell with tuned settings: selection, as the select stage writes it, and rounds of a run."""
        runs = pd.DataFrame(self.table.tuned.items(), columns=["run", "id"])
        rounds = {run.id: run.resolved.training.rounds for run in self.results.runs.values()}
        cells = self.place(runs[runs["id"].isin(self.results.selections)], diverged=True)
        cells = cells.drop_duplicates([*self.axes(cells), "id"])
        chosen = [parse_json(self.results.selections[name]) for name in cells["id"]]
        return cells.assign(selection=chosen, rounds=cells["run"].map(rounds)).drop(columns=["run", "id"])

    def _categorized(self, frame: pd.DataFrame, results: Results) -> pd.DataFrame:
        """Return a frame with its axes as ordered categoricals, and with ``series`` and ``panel``."""
        sides = {"series": (results.table.rows, results.rows), "panel": (results.table.columns, results.columns)}
        for name, (axes, keys) in sides.items():
            for i, axis in enumerate(axes):
                present = {key[i] for key in keys}
                labels = [label for label in self.table.labels[axis] if label in present]
                frame[f"axis.{axis}"] = pd.Categorical(frame[f"axis.{axis}"], labels, ordered=True)
            frame[name] = joined_labels(frame, [f"axis.{axis}" for axis in axes], keys)
        return frame


def match_runs(runs: pd.DataFrame, others: pd.DataFrame, on: str) -> pd.DataFrame:
    """Return for each run, by its index, the run among `others` that it is compared with; all frames have the columns
    of :attr:`TableData.runs`. The other run has the same value in the column `on` and a backbone of the same name. If
    there are several, runs whose backbone has the same options come first, then those with equal labels on most axes,
    those with the same settings of training, then the first in the table. No rule depends on the seed, so all seeds of
    a row are compared with the same row."""
    pairs = runs.reset_index().merge(others, on=[on, "backbone"], suffixes=("_own", ""))
    axes = [name for name in runs if str(name).startswith("axis.") and f"{name}_own" in pairs]
    labels = sum((pairs[axis].astype(str) != pairs[f"{axis}_own"].astype(str) for axis in axes), start=0)
    options, training = (pairs[name] != pairs[f"{name}_own"] for name in ("options", "training"))
    pairs = pairs.assign(options=options, labels=labels, training=training)
    pairs = pairs.sort_values(["options", "labels", "training", "series", "panel", "run"])
    return pairs.drop_duplicates("index").set_index("index")


def joined_labels(frame: pd.DataFrame, axes: Sequence[str], keys: Iterable[Key] | None = None) -> pd.Categorical[Any]:
    """Return the labels on some axes as one text per line, ordered like `keys` (all possible ones), or else sorted."""
    lines = list(zip(*(frame[axis] for axis in axes), strict=True)) if axes else [()] * len(frame)
    if keys is None:
        keys = frame.sort_values([*axes])[[*axes]].itertuples(index=False, name=None) if axes else [()]
    texts = {key: " · ".join(map(full_label, axes, key)) for key in keys}
    return pd.Categorical([texts[key] for key in lines], list(dict.fromkeys(texts.values())), ordered=True)
