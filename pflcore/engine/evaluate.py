"""Measuring the personalised models of all clients on their own test samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.engine.trainer import Trainer
from pflcore.federation import FederatedData
from pflcore.groups import Tensors

# Samples per forward pass, by kind of device: large enough to fill it, small enough for any of the papers' models.
_BATCH = {"cpu": 256, "cuda": 4096}

# Correct predictions, test samples, and the sum of the cross-entropy over them.
Score = tuple[int, int, float]


@dataclass(frozen=True)
class Scores:
    """Per client: correct predictions, test samples, and the sum of the cross-entropy over them."""

    correct: np.ndarray
    total: np.ndarray
    loss: np.ndarray

    @classmethod
    def join(cls, scores: Iterable[Score]) -> Scores:
        """The scores of several clients, in order."""
        table = np.array(list(scores), dtype=np.float64).reshape(-1, 3)  # counts are exact up to 2^53
        return cls(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2].copy())


def batch_size(device: torch.device) -> int:
    """Samples per forward pass on `device`."""
    return _BATCH.get(device.type, _BATCH["cpu"])


def score_one_model(trainer: Trainer, state: Tensors) -> Scores:
    """Scores of one model that all clients share: a single pass over the pooled test samples."""
    parts = forward(trainer, state, pooled_chunks(trainer.data))
    hits, losses = (np.concatenate(part) for part in zip(*parts, strict=True))
    return client_scores(hits, losses, trainer.data)


def score_client(trainer: Trainer, state: Tensors, client: int) -> Score:
    """The score of a client's own model on its own test samples."""
    parts = forward(trainer, state, torch.split(trainer.data.test[client], batch_size(trainer.data.device)))
    hits, losses = (np.concatenate(part) for part in zip(*parts, strict=True))
    return int(hits.sum()), len(hits), float(losses.sum())


def pooled_chunks(data: FederatedData) -> tuple[Tensor, ...]:
    """Rows of the test samples of all clients, client after client, in pieces of one forward pass."""
    return torch.split(torch.cat(list(data.test)), batch_size(data.device))


def client_scores(hits: np.ndarray, losses: np.ndarray, data: FederatedData) -> Scores:
    """Sums per client of what :func:`forward` gives for all pooled chunks."""
    sizes = [len(rows) for rows in data.test]
    ends = np.cumsum(sizes)[:-1]
    pairs = zip(np.split(hits, ends), np.split(losses, ends), strict=True)
    return Scores.join((int(right.sum()), len(right), float(loss.sum())) for right, loss in pairs)


@torch.no_grad()
def forward(trainer: Trainer, state: Tensors, chunks: Sequence[Tensor]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each chunk of rows, and per row: whether the prediction is right, and its loss as float64."""
    trainer.model.eval()
    made = []
    for batch in trainer.data.batches(chunks):
        logits = trainer.forward(state, batch.images)
        hits = logits.argmax(dim=1) == batch.labels
        made.append((hits, F.cross_entropy(logits, batch.labels, reduction="none").double()))
    # One look at the device for all chunks.
    return [(hits.cpu().numpy(), losses.cpu().numpy()) for hits, losses in made]
