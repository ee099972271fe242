"""The result of a run: measurements as columns, weights by name, costs, findings of analyses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflcore.engine.analysis import Findings
from pflcore.engine.client import Diverged
from pflcore.engine.cost import Cost
from pflcore.engine.evaluation import COLUMNS
from pflcore.engine.state import History
from pflcore.groups import Tensors
from pflcore.settings import View


@dataclass(frozen=True)
class Result:
    """The result of a run.

    The arrays have one entry per (measured round, view, client) for test samples, and one for validation samples if the
    data has any. There is one prediction per image, and one per character for text.
    """

    round: np.ndarray
    client: np.ndarray
    correct: np.ndarray  # number of correct predictions
    total: np.ndarray  # number of predictions
    loss: np.ndarray  # the mean over predictions
    train_loss: np.ndarray  # the mean over the client's local steps in all phases of the round; NaN if it did not train
    last: np.ndarray  # number of correct predictions at the last positions of texts
    further: dict[str, np.ndarray]  # metrics by name; for detectors `precision`, the mean average precision, 0 to 1
    validation: np.ndarray  # whether an entry is about validation samples
    view: np.ndarray  # index into `views`
    views: tuple[View, ...]
    positions: int  # predictions per sample
    rounds: int  # rounds trained: all, unless the run was stopped early or diverged
    diverged: Diverged | None
    parameters: int  # number of trained parameters of one client's model
    cost: Cost
    resumed_from: int  # the round from which this process continued; 0 if it began the run
    inherited: bool  # whether it continued from the last checkpoint of an earlier run of the lineage
    # Fixed parameters and final shared entries, the server's `extra` as `server.…`, and the personal entries of clients
    # that trained as `client.<number>.…`.
    weights: Tensors
    findings: Findings
    notes: tuple[str, ...] = ()  # from the backbone, about its initial weights
    attackers: frozenset[int] = frozenset()  # clients whose measurements do not count
    epsilon: float | None = None  # ε of differential privacy, if the run has any


def columns(history: History) -> dict[str, Any]:
    """Return the measurements as arrays of a :class:`Result`, ordered by round and view, test before validation."""
    clients, splits, count = len(history.members), history.splits, len(history.columns)
    parts = len(history.views) * splits
    rows = np.array(list(history.rows.values()), np.float64).reshape(-1, parts * count + 1, clients)
    values, losses = rows[:, :-1].reshape(-1, parts, count, clients), rows[:, -1:]
    numbers = dict(zip(history.columns, np.moveaxis(values, 2, 0).reshape(count, -1), strict=True))
    measured = ~np.isnan(numbers["total"])
    numbers = {name: column[measured] for name, column in numbers.items()}
    part = np.tile(np.repeat(np.arange(parts), clients), len(values))[measured]
    return {
        "round": np.repeat(list(history.rows), parts * clients)[measured].astype(np.int32),
        "client": np.tile(np.arange(clients), parts * len(values))[measured].astype(np.int32),
        "loss": numbers["loss"] / numbers["total"],
        "train_loss": np.broadcast_to(losses, (len(losses), parts, clients)).ravel()[measured],
        "further": {name: numbers[name] for name in history.columns[len(COLUMNS) :]},
        "validation": part % splits == 1,
        "view": part // splits,
        "views": history.views,
        **{name: numbers[name].astype(np.int64) for name in ("correct", "total", "last")},
    }


def write_findings(path: Path, findings: Findings, /, **meta: Any) -> None:
    """Write the artifact ``analysis/1``: a number per row, in the order of the findings; `meta`: facts of the run."""
    # Imported here, because training does not need pyarrow.
    import pyarrow as pa

    from pflcore.artifacts import write_table

    series = [(name, finding) for name, listed in findings.items() for finding in listed]
    lengths = np.array([len(finding.values) for _, finding in series], np.int64)
    numbers = np.concatenate([np.empty(0), *(finding.values for _, finding in series)])
    rows = pa.array(np.repeat(np.arange(len(series)), lengths))
    first = np.repeat(lengths.cumsum() - lengths, lengths)
    table = pa.table(
        {
            "analysis": pa.array([name for name, _ in series], pa.string()).take(rows),
            "client": pa.array([finding.client for _, finding in series], pa.int32()).take(rows),
            "item": pa.array([finding.item for _, finding in series], pa.string()).take(rows),
            "index": pa.array((np.arange(len(numbers)) - first).astype(np.int32)),
            "value": pa.array(numbers, pa.float64()),
        }
    )
    write_table(path, table, "analysis/1", **meta)
