"""The tidy frame of a table's runs: all data of a report as DataFrames, in Parquet files of one folder.

The evaluate stage writes it from the artifacts of training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from pflcore.artifacts import read_table
from pflcore.settings import METRICS, USUAL, View
from pipeline.report.settings import settings_of
from pipeline.spec.metrics import PERCENT
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable

ALL = -1
"""In the column `client`: all clients of a run together."""
LAST_TEN, LAST = "last_ten", 10
"""The protocol for papers that name no round, the mean over a run's last measurements, and the number of these."""

_TEXT, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()
AS_JSON = ("diverged", "chosen", "noise")
_FACTS = {
    **dict.fromkeys(("device", "torch", "dataset_hash", "partition_hash", "code", "figure", "kept"), _TEXT),
    **dict.fromkeys(("parameters", "communicated_up", "communicated_down", "stored", "received", "server"), _INT),
    "macs": _INT,
    "epsilon": _FLOAT,
    "positions": _INT,
    **dict.fromkeys(AS_JSON, _TEXT),
}
_CLIENT, SCORES = {"run": _TEXT, "client": _INT}, {"accuracy": _FLOAT, "loss": _FLOAT}
POINT = {"round": _INT, **SCORES, "train_loss": _FLOAT}
SCHEMAS = {
    "runs": pa.schema({"run": _TEXT, "seed": _INT, "state": _TEXT, "settings": _TEXT, **_FACTS}),
    "values": pa.schema({**_CLIENT, "metric": _TEXT, "mean": _FLOAT, "std": _FLOAT, "n": _INT}),
    "rounds": pa.schema({**_CLIENT, **POINT}),
    "clients": pa.schema({**_CLIENT, "correct": _INT, "total": _INT, **SCORES}),
    "findings": pa.schema(
        {"run": _TEXT, "analysis": _TEXT, "client": _INT, "item": _TEXT, "index": _INT, "value": _FLOAT}
    ),
    "selections": pa.schema({"selection": _TEXT, "content": _TEXT}),
}
TIDY = ["client", "round", "population", "accuracy", "loss", "train_loss", "correct", "total"]
_RESERVED = {*TIDY, "run", "last_correct", "precision", *View._fields, *METRICS}  # axes with these names are renamed


@dataclass(frozen=True)
class Value:
    """A mean and its standard deviation, None if undefined, in percent or another unit of `pipeline.spec.metrics`. A
    run's value is over `n` measurements or clients; `printed` is the paper's text of a published quantity."""

    mean: float
    std: float | None = None
    n: int | None = field(default=None, compare=False)
    unit: str = field(default=PERCENT, compare=False)
    printed: str = field(default="", compare=False)


@dataclass(frozen=True)
class RunResult:
    """A run of a frame: settings, state, and facts (none if the run is missing). `by_client` has the values by metric,
    `curves` the accuracy in percent by measured round, both by client (or :data:`ALL`)."""

    id: str
    resolved: Run
    state: str
    facts: dict[str, Any]
    by_client: dict[int, dict[str, Value]]
    curves: dict[int, pd.Series[float]]

    @property
    def finished(self) -> bool:
        return self.state != "missing"

    @property
    def diverged(self) -> bool:
        return self.state == "diverged"

    @property
    def kept_since(self) -> str:
        """The day on which a run of the ledger was obtained; else ""."""
        return str(self.facts.get("kept") or "")

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings as text."""
        return settings_of(self.resolved)

    def values(self, client: int | None = None) -> dict[str, Value]:
        """Return the values of a client (None: of all) by metric; a missing or diverged run has no accuracies."""
        return self.by_client.get(ALL if client is None else client, {})

    def curve(self, client: int | None) -> pd.Series[float]:
        return self.curves.get(ALL if client is None else client, pd.Series(dtype=float))


@dataclass(frozen=True)
class Frame:
    """The tidy data of a table's runs. Accuracies are in percent.

    Attributes:
        runs: A row per run: state (``measured``, ``diverged`` or ``missing``), settings (the resolved run as JSON) and
            facts, among them kept (the day, if it is from the ledger) and bytes communicated per client and round.
        values: A row per run, client (:data:`ALL`, or one that the table shows) and metric (a protocol or a quantity's
            key): mean, std, and the n that these are over; no std if n is 1.
        rounds: The pooled test accuracy, test loss and mean train loss per run, client and measured round.
        clients: Test samples per run and client after the last round.
        findings: The numbers of analyses; client is -1 for a number of no client.
        selections: The tried and the chosen settings of each selection, as JSON.
    """

    runs: pd.DataFrame
    values: pd.DataFrame
    rounds: pd.DataFrame
    clients: pd.DataFrame
    findings: pd.DataFrame
    selections: pd.DataFrame

    @classmethod
    def from_tables(cls, tables: Mapping[str, pa.Table]) -> Frame:
        """Return the frame of these tables, one per attribute."""
        frames = {name: pd.DataFrame(rows.to_pandas()) for name, rows in tables.items() if name != "runs"}
        nullable = {pa.int64(): pd.Int64Dtype()}.get  # so that missing facts do not turn integers into floats
        return cls(runs=pd.DataFrame(tables["runs"].to_pandas(types_mapper=nullable)), **frames)

    @cached_property
    def run_results(self) -> dict[str, RunResult]:
        """The runs by id, sorted."""
        values = dict[str, dict[int, dict[str, Value]]]()
        for run, client, metric, mean, std, n in self.values.to_numpy().tolist():
            value = Value(mean, None if math.isnan(std) else std, n)
            values.setdefault(run, {}).setdefault(client, {})[metric] = value
        points = dict[str, dict[int, dict[int, float]]]()
        for run, client, round_, accuracy in self.rounds[[*_CLIENT, "round", "accuracy"]].to_numpy().tolist():
            points.setdefault(run, {}).setdefault(client, {})[round_] = accuracy
        runs = {}
        for row in self.runs.to_dict("records"):
            facts = {str(name): value for name, value in row.items() if not pd.isna(value)}
            run, _, state, settings = (facts.pop(name) for name in ("run", "seed", "state", "settings"))
            facts |= {name: json.loads(facts[name]) for name in AS_JSON if name in facts}
            if state == "missing":
                facts = {}
            curves = {client: pd.Series(curve) for client, curve in points.get(run, {}).items()}
            runs[run] = RunResult(run, Run(json.loads(settings)), state, facts, values.get(run, {}), curves)
        return runs


def read_frame(folder: Path) -> Frame:
    """Return the frame that `collect.write_frame` wrote. Raises :class:`UserError` if a file is missing or damaged."""
    names = [field.name for field in fields(Frame)]
    return Frame.from_tables({name: read_table(folder / f"{name}.parquet", f"frame.{name}/1")[0] for name in names})


def tidy_rounds(table: ResolvedTable, run: str, seed: int, rounds: pa.Table, facts: Mapping[str, Any]) -> pd.DataFrame:
    """Return a run's measurements, one row per place in the table, round, client, population and view."""
    frame = pd.DataFrame(rounds.to_pandas())
    frame["population"] = frame["population"].astype(str)
    frame["accuracy"] = frame["correct"] / frame["total"].where(frame["total"] > 0)
    if facts.get("kept"):  # the ledger has only the mean loss over all clients
        frame = frame.assign(loss=math.nan, train_loss=math.nan)
    columns = [*TIDY, "last_correct"] if facts.get("positions", 1) != 1 else [*TIDY]
    views = [name for name in View._fields if name in frame]
    frame = frame.astype(dict.fromkeys(views, str))
    columns += [name for name in views if frame[name].nunique() > 1]
    columns += [name for name in (*METRICS, "precision") if name in frame]
    frame, parts = frame.reindex(columns=columns), []
    for labels in run_labels(table, run):
        part = frame.copy()
        constants: dict[str, Any] = {f"{axis} (axis)" if axis in _RESERVED else axis: labels[axis] for axis in labels}
        constants.pop("seed", None)
        for i, (name, value) in enumerate({**constants, "run": run, "seed": seed}.items()):
            part.insert(i, name, value)
        parts.append(part)
    return pd.concat(parts)


def concat_runs(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate frames of :func:`tidy_rounds`. Missing columns of a view get the usual value (:data:`USUAL`)."""
    return pd.concat(parts, ignore_index=True).fillna(USUAL._asdict())


def run_labels(table: ResolvedTable, run: str) -> list[dict[str, str]]:
    """Return a run's label on each axis of settings, at each of its places in the table."""
    axes = [axis for axis in table.axes if axis not in (*table.clients, *table.quantities)]
    places = [tuple(cell.labels[axis] for axis in axes) for cell in table.cells if run in cell.runs]
    return [dict(zip(axes, place, strict=True)) for place in dict.fromkeys(places)]
