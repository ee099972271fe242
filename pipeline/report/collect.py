"""The evaluate stage: collect the artifacts of a table's runs into the frame of the table."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pflcore.artifacts import read_meta, read_table, write_table
from pflcore.data.assignment_files import SCHEMA as PARTITION_SCHEMA
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import Figures, curve, final_clients, rounds_trained, summarise, train_losses
from pflcore.settings import USUAL
from pipeline.ledger import Entry
from pipeline.report.frame import ALL, AS_JSON, LAST, LAST_TEN, POINT, SCHEMAS, TIDY, Frame, concat_runs, tidy_rounds
from pipeline.spec.catalog import fingerprint
from pipeline.spec.metrics import BACKBONE, Quantity
from pipeline.spec.run import Run, canonical_json
from pipeline.spec.table import ResolvedTable, read_runs
from pipeline.workspace import COUNTING, COUNTS, partition_path, run_path, selection_path

Row = dict[Any, Any]
Quantities = Mapping[str, Quantity]
"""The quantities that the cells of a table show, by their keys."""
Columns = Mapping[str, NDArray[Any]]
"""Equally long columns by name."""
_NO_FINDINGS = pd.DataFrame(columns=SCHEMAS["findings"].names[1:])


def write_frame(table: ResolvedTable, root: Path, folder: Path) -> None:
    """Write a Parquet file per attribute of the :class:`Frame` of a table's runs, and ``results.parquet``, their rows
    by :func:`tidy_rounds`. Raises :class:`UserError` if a record or an artifact in the workspace `root` is damaged."""
    runs = read_runs(table, root)
    for name, rows in _collect(table, runs, root, {}).items():
        write_table(folder / f"{name}.parquet", rows, f"frame.{name}/1", spec=table.spec)
    ids, parts = [] if table.counted else dict.fromkeys(run for cell in table.cells for run in cell.runs), []
    for id_ in ids:
        if (path := root / run_path(id_, "rounds.parquet")).is_file():
            parts.append(tidy_rounds(table, id_, runs[id_].seed, *read_table(path, "rounds/2")))
    frame = concat_runs(parts) if parts else pd.DataFrame(columns=["run", "seed", *TIDY])
    write_table(folder / "results.parquet", pa.Table.from_pandas(frame, preserve_index=False), "results/1")


def collect_frame(
    table: ResolvedTable, runs: Mapping[str, Run], root: Path, entries: Mapping[str, Entry | None] | None = None
) -> Frame:
    """Return the frame of a table's runs from their artifacts in the workspace `root`. `entries` replace those of runs
    by id: an entry of the ledger, or None for a run that counts as missing. Raises :class:`UserError` if an artifact is
    damaged."""
    return Frame.from_tables(_collect(table, runs, root, entries or {}))


def _collect(
    table: ResolvedTable, runs: Mapping[str, Run], root: Path, entries: Mapping[str, Entry | None]
) -> dict[str, pa.Table]:
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    quantities = {cell.quantity.key: cell.quantity for cell in table.cells if cell.quantity}
    for id_ in sorted(table.runs):
        for name, run_rows in _run_rows(table, quantities, id_, runs[id_], root, entries).items():
            rows[name] += run_rows
    for name in sorted(set(table.tuned.values())):
        if (path := root / selection_path(name)).is_file():
            rows["selections"].append({"selection": name, "content": path.read_text(encoding="utf-8")})
    return {name: pa.Table.from_pylist(rows[name], schema=schema) for name, schema in SCHEMAS.items()}


def _run_rows(
    table: ResolvedTable, quantities: Quantities, id_: str, run: Run, root: Path, entries: Mapping[str, Entry | None]
) -> dict[str, list[Row]]:
    """Return the rows of a run for each attribute of :class:`Frame`."""
    path, measured, facts = root / run_path(id_, "rounds.parquet"), None, dict[str, Any]()
    findings = _NO_FINDINGS
    if id_ not in entries and path.is_file() and not table.counted:
        measured, facts = read_table(path, "rounds/2")
        findings = _read_findings(table, root / run_path(id_, "analysis.parquet"))
    elif (entry := entries.get(id_)) and not table.counted:
        facts = {**entry.facts, "kept": entry.obtained}
        measured = entry.rounds().replace_schema_metadata({b"pfl": json.dumps(facts).encode()})  # read by protocols
    if measured is None:
        state = "missing"
    elif facts.get("diverged") is None:
        state = "measured"
    else:
        state = "diverged"
    row: Row = {**facts, "noise": _noise(run, root) if "noise" in table.drawn else None}
    row |= {name: json.dumps(row[name]) for name in AS_JSON if row.get(name) is not None}
    row |= {"run": id_, "seed": run.seed, "state": state, "settings": json.dumps(run.record, ensure_ascii=False)}
    rows: dict[str, list[Row]] = {"runs": [row], "values": [], "rounds": [], "clients": []}
    rows["findings"] = _records(findings, run=id_) if len(findings) else []
    counts = _count(quantities, run, root)
    single = {cell.client for cell in table.cells if cell.client is not None and id_ in cell.runs}
    for client in [ALL, *sorted(single)]:
        constants = {"run": id_, "client": client}
        points, figures = _measure_client(table, quantities, run, measured, state, client)
        if client == ALL or len(points["round"]):
            of_client = (client == ALL) | (findings["client"] == client)
            mixing = findings[(findings["analysis"] == "mixing") & of_client]
            values = _quantity_values(quantities, run, counts, facts, points, mixing)
            figures |= {key: {"mean": value, "std": 0.0, "n": 1} for key, value in values.items()}
        rows["rounds"] += _records(points, **constants)
        rows["values"] += [
            {**constants, **figure, "metric": metric, "std": figure["std"] if figure["n"] > 1 else None}
            for metric, figure in figures.items()
            if math.isfinite(figure["mean"])
        ]
    if measured is not None and state == "measured":
        clients = final_clients(measured)
        last = {name: clients[name].to_numpy() for name in clients.column_names}
        rows["clients"] = _records({**last, "accuracy": 100.0 * last["accuracy"]}, run=id_)
    return rows


def _records(columns: Columns | pd.DataFrame, **constants: Any) -> list[Row]:
    """Return the rows of columns, with constants in each row. pandas does this slowly."""
    rows = zip(*(values.tolist() for _, values in columns.items()), strict=True)
    return [constants | dict(zip(columns, row, strict=True)) for row in rows]


def _read_findings(table: ResolvedTable, path: Path) -> pd.DataFrame:
    """Return the findings of a run's analyses; no rows without a file, or if the table shows none. Raises
    :class:`UserError` if the file is damaged."""
    needed = table.analyses.keys() & set(table.drawn) or any(cell.quantity for cell in table.cells)
    if not needed or not path.is_file():
        return _NO_FINDINGS
    rows, _ = read_table(path, "analysis/1")
    return pd.DataFrame(rows.select([*_NO_FINDINGS]).to_pandas())


def _measure_client(
    table: ResolvedTable, quantities: Quantities, run: Run, measured: pa.Table | None, state: str, client: int
) -> tuple[Columns, Figures]:
    """Return the curve of a client (or :data:`ALL`) and its figures by protocol. A figure of a further view has the
    name :attr:`Quantity.key`. Both are empty if nothing is measured; a diverged run has a curve but no figures."""
    figures = Figures()
    if measured is None:
        return dict.fromkeys(POINT, np.empty(0)), figures
    rows = measured
    if client != ALL:  # keep the validation samples of all clients, which choose rounds
        is_validation = pc.equal(measured["population"].cast(pa.string()), "validation")
        rows = measured.filter(pc.or_(pc.equal(measured["client"], client), is_validation))
    points = dict(zip(POINT, (*curve(rows), train_losses(rows)), strict=True))
    if state == "measured" and len(points["round"]):
        metrics = [quantity for quantity in quantities.values() if not quantity.definition]
        for view in dict.fromkeys((USUAL, *(quantity.view for quantity in metrics))):
            by_protocol = summarise(rows, run.evaluation, rounds_trained(measured, run.training), view)
            # Only tables that name this protocol need it.
            if by_protocol and LAST_TEN in (table.metric, *(quantity.metric for quantity in metrics)):
                last = curve(rows, view=view)[1][-LAST:]
                by_protocol[LAST_TEN] = {"mean": float(last.mean()), "std": float(last.std()), "n": len(last)}
            figures |= {f"{protocol} {view.words}".rstrip(): figure for protocol, figure in by_protocol.items()}
    return points, figures


def _noise(run: Run, root: Path) -> list[float] | None:
    """Return the standard deviation of each client's noise; None if the partition has no noise or is missing."""
    path = root / partition_path(run.federation_id)
    noise = read_meta(path, PARTITION_SCHEMA).get("noise") if path.is_file() else None
    return None if noise is None else [float(std) for std in noise["std"]]


def _quantity_values(
    quantities: Quantities, run: Run, counts: dict[str, float], facts: Row, points: Columns, mixing: pd.DataFrame
) -> dict[str, float]:
    """Return a run's value of each quantity that has one, by the quantity's key: counted before training, a fact of the
    run, or from points of its curve or rows of the analysis ``mixing``."""
    values: dict[str, float | None] = {}
    for key, quantity in quantities.items():
        match quantity.definition and quantity.definition.source:
            case "plan":
                values |= {key: counts.get(key), BACKBONE: counts.get(BACKBONE)}
            case "run":
                values[key] = facts.get({"bytes_up": "communicated_up", "bytes_down": "communicated_down"}[key])
            case "curve":
                reached = points["round"][points["accuracy"] >= (quantity.accuracy or 0.0)].tolist()
                values[key] = reached[0] if facts and reached else None
            case "mixing":
                values[key] = _weight(mixing, quantity, run) if len(mixing) else None
    return {key: float(value) for key, value in values.items() if value is not None}


def _count(quantities: Quantities, run: Run, root: Path) -> dict[str, float]:
    """Return a run's counts by name; empty if the table shows no counted quantity. A file caches the counts until
    pflcore changes."""
    if not any(quantity.definition and quantity.definition.source == "plan" for quantity in quantities.values()):
        return {}
    metrics = sorted({quantity.metric or "" for quantity in quantities.values()})
    flops = [metric for metric in metrics if metric.endswith("flops")]
    parts = {name: run.record[name] for name in ("dataset", "clients", "backbone", "method", "training")}
    key = hashlib.sha256(f"{fingerprint()}{flops}{canonical_json(parts)}".encode()).hexdigest()[:16]
    path = root / COUNTS / f"{key}.json"
    if not path.is_file():
        write_text(path, json.dumps(import_module(COUNTING).count_run(run, flops=flops)))
    return dict(json.loads(path.read_bytes()))


def _weight(mixing: pd.DataFrame, quantity: Quantity, run: Run) -> float | None:
    """Return the mean weight of a kind of attention, at a position of the network or over all positions."""
    names = mixing["item"].str.rpartition(".")
    positions = names[0].unique()
    if quantity.position is not None:
        if quantity.position > len(positions):
            message = f"{len(positions)} positions, so none has the number {quantity.position}"
            raise UserError(f"{run.id}: attention_weight: {message}")
        positions = positions[quantity.position - 1 : quantity.position]
    weights = mixing["value"][(names[2] == quantity.kind) & names[0].isin(positions)].tolist()
    return statistics.fmean(weights) if weights else None
