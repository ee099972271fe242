"""Filling up small batches, so that clients with batches of several sizes can take a step together.

A batch is filled with samples that nothing learns from: they bear a label that the cross-entropy passes over, which
takes the mean over the others, so their gradients are exactly zero. That is all there is to it only where nothing but
this loss looks at a batch, and where samples do not look at each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.engine.trainer import Trainer

# PyTorch's own choice in cross_entropy.
_PASSED_OVER = -100


def can_fill(trainer: Trainer) -> bool:
    """Whether a client's step on a batch that is filled up is its step on the batch.

    The method has to say so of its loss and step (:attr:`~pflcore.method.Method.ignores_unlabelled`), as most do, and
    the model's layers must have no running statistics and take dropout sample by sample.
    """
    line = type(trainer.method).__mro__
    said, *overridden = (
        next(place for place, kind in enumerate(line) if name in vars(kind))
        for name in ("ignores_unlabelled", "loss", "step")
    )
    plain = trainer.method.ignores_unlabelled and said <= min(overridden)
    statistics = any(name in trainer.entries and it.is_floating_point() for name, it in trainer.model.named_buffers())
    return plain and not trainer.batch_norm and not statistics and trainer.noise.by_sample


def filled_rows(batches: Sequence[Tensor]) -> Tensor:
    """The rows of several batches, each filled up by its first row, or row 0, to the largest: (batches, size)."""
    size = max(map(len, batches))
    return torch.stack([F.pad(rows, (0, size - len(rows)), value=int(rows[0]) if len(rows) else 0) for rows in batches])


def filled_labels(labels: Tensor, sizes: Tensor) -> Tensor:
    """Labels (batches, size, …) of which only the first of each batch count, as many as `sizes` (batches,) says."""
    beyond = torch.arange(labels.shape[1], device=labels.device) >= sizes[:, None]
    return labels.masked_fill(beyond.view(*beyond.shape, *[1] * (labels.ndim - 2)), _PASSED_OVER)
