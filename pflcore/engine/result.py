"""What a run leaves behind: its measurements as columns, its weights by name, what it cost, what was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pflcore.engine.analysis import Findings
from pflcore.engine.cost import Cost
from pflcore.engine.divergence import Diverged
from pflcore.engine.state import ClientStates, History
from pflcore.groups import Tensors
from pflcore.method import Server


@dataclass(frozen=True)
class Result:
    """What a run leaves behind.

    Attributes:
        round, client, correct, total, loss, last: One entry per (measured round, client), of test samples, and one of
            validation samples where there are any. A prediction is one per image, one per character for text; `loss` is
            the mean over them, `last` counts the correct ones at the last positions of texts.
        precision: Of detectors the mean average precision of these entries, 0 to 1; None of other models.
        validation: Which of these entries are of validation samples.
        positions: Predictions per sample.
        rounds: Rounds that were trained: all, unless it was stopped early or diverged.
        diverged: The round and client at which the run ended early, or None.
        parameters: Trained parameters of one client's model.
        cost: Bytes, numbers and multiply-adds.
        resumed_from: The round that this process continued from; 0 for none.
        inherited: Whether it did so from the last checkpoint of an earlier run, and not from one of its own.
        weights: Parameters that were not trained, final shared entries, the server's own, and the personal entries of
            clients that trained, by name.
        findings: Analysis → what it found; nothing when the run diverged.
        notes: What the backbone has to say about the weights that it began with.
    """

    round: np.ndarray
    client: np.ndarray
    correct: np.ndarray
    total: np.ndarray
    loss: np.ndarray
    last: np.ndarray
    precision: np.ndarray | None
    validation: np.ndarray
    positions: int
    rounds: int
    diverged: Diverged | None
    parameters: int
    cost: Cost
    resumed_from: int
    inherited: bool
    weights: Tensors
    findings: Findings
    notes: tuple[str, ...] = ()


def columns(history: History) -> dict[str, Any]:
    """The measurements under the names that they have in a :class:`Result`: by round, test before validation."""
    clients = np.arange(history.clients)
    both = [(round_, (scores, scores.validation)) for round_, scores in history.scores.items()]
    measured = [(round_, side, one) for round_, sides in both for side, one in enumerate(sides) if one]
    precise = [scores.precision for *_, scores in measured if scores.precision is not None]
    return {
        "round": np.repeat([round_ for round_, _, _ in measured], len(clients)).astype(np.int32),
        "client": np.tile(clients, len(measured)).astype(np.int32),
        "correct": _join(scores.correct for *_, scores in measured).astype(np.int64),
        "total": _join(scores.total for *_, scores in measured).astype(np.int64),
        "loss": _join(scores.loss / scores.total for *_, scores in measured).astype(np.float64),
        "last": _join(scores.last for *_, scores in measured).astype(np.int64),
        "precision": _join(precise) if precise else None,
        "validation": np.repeat([side for _, side, _ in measured], len(clients)).astype(np.bool_),
    }


def final_weights(server: Server, personal: ClientStates) -> Tensors:
    """Shared entries under their own names, then those of clients that trained, then what else the server keeps."""
    weights = dict(server.shared)
    for client in personal.trained():
        weights.update({f"client.{client}.{name}": tensor for name, tensor in personal[client].items()})
    weights.update({f"server.{name}": tensor for name, tensor in server.extra.items()})
    return weights


def _join(arrays: Iterable[np.ndarray]) -> np.ndarray:
    parts = list(arrays)
    return np.concatenate(parts) if parts else np.zeros(0)
