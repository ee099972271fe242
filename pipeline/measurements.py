"""Conversion of a ``rounds/2`` table to plain data and back: per round, how many samples each client predicted right.

Tables compute all their numbers from counts, so counts are kept as they were measured. Metrics and the rows of further
views are kept too. The losses of single clients are not kept, only the mean test and train loss of each round.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pflcore.errors import UserError
from pflcore.protocols import curve, train_losses
from pflcore.settings import METRICS, USUAL

TRAIN_LOSS = "train_loss"


def from_table(rounds: pa.Table, positions: int) -> dict[str, Any]:
    """Return the counts of a ``rounds/2`` table on test and validation samples, and which clients are novel or attack.

    Args:
        positions: Predictions per sample. If it is not 1, the counts at the last position are kept too.

    Raises:
        UserError: Not all clients were measured in every round on the same samples.
    """
    clients = np.unique(rounds["client"].to_numpy())
    if not len(clients):
        return {}
    is_usual = np.ones(len(rounds), bool)
    for name, value in USUAL._asdict().items():
        if name in rounds.column_names:
            is_usual &= pc.equal(rounds[name].cast(pa.string()), value).to_numpy()
    further, rounds = rounds.filter(pa.array(~is_usual)), rounds.filter(pa.array(is_usual))
    is_validation = pc.equal(rounds["population"].cast(pa.string()), "validation")
    test_rows = rounds.filter(pc.invert(is_validation))
    populations = np.array(test_rows["population"].to_pylist()[: len(clients)])
    novel, attackers = (clients[populations == population] for population in ("novel", "attacker"))
    result = {"novel": novel.tolist(), "test": _counts(test_rows, "test", clients, positions)}
    if len(attackers):
        result["attacker"] = attackers.tolist()
    if np.isfinite(losses := train_losses(test_rows)).any():
        result["test"][TRAIN_LOSS] = _round_floats(losses.tolist())
    if is_validation.to_numpy().any():
        validated = np.setdiff1d(clients, [*novel, *attackers])
        result["validation"] = _counts(rounds.filter(is_validation), "validation", validated, positions)
    if metrics := [name for name in METRICS if name in rounds.column_names]:
        result["metrics"] = _to_lists(rounds.select(metrics))
    if len(further):
        result["views"] = _to_lists(further.select([name for name in further.column_names if name != TRAIN_LOSS]))
    return result


def _to_lists(columns: pa.Table) -> dict[str, list[Any]]:
    """Return columns as lists, with :func:`_round_floats` values."""
    return {name: _round_floats(values) for name, values in columns.to_pydict().items()}


def _round_floats(values: list[Any]) -> list[Any]:
    """Return values with floats rounded to seven digits, and None for NaN."""
    exact = [None if isinstance(value, float) and math.isnan(value) else value for value in values]
    return [float(f"{value:.7g}") if isinstance(value, float) else value for value in exact]


def _counts(rows: pa.Table, population: str, clients: NDArray[np.integer], positions: int) -> dict[str, Any]:
    try:
        columns = ("client", "correct", "last_correct", "total")
        matrix = {name: rows[name].to_numpy().reshape(-1, len(clients)) for name in columns}
    except ValueError:
        matrix = {}
    if not matrix or (matrix["client"] != clients).any() or (matrix["total"] != matrix["total"][0]).any():
        raise UserError("not all of its clients were measured in every round, on the same samples")
    measured, _, loss = curve(rows, population)
    return {
        "total": matrix["total"][0].tolist(),
        "round": [int(round_) for round_ in measured],
        "loss": _round_floats(loss.tolist()),
        "correct": matrix["correct"].tolist(),
        **({"last": matrix["last_correct"].tolist()} if positions != 1 else {}),
    }


def to_table(measurements: dict[str, Any]) -> pa.Table:
    """Return the ``rounds/2`` table of kept data. Each client gets the mean losses of its round.

    Raises ``ValueError``, ``KeyError``, ``TypeError`` or ``OverflowError`` for other data.
    """
    measurements = measurements or {"novel": [], "test": {"total": [], "round": [], "loss": [], "correct": []}}
    clients = np.arange(len(measurements["test"]["total"]), dtype=np.int32)
    populations = ["test", "novel", *(name for name in ("validation", "attacker") if name in measurements)]
    attackers = measurements.get("attacker", [])
    kinds = np.isin(clients, measurements["novel"]).astype(np.int8)
    kinds[attackers] = len(populations) - 1
    table = _rows(measurements["test"], clients, kinds, populations)
    if "validation" in measurements:
        if measurements["validation"]["round"] != measurements["test"]["round"]:
            raise ValueError("validation in other rounds than those measured")
        clients = np.setdiff1d(clients, [*measurements["novel"], *attackers]).astype(np.int32)
        validated = _rows(measurements["validation"], clients, np.full(len(clients), 2, np.int8), populations)
        table = _sort_by_round(pa.concat_tables([table, validated]))
    for name, values in measurements.get("metrics", {}).items():
        table = table.append_column(name, pa.array(values, pa.float64()))
    if "views" in measurements:
        for name in ("model", "on"):
            if name in measurements["views"]:
                default = pa.array([getattr(USUAL, name)] * len(table)).dictionary_encode()
                table = table.append_column(name, default)
        table = _sort_by_round(pa.concat_tables([table, pa.table(measurements["views"], table.schema)]))
    if TRAIN_LOSS in measurements["test"]:
        losses = dict(zip(measurements["test"]["round"], measurements["test"][TRAIN_LOSS], strict=True))
        column = [losses[round_] for round_ in table["round"].to_pylist()]
        table = table.append_column(TRAIN_LOSS, pa.array(column, pa.float64()))
    return table


def _sort_by_round(rows: pa.Table) -> pa.Table:
    return rows.take(np.argsort(rows["round"].to_numpy(), kind="stable")).combine_chunks()


def _rows(
    counts: dict[str, Any], clients: NDArray[np.int32], population: NDArray[np.int8], populations: list[str]
) -> pa.Table:
    """Return the rows of test or validation samples; `population` has each client's index in `populations`."""
    shape = (len(counts["round"]), len(clients))
    correct = np.array(counts["correct"], np.int64).reshape(shape)
    last = np.array(counts.get("last", counts["correct"]), np.int64).reshape(shape)
    return pa.table(
        {
            "round": pa.array(np.repeat(np.array(counts["round"], np.int32), len(clients))),
            "client": pa.array(np.tile(clients, shape[0])),
            "population": pa.DictionaryArray.from_arrays(np.tile(population, shape[0]), populations),
            "moment": pa.DictionaryArray.from_arrays(np.zeros(correct.size, np.int8), ["after_aggregation"]),
            "correct": pa.array(correct.ravel()),
            "total": pa.array(np.tile(np.array(counts["total"], np.int64), shape[0])),
            "loss": pa.array(np.repeat(np.array(counts["loss"], np.float64), len(clients))),
            "last_correct": pa.array(last.ravel()),
        }
    )
