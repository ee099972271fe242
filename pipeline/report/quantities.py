"""Numbers of runs that are no accuracies: counted from what a run is, told by it, or found in its measurements."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.spec.catalog import fingerprint
from pipeline.spec.metrics import BACKBONE, Quantity
from pipeline.spec.run import Run, canonical_json
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import COUNTING, COUNTS


def quantities_of(
    table: ResolvedTable,
    run: Run,
    root: Path,
    facts: Mapping[str, Any],
    accuracy: pd.Series[float],
    mixing: pd.DataFrame | None,
) -> dict[str, float]:
    """Return a run's value of every quantity that the cells of a table show, under the quantity's key.

    What is counted is remembered in the workspace `root`, for as long as pflcore is the same.

    Args:
        facts: Those of the run's artifact; empty while there is none.
        accuracy: In percent, indexed by round.
        mixing: Rows of the analysis ``mixing``, those of one client or all; None where there are none.

    Raises:
        UserError: A position is asked for that the model does not have, or a method does not go with its backbone.
    """
    wanted = {cell.quantity.key: cell.quantity for cell in table.cells if cell.quantity}
    flops = any((quantity.metric or "").endswith("flops") for quantity in wanted.values())
    values: dict[str, float | None] = {}
    for key, quantity in wanted.items():
        assert quantity.known
        match quantity.known.source:
            case "plan":
                counts = _count(run, root, flops)
                values |= {key: counts.get(key), BACKBONE: counts.get(BACKBONE)}
            case "run":
                values[key] = facts.get({"bytes_up": "communicated_up", "bytes_down": "communicated_down"}[key])
            case "curve":
                reached = accuracy.index[accuracy >= (quantity.accuracy or 0.0)]
                values[key] = reached[0] if facts and len(reached) else None
            case "mixing":
                values[key] = None if mixing is None else _weight(mixing, quantity, run)
    return {key: float(value) for key, value in values.items() if value is not None}


def _count(run: Run, root: Path, flops: bool) -> dict[str, float]:
    """Return what is counted of a run by name, from the file that remembers it or from its model."""
    parts = {name: run.record[name] for name in ("dataset", "backbone", "method", "training")}
    key = hashlib.sha256(f"{fingerprint()}{flops}{canonical_json(parts)}".encode()).hexdigest()[:16]
    path = root / COUNTS / f"{key}.json"
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):  # not counted yet, or cut off
        known: dict[str, float] = import_module(COUNTING).count_run(run, flops=flops)
        write_text(path, json.dumps(known))
        return known


def _weight(mixing: pd.DataFrame, quantity: Quantity, run: Run) -> float | None:
    """Return the mean weight of a kind of attention at one position of the network, or over all of them."""
    names = [str(item).rpartition(".") for item in mixing["item"]]
    at = list(dict.fromkeys(position for position, _, _ in names))
    if quantity.position is not None:
        if quantity.position > len(at):
            message = f"{len(at)} positions, so none has the number {quantity.position}"
            raise UserError(f"{run.id}: attention_weight: {message}")
        at = [at[quantity.position - 1]]
    values = zip(names, mixing["value"], strict=True)
    weights = [float(weight) for (position, _, kind), weight in values if kind == quantity.kind and position in at]
    return statistics.fmean(weights) if weights else None
