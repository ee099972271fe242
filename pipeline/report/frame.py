"""The tidy frame of a table's runs: all that a report needs of them, as DataFrames, in Parquet files of one folder.

The evaluate stage writes it from what training left, and everything that a report shows is a query over it.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pflcore.artifacts import read_meta, read_table, write_table
from pflcore.data.assignment_files import SCHEMA as PARTITION_SCHEMA
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import Figures, curve, final_clients, rounds_trained, summarise
from pipeline.ledger import Entry
from pipeline.spec.catalog import fingerprint
from pipeline.spec.metrics import BACKBONE, PERCENT, Quantity
from pipeline.spec.run import Run, canonical_json
from pipeline.spec.table import ResolvedTable, read_runs
from pipeline.workspace import COUNTING, COUNTS, partition_path, run_path, selection_path

ALL = -1
"""In the column `client`: all clients of a run together."""
LAST_TEN, LAST = "last_ten", 10
"""The protocol of papers that name no round: the mean over so many measurements at the end of a run."""

_TEXT, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()
_AS_JSON = ("diverged", "chosen", "noise")
_FACTS = {
    **dict.fromkeys(("device", "torch", "dataset_hash", "partition_hash", "code", "figure", "kept"), _TEXT),
    **dict.fromkeys(("parameters", "communicated_up", "communicated_down", "stored", "received", "server"), _INT),
    "macs": _INT,
    "positions": _INT,
    **dict.fromkeys(_AS_JSON, _TEXT),
}
_FINDING = {"analysis": _TEXT, "client": _INT, "item": _TEXT, "index": _INT, "value": _FLOAT}
_CLIENT, _SCORES = {"run": _TEXT, "client": _INT}, {"accuracy": _FLOAT, "loss": _FLOAT}
_SCHEMAS = {
    "runs": pa.schema({"run": _TEXT, "seed": _INT, "state": _TEXT, "settings": _TEXT, **_FACTS}),
    "values": pa.schema({**_CLIENT, "metric": _TEXT, "mean": _FLOAT, "std": _FLOAT, "n": _INT}),
    "rounds": pa.schema({**_CLIENT, "round": _INT, **_SCORES}),
    "clients": pa.schema({**_CLIENT, "correct": _INT, "total": _INT, **_SCORES}),
    "findings": pa.schema({"run": _TEXT, **_FINDING}),
    "selections": pa.schema({"selection": _TEXT, "content": _TEXT}),
}
_TIDY = ["client", "round", "population", "accuracy", "loss", "correct", "total"]
Row = dict[Any, Any]


@dataclass(frozen=True)
class Value:
    """A mean and, where one is defined, a standard deviation, in percent or another unit of `pipeline.spec.metrics`; of
    a run over `n` measurements or clients, of a published quantity as it is `printed`."""

    mean: float
    std: float | None = None
    n: int | None = field(default=None, compare=False)
    unit: str = field(default=PERCENT, compare=False)
    printed: str = field(default="", compare=False)


@dataclass(frozen=True)
class Measured:
    """One run of a frame: what was asked for, its state and facts, and by client (or :data:`ALL`) its values by metric
    and its curve, the accuracy in percent by measured round. A run that is missing has no facts."""

    id: str
    resolved: Run
    state: str
    facts: dict[str, Any]
    by_client: dict[int, dict[str, Value]]
    curves: dict[int, pd.Series[float]]

    @property
    def made(self) -> bool:
        return self.state != "missing"

    @property
    def diverged(self) -> bool:
        return self.state == "diverged"

    @property
    def kept(self) -> str:
        """The day on which it was obtained, if it comes from the ledger; else ""."""
        return str(self.facts.get("kept") or "")

    @property
    def values(self) -> dict[str, Value]:
        return self.values_of(None)

    def values_of(self, client: int | None) -> dict[str, Value]:
        """Return values by metric, of one client or of all; no accuracy where it is missing or diverged."""
        return self.by_client.get(ALL if client is None else client, {})

    def curve(self, client: int | None) -> pd.Series[float]:
        return self.curves.get(ALL if client is None else client, pd.Series(dtype=float))


@dataclass(frozen=True)
class Frame:
    """What there is of a table's runs. Accuracies are in percent.

    Attributes:
        runs: A row per run: state (``measured``, ``diverged`` or ``missing``), settings (the resolved run as JSON) and
            facts, among them kept (the day, if it is from the ledger) and bytes communicated per client and round.
        values: By run, client (:data:`ALL`, or one that the table shows) and metric (a protocol or a quantity's key)
            the mean, std, and the n that these are taken over; no std where n is 1.
        rounds: The pooled test accuracy and loss per run, client and measured round.
        clients: Test samples per run and client after the last round.
        findings: What analyses found; client -1 for none.
        selections: What was tried and chosen, as JSON, per selection.
    """

    runs: pd.DataFrame
    values: pd.DataFrame
    rounds: pd.DataFrame
    clients: pd.DataFrame
    findings: pd.DataFrame
    selections: pd.DataFrame

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """The runs by id, sorted."""
        values = dict[str, dict[int, dict[str, Value]]]()
        for run, client, metric, mean, std, n in self.values.to_numpy().tolist():
            value = Value(mean, None if math.isnan(std) else std, n)
            values.setdefault(run, {}).setdefault(client, {})[metric] = value
        curves: dict[str, dict[int, pd.Series[float]]] = {}
        by_client: Iterable[Any] = self.rounds.groupby(["run", "client"], sort=False)
        for (run, client), rows in by_client:
            curves.setdefault(run, {})[client] = rows.set_index("round")["accuracy"].rename_axis(None).rename(None)
        runs = {}
        for row in self.runs.to_dict("records"):
            facts = {str(name): value for name, value in row.items() if not pd.isna(value)}
            run, _, state, settings = (facts.pop(name) for name in ("run", "seed", "state", "settings"))
            facts |= {name: json.loads(facts[name]) for name in _AS_JSON if name in facts}
            known = {} if state == "missing" else facts
            runs[run] = Measured(run, Run(json.loads(settings)), state, known, values.get(run, {}), curves.get(run, {}))
        return runs


def write_frame(table: ResolvedTable, root: Path, folder: Path) -> None:
    """Write the frame of a table's runs into a folder, a Parquet file per attribute of :class:`Frame`, and what
    :func:`tidy` makes of them as ``results.parquet``. Raises :class:`UserError`: a record or an artifact, which lie in
    the workspace `root`, is damaged."""
    runs = read_runs(table, root)
    for name, rows in _collect(table, runs, root, {}).items():
        write_table(folder / f"{name}.parquet", rows, f"frame.{name}/1", spec=table.spec)
    ids = [] if table.counted else dict.fromkeys(run for cell in table.cells for run in cell.runs)
    there = [(id_, path) for id_ in ids if (path := root / run_path(id_, "rounds.parquet")).is_file()]
    parts = [tidy(table, id_, runs[id_].seed, *read_table(path, "rounds/2")) for id_, path in there]
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run", "seed", *_TIDY])
    write_table(folder / "results.parquet", pa.Table.from_pandas(frame, preserve_index=False), "results/1")


def read_frame(folder: Path) -> Frame:
    """Read what :func:`write_frame` wrote. Raises :class:`UserError` if a file is missing or damaged."""
    names = [field.name for field in fields(Frame)]
    return _frame({name: read_table(folder / f"{name}.parquet", f"frame.{name}/1")[0] for name in names})


def collect_frame(
    table: ResolvedTable, runs: Mapping[str, Run], root: Path, kept: Mapping[str, Entry] | None = None
) -> Frame:
    """Return the frame of a table's runs as far as they have been made in the workspace `root`.

    `kept` has by run id what stands for artifacts that are not there. Raises :class:`UserError`: one is damaged.
    """
    return _frame(_collect(table, runs, root, kept or {}))


def tidy(table: ResolvedTable, run: str, seed: int, rounds: pa.Table, facts: Mapping[str, Any]) -> pd.DataFrame:
    """Return what was measured of a run, a row per place in the table, round, client and population."""
    frame = pd.DataFrame(rounds.to_pandas())
    frame["population"] = frame["population"].astype(str)
    frame["accuracy"] = frame["correct"] / frame["total"].where(frame["total"] > 0)
    if facts.get("kept"):  # which has the mean over all clients in the place of theirs
        frame["loss"] = math.nan
    columns = [*_TIDY, *(["last_correct"] if facts.get("positions", 1) != 1 else [])]
    about: dict[str, Any]
    frame, parts = frame[columns + (["precision"] if "precision" in frame else [])], []
    for labels in places_of(table, run):
        place = frame.copy()
        about = {name: label for name, label in labels.items() if name != "seed"} | {"run": run, "seed": seed}
        for at, (name, value) in enumerate(about.items()):
            place.insert(at, name if name not in frame else f"{name} (axis)", value)
        parts.append(place)
    return pd.concat(parts)


def places_of(table: ResolvedTable, run: str) -> list[dict[str, str]]:
    """Return a run's label on each axis of settings, at each of its places in the table."""
    axes = [axis for axis in table.axes if axis not in (*table.clients, *table.quantities)]
    places = [tuple(cell.labels[axis] for axis in axes) for cell in table.cells if run in cell.runs]
    return [dict(zip(axes, place, strict=True)) for place in dict.fromkeys(places)]


def _frame(tables: Mapping[str, pa.Table]) -> Frame:
    frames = {name: pd.DataFrame(rows.to_pandas()) for name, rows in tables.items() if name != "runs"}
    runs = pd.DataFrame(tables["runs"].to_pandas(types_mapper=_nullable))
    return Frame(runs=runs, **frames)


def _nullable(kind: pa.DataType) -> pd.Int64Dtype | None:
    """Return the type of a column in which whole numbers stay what they are, though some facts of runs are missing."""
    return pd.Int64Dtype() if kind == pa.int64() else None


def _collect(
    table: ResolvedTable, runs: Mapping[str, Run], root: Path, kept: Mapping[str, Entry]
) -> dict[str, pa.Table]:
    rows: dict[str, list[Row]] = {name: [] for name in _SCHEMAS}
    for id_ in sorted(table.runs):
        for name, own in _of_run(table, id_, runs[id_], root, kept.get(id_)).items():
            rows[name] += own
    for name in sorted(set(table.tuned.values())):
        if (path := root / selection_path(name)).is_file():
            rows["selections"].append({"selection": name, "content": path.read_text(encoding="utf-8")})
    return {name: pa.Table.from_pylist(rows[name], schema=schema) for name, schema in _SCHEMAS.items()}


def _of_run(table: ResolvedTable, id_: str, run: Run, root: Path, kept: Entry | None) -> dict[str, list[Row]]:
    """Return the rows that are about one run."""
    path, measured, facts = root / run_path(id_, "rounds.parquet"), None, dict[str, Any]()
    findings = pd.DataFrame(columns=[*_FINDING])
    if path.is_file() and not table.counted:
        measured, facts = read_table(path, "rounds/2")
        findings = _read_findings(table, root / run_path(id_, "analysis.parquet"))
    elif kept and not table.counted:
        facts = {**kept.facts, "kept": kept.obtained}
        measured = kept.rounds().replace_schema_metadata({b"pfl": json.dumps(facts).encode()})  # for protocols
    if measured is None:
        state = "missing"
    elif facts.get("diverged") is None:
        state = "measured"
    else:
        state = "diverged"
    about: Row = {**facts, "noise": _noise(run, root) if "noise" in table.drawn else None}
    about |= {name: json.dumps(about[name]) for name in _AS_JSON if about.get(name) is not None}
    about |= {"run": id_, "seed": run.seed, "state": state, "settings": json.dumps(run.record, ensure_ascii=False)}
    rows: dict[str, list[Row]] = {"runs": [about], "values": [], "rounds": [], "clients": []}
    rows["findings"] = findings.assign(run=id_).to_dict("records")
    single = {cell.client for cell in table.cells if cell.client is not None and id_ in cell.runs}
    for client in [ALL, *sorted(single)]:
        at = {"run": id_, "client": client}
        points, figures = _of_client(table, run, measured, state, client)
        if client == ALL or len(points):
            mixing = findings[(findings["analysis"] == "mixing") & ((client == ALL) | (findings["client"] == client))]
            counted = _quantities(table, run, root, facts, points, mixing)
            figures |= {key: {"mean": value, "std": 0.0, "n": 1} for key, value in counted.items()}
        rows["rounds"] += [at | point for point in points.to_dict("records")]
        rows["values"] += [
            {**at, **figure, "metric": metric, "std": figure["std"] if figure["n"] > 1 else None}
            for metric, figure in figures.items()
            if math.isfinite(figure["mean"])
        ]
    if measured is not None and state == "measured":
        clients = final_clients(measured).to_pandas()
        rows["clients"] = clients.assign(run=id_, accuracy=100.0 * clients["accuracy"]).to_dict("records")
    return rows


def _read_findings(table: ResolvedTable, path: Path) -> pd.DataFrame:
    """Return what analyses found of a run, as far as the table shows any of it. Raises :class:`UserError`: the file is
    damaged."""
    shown = table.analyses.keys() & set(table.drawn) or any(cell.quantity for cell in table.cells)
    if not shown or not path.is_file():
        return pd.DataFrame(columns=[*_FINDING])
    rows, _ = read_table(path, "analysis/1")
    if not set(_FINDING) <= set(rows.column_names):
        raise UserError(f"{path}: expected the columns {', '.join(_FINDING)}; delete it and run `dvc repro`")
    return pd.DataFrame(rows.select([*_FINDING]).to_pandas())


def _of_client(
    table: ResolvedTable, run: Run, measured: pa.Table | None, state: str, client: int
) -> tuple[pd.DataFrame, Figures]:
    """Return the curve of a client (or :data:`ALL`) and its figures by protocol; both are empty where nothing is
    measured, and a run that diverged has no figures."""
    points, figures = pd.DataFrame(columns=["round", *_SCORES]), Figures()
    if measured is None:
        return points, figures
    own = measured
    if client != ALL:  # and the validation samples of all, by which rounds are chosen
        held_back = pc.equal(measured["population"].cast(pa.string()), "validation")
        own = measured.filter(pc.or_(pc.equal(measured["client"], client), held_back))
    points = pd.DataFrame(dict(zip(points.columns, curve(own), strict=True)))
    if state == "measured" and len(points):
        figures = summarise(own, run.evaluation, rounds_trained(measured, run.training))
        last = points["accuracy"].to_numpy()[-LAST:]
        if table.metric == LAST_TEN:  # no other table needs it
            figures[LAST_TEN] = {"mean": float(last.mean()), "std": float(last.std()), "n": len(last)}
    return points, figures


def _noise(run: Run, root: Path) -> list[float] | None:
    """Return the standard deviation of the noise of each client; None where the partition has none, or is not here."""
    path = root / partition_path(run.federation_id)
    noise = read_meta(path, PARTITION_SCHEMA).get("noise") if path.is_file() else None
    return None if noise is None else [float(std) for std in noise["std"]]


def _quantities(
    table: ResolvedTable, run: Run, root: Path, facts: Mapping[str, Any], points: pd.DataFrame, mixing: pd.DataFrame
) -> dict[str, float]:
    """Return a run's value of every quantity that the cells of a table show, under its key: counted before it is
    trained, one of its facts, or found in points of its curve or rows of the analysis ``mixing``."""
    wanted = {cell.quantity.key: cell.quantity for cell in table.cells if cell.quantity}
    flops = any((quantity.metric or "").endswith("flops") for quantity in wanted.values())
    values: dict[str, float | None] = {}
    for key, quantity in wanted.items():
        match quantity.known and quantity.known.source:
            case "plan":
                counts = _count(run, root, flops)
                values |= {key: counts.get(key), BACKBONE: counts.get(BACKBONE)}
            case "run":
                values[key] = facts.get({"bytes_up": "communicated_up", "bytes_down": "communicated_down"}[key])
            case "curve":
                reached = points["round"][points["accuracy"] >= (quantity.accuracy or 0.0)].tolist()
                values[key] = reached[0] if facts and reached else None
            case "mixing":
                values[key] = _weight(mixing, quantity, run) if len(mixing) else None
    return {key: float(value) for key, value in values.items() if value is not None}


def _count(run: Run, root: Path, flops: bool) -> dict[str, float]:
    """Return what is counted of a run by name, from the file that remembers it as long as pflcore is the same."""
    parts = {name: run.record[name] for name in ("dataset", "backbone", "method", "training")}
    key = hashlib.sha256(f"{fingerprint()}{flops}{canonical_json(parts)}".encode()).hexdigest()[:16]
    path = root / COUNTS / f"{key}.json"
    if not path.is_file():
        write_text(path, json.dumps(import_module(COUNTING).count_run(run, flops=flops)))
    return dict(json.loads(path.read_bytes()))


def _weight(mixing: pd.DataFrame, quantity: Quantity, run: Run) -> float | None:
    """Return the mean weight of a kind of attention at one position of the network, or over all of them."""
    names = mixing["item"].str.rpartition(".")
    at = list(dict.fromkeys(names[0]))
    if quantity.position is not None:
        if quantity.position > len(at):
            message = f"{len(at)} positions, so none has the number {quantity.position}"
            raise UserError(f"{run.id}: attention_weight: {message}")
        at = [at[quantity.position - 1]]
    weights = mixing["value"][(names[2] == quantity.kind) & names[0].isin(at)].tolist()
    return statistics.fmean(weights) if weights else None
