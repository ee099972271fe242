"""Numbers of runs that are no accuracies: counted from what a run is, told by it, or found in its measurements."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pandas as pd

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.json_text import parse_json
from pflcore.protocols import curve
from pipeline.report.table.findings import Findings, read_findings
from pipeline.report.table.measured import Measured, Value
from pipeline.spec.catalog import fingerprint
from pipeline.spec.metrics import BACKBONE, Quantity
from pipeline.spec.run import Run, canonical_json
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import COUNTING, COUNTS


def with_quantities(table: ResolvedTable, runs: dict[str, Measured], root: Path) -> dict[str, Measured]:
    """The runs of a table with the values of all quantities that its cells show, under their keys.

    What is counted is remembered in the workspace `root`, for as long as pflcore is the same.

    Raises:
        UserError: An artifact is damaged, or a method does not go with its backbone.
    """
    wanted = list({cell.quantity.key: cell.quantity for cell in table.cells if cell.quantity}.values())
    if not wanted:
        return runs
    findings = read_findings(runs.values()).get("mixing", {})
    return {name: _with(run, wanted, findings.get(name), root) for name, run in runs.items()}


def _with(run: Measured, wanted: list[Quantity], mixing: Findings | None, root: Path) -> Measured:
    flops = any((quantity.metric or "").endswith("flops") for quantity in wanted)

    def values(client: int | None, curve_: Callable[[], pd.Series[float]]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for quantity in wanted:
            assert quantity.known
            match quantity.known.source:
                case "plan":
                    numbers = _counted(run.resolved, root, flops)
                    names = (quantity.metric or "", BACKBONE)
                    found |= {name: Value(numbers[name], unit=quantity.known.unit) for name in names if name in numbers}
                    continue
                case "run":
                    number = run.facts.get(_FACTS[quantity.metric or ""])
                case "curve":
                    number = _rounds_to(curve_(), quantity) if run.facts else None
                case "mixing":
                    number = _weight(mixing, quantity, client) if mixing else None
            if number is not None:
                found[quantity.key] = Value(float(number), unit=quantity.known.unit)
        return found

    own = values(None, lambda: _curve(run))
    clients = {
        client: replace(one, values=one.values | values(client, lambda one=one: one.curve))  # type: ignore[misc]
        for client, one in run.clients.items()
    }
    return replace(run, values=run.values | own, clients=clients)


def _counted(run: Run, root: Path, flops: bool) -> dict[str, float]:
    """What is counted of a run by name, from the file that remembers it or from its model."""
    parts = {name: run.record[name] for name in ("dataset", "backbone", "method", "training")}
    key = hashlib.sha256(f"{fingerprint()}{flops}{canonical_json(parts)}".encode()).hexdigest()[:16]
    path = root / COUNTS / f"{key}.json"
    try:
        known = {str(name): float(count) for name, count in parse_json(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        known = import_module(COUNTING).count_run(run, flops=flops)
        write_text(path, json.dumps(known))
    return known


def _curve(run: Measured) -> pd.Series[float]:
    rounds, accuracy, _ = curve(read_table(run.rounds_path, "rounds/2")[0])
    return pd.Series(accuracy, index=rounds)


def _rounds_to(accuracies: pd.Series[float], quantity: Quantity) -> float | None:
    reached = accuracies.index[accuracies >= (quantity.accuracy or 0.0)]
    return float(reached[0]) if len(reached) else None


def _weight(mixing: Findings, quantity: Quantity, client: int | None) -> float | None:
    rows = mixing.rows if client is None else mixing.rows[mixing.rows["client"] == client]
    names = [str(item).rpartition(".") for item in rows["item"]]
    positions = list(dict.fromkeys(position for position, _, _ in names))
    if quantity.position is not None and quantity.position > len(positions):
        raise UserError(
            f"{mixing.path}: attention_weight: {len(positions)} positions, so none has the number {quantity.position}"
        )
    at = positions if quantity.position is None else [positions[quantity.position - 1]]
    weights = [
        float(weight)
        for (position, _, kind), weight in zip(names, rows["value"], strict=True)
        if kind == quantity.kind and position in at
    ]
    return statistics.fmean(weights) if weights else None


_FACTS = {"bytes_up": "communicated_up", "bytes_down": "communicated_down"}
"""Metric → the fact of a run that is its number."""
