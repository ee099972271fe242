"""What a run leaves behind: its measurements as columns, its weights by name, what it cost, what analyses found."""

from __future__ import annotations

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
    """What a run leaves behind.

    The first columns have one entry per (measured round, view, client), of test samples, and one of validation samples
    where there are any. A prediction is one per image, one per character for text.
    """

    round: np.ndarray
    client: np.ndarray
    correct: np.ndarray  # predictions
    total: np.ndarray
    loss: np.ndarray  # the mean over predictions
    last: np.ndarray  # correct predictions at the last positions of texts
    further: dict[str, np.ndarray]  # metrics, by name; of detectors `precision`, the mean average precision, 0 to 1
    validation: np.ndarray  # which entries are of validation samples
    view: np.ndarray  # which of `views` entries are of
    views: tuple[View, ...]
    positions: int  # predictions per sample
    rounds: int  # that were trained: all, unless it was stopped early or diverged
    diverged: Diverged | None
    parameters: int  # trained ones, of one client's model
    cost: Cost
    resumed_from: int  # the round that this process continued from; 0 for none
    inherited: bool  # whether it did so from the last checkpoint of an earlier run, and not from one of its own
    # Parameters that were not trained, final shared entries, `server.…` what else the server keeps, and
    # `client.<number>.…` the personal entries of clients that trained.
    weights: Tensors
    findings: Findings
    notes: tuple[str, ...] = ()  # of the backbone, about the weights that it began with
    attackers: frozenset[int] = frozenset()  # clients whose entries are no part of what is measured
    epsilon: float | None = None  # of differential privacy, where there is any


def columns(history: History) -> dict[str, Any]:
    """Return the measurements under their names in a :class:`Result`: by round and view, test before validation."""
    clients, splits, count = len(history.members), history.splits, len(history.columns)
    parts = len(history.views) * splits
    values = np.array([scores.values for scores in history.scores.values()], np.float64)
    values = values.reshape(-1, parts, count, clients)
    numbers = dict(zip(history.columns, np.moveaxis(values, 2, 0).reshape(count, -1), strict=True))
    measured = ~np.isnan(numbers["total"])
    numbers = {name: own[measured] for name, own in numbers.items()}
    part = np.tile(np.repeat(np.arange(parts), clients), len(values))[measured]
    return {
        "round": np.repeat(list(history.scores), parts * clients)[measured].astype(np.int32),
        "client": np.tile(np.arange(clients), parts * len(values))[measured].astype(np.int32),
        "loss": numbers["loss"] / numbers["total"],
        "further": {name: numbers[name] for name in history.columns[len(COLUMNS) :]},
        "validation": part % splits == 1,
        "view": part // splits,
        "views": history.views,
        **{name: numbers[name].astype(np.int64) for name in ("correct", "total", "last")},
    }


def write_findings(path: Path, findings: Findings, /, **meta: Any) -> None:
    """Write the artifact ``analysis/1``, with facts about the run: a number per row, in the order of the findings."""
    # Here, as training does without them.
    import pyarrow as pa

    from pflcore.artifacts import write_table

    rows = [(name, one, len(one.values)) for name, series in findings.items() for one in series]
    lengths = np.array([length for _, _, length in rows], np.int64)
    numbers = np.concatenate([np.empty(0), *(one.values for _, one, _ in rows)])
    repeated = np.repeat(np.arange(len(rows)), lengths)
    first = np.repeat(lengths.cumsum() - lengths, lengths)
    table = pa.table(
        {
            "analysis": pa.array([name for name, _, _ in rows], pa.string()).take(pa.array(repeated)),
            "client": pa.array([one.client for _, one, _ in rows], pa.int32()).take(pa.array(repeated)),
            "item": pa.array([one.item for _, one, _ in rows], pa.string()).take(pa.array(repeated)),
            "index": pa.array((np.arange(len(numbers)) - first).astype(np.int32)),
            "value": pa.array(numbers, pa.float64()),
        }
    )
    write_table(path, table, "analysis/1", **meta)
