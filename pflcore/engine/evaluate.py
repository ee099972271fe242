"""Measuring the personalised models of all clients on their own test samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.data.federation import FederatedData
from pflcore.engine.neighbours import Neighbours
from pflcore.engine.trainer import Trainer
from pflcore.faults import during
from pflcore.groups import Tensors

# Samples per forward pass, by kind of device: large enough to fill it, small enough for any of the papers' models.
_BATCH = {"cpu": 256, "cuda": 4096}

# Correct predictions, predictions, the sum of the cross-entropy over them, and correct predictions at last positions.
Score = tuple[int, int, float, int]
# Of some samples: correct predictions, sum of the cross-entropy, whether the last prediction is right. A sample is one
# prediction for an image, and one per character for text.
Measured = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Scores:
    """Per client.

    Attributes:
        correct, total: Correct predictions and predictions: one per image; for text one per character.
        loss: Sum of the cross-entropy over the predictions.
        last: Correct predictions at the last position of a text; for images the same as `correct`.
    """

    correct: np.ndarray
    total: np.ndarray
    loss: np.ndarray
    last: np.ndarray

    @classmethod
    def join(cls, scores: Iterable[Score]) -> Scores:
        """The scores of several clients, in order."""
        table = np.array(list(scores), dtype=np.float64).reshape(-1, 4)  # counts are exact up to 2^53
        correct, total, last = (table[:, column].astype(np.int64) for column in (0, 1, 3))
        return cls(correct, total, table[:, 2].copy(), last)

    def __getitem__(self, index: int) -> Score:
        return int(self.correct[index]), int(self.total[index]), float(self.loss[index]), int(self.last[index])

    def __len__(self) -> int:
        return len(self.total)


def batch_size(device: torch.device) -> int:
    """Samples per forward pass on `device`."""
    return _BATCH.get(device.type, _BATCH["cpu"])


def score_one_model(trainer: Trainer, state: Tensors) -> Scores:
    """Scores of one model that all clients share: a single pass over the pooled test samples."""
    return client_scores(forward(trainer, state, pooled_chunks(trainer.data)), trainer.data)


def score_client(trainer: Trainer, state: Tensors, client: int) -> Score:
    """The score of a client's own model on its own test samples."""
    data = trainer.data
    with during(who=f"client {client}"):
        remembers = trainer.method.remembers
        memory = Neighbours.remember(trainer, state, client, batch_size(data.device)) if remembers else None
        parts = forward(trainer, state, torch.split(data.test[client], batch_size(data.device)), memory)
    hits, losses, last = _joined(parts)
    return add_up(hits, losses, last, data.positions)


def pooled_chunks(data: FederatedData) -> tuple[Tensor, ...]:
    """Rows of the test samples of all clients, client after client, in pieces of one forward pass."""
    return torch.split(torch.cat(list(data.test)), batch_size(data.device))


def client_scores(parts: Iterable[Measured], data: FederatedData) -> Scores:
    """Sums per client of what :func:`forward` gives for all pooled chunks."""
    ends = np.cumsum([len(rows) for rows in data.test])[:-1]
    clients = zip(*(np.split(part, ends) for part in _joined(parts)), strict=True)
    return Scores.join(add_up(hits, losses, last, data.positions) for hits, losses, last in clients)


def add_up(hits: np.ndarray, losses: np.ndarray, last: np.ndarray, positions: int) -> Score:
    """The score of a client from what was measured of its samples, each of as many `positions`."""
    return int(hits.sum()), len(hits) * positions, float(losses.sum()), int(last.sum())


def measure(logits: Tensor, labels: Tensor, is_text: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of each sample: correct predictions, the sum of their losses as float64, whether the last prediction is right.

    Args:
        logits: (…, classes) for `labels` of shape (…).
        is_text: Whether the last dimension of `labels` is that of the positions in a sample.
    """
    hits = logits.argmax(dim=-1) == labels
    losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").double().view(labels.shape)
    return (hits.sum(-1), losses.sum(-1), hits[..., -1]) if is_text else (hits, losses, hits)


@torch.no_grad()
def forward(
    trainer: Trainer, state: Tensors, chunks: Sequence[Tensor], memory: Neighbours | None = None
) -> list[Measured]:
    """What is measured of each row, for each chunk of rows; losses are float64."""
    trainer.model.eval()
    made = []
    for batch in trainer.data.batches(chunks):
        inputs = batch.inputs
        logits = memory.predict(trainer, state, inputs) if memory else trainer.predict(state, inputs)
        made.append(measure(logits, batch.labels, trainer.data.is_text))
    # One look at the device for all chunks.
    return [(hits.cpu().numpy(), losses.cpu().numpy(), last.cpu().numpy()) for hits, losses, last in made]


def _joined(parts: Iterable[Measured]) -> Measured:
    hits, losses, last = (np.concatenate(part) for part in zip(*parts, strict=True))
    return hits, losses, last
