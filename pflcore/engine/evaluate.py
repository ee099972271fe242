"""Measuring the personalised models of all clients on their own test samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from pflcore.federation import FederatedData
from pflcore.groups import Tensors

# Samples per forward pass; large enough to fill the machine, small enough for any of the papers' models.
_BATCH = 1024


@dataclass(frozen=True)
class Scores:
    """Per client: correct predictions, test samples, and the sum of the cross-entropy over them."""

    correct: np.ndarray
    total: np.ndarray
    loss: np.ndarray


@torch.no_grad()
def score_one_model(model: nn.Module, state: Tensors, data: FederatedData) -> Scores:
    """Scores of one model that all clients share: a single pass over the pooled test samples."""
    sizes = np.array([len(rows) for rows in data.test])
    hits, losses = _forward(model, state, data, torch.cat(list(data.test)))
    ends = np.cumsum(sizes)
    return Scores(_sums(hits, ends).astype(np.int64), sizes, _sums(losses, ends))


@torch.no_grad()
def score_each_model(
    model: nn.Module, state_of: Callable[[int], Tensors], clients: Sequence[int], data: FederatedData
) -> Scores:
    """Scores of every client's own model on its own test samples."""
    pairs = [_forward(model, state_of(client), data, data.test[client]) for client in clients]
    return Scores(
        np.array([int(hits.sum()) for hits, _ in pairs], dtype=np.int64),
        np.array([len(hits) for hits, _ in pairs]),
        np.array([losses.sum() for _, losses in pairs]),
    )


def _forward(model: nn.Module, state: Tensors, data: FederatedData, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Per row of `rows`: whether the prediction is right, and its loss as float64."""
    model.eval()
    hits, losses = [], []
    for part in torch.split(rows, _BATCH):
        batch = data.batch(part)
        logits = functional_call(model, state, (batch.images,))
        hits.append(logits.argmax(dim=1) == batch.labels)
        losses.append(F.cross_entropy(logits, batch.labels, reduction="none"))
    return torch.cat(hits).cpu().numpy(), torch.cat(losses).double().cpu().numpy()


def _sums(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return np.array([part.sum() for part in np.split(values, ends[:-1])])
