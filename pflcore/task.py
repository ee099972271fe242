"""Tasks of a model: the loss, the numbers measured per sample, and the score of a client."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.metrics import score_metrics

Measured = tuple[np.ndarray, ...]
"""The arrays that a task measures; the first dimension is samples."""
Score = tuple[float, ...]
"""Sums over a client's samples: correct predictions, predictions, losses, correct predictions at last positions; then
the numbers that the task's `further` names."""


@dataclass(frozen=True)
class Task:
    """What a model predicts: one class per image, or one character per position of a text.

    Labels of texts are (…, `positions`). A model with another task has it in an attribute ``task``, see
    :class:`pflcore.detection.task.Detection`.
    """

    positions: int = 1
    is_text: bool = False
    further: tuple[str, ...] = ()  # names of a score's further numbers: those in :mod:`pflcore.metrics`
    classes: int = 0  # predictions have at least as many logits

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss of a batch, a scalar; `weights` are those of classes, if there are any."""
        return cross_entropy(outputs, targets, weights)

    def measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return per sample the correct predictions, the sum of losses (float64), and whether the last prediction is
        right, of logits (…, classes) and labels (…); for metrics of classes also probabilities (float64) and labels.
        Raises :class:`UserError` for predictions of another shape."""
        if outputs.shape[:-1] != targets.shape or outputs.shape[-1] < self.classes:
            expected = f"{[*targets.shape, self.classes]}: a number for each class"
            raise UserError(f"predictions have the shape {[*outputs.shape]}; predict() must return {expected}")
        hits = outputs.argmax(dim=-1) == targets
        losses = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").double()
        losses = losses.view(targets.shape)
        if self.is_text:
            return hits.sum(-1), losses.sum(-1), hits[..., -1]
        by_class = (outputs.double().softmax(-1), targets) if {*self.further} - {"nll"} else ()
        return hits, losses, hits, *by_class

    def score(self, measured: Measured) -> Score:
        """Return the score of a client from the numbers measured on its samples."""
        hits, losses, last, *by_class = measured
        total, loss = len(hits) * self.positions, float(losses.sum())
        metrics = score_metrics(self.further, loss / max(1, total), (by_class[0], by_class[1]) if by_class else None)
        return int(hits.sum()), total, loss, int(last.sum()), *metrics

    def batch_limit(self, samples: int) -> int:
        """Return the number of samples per forward pass in measurements, if a classifier takes `samples`."""
        return samples


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over samples, and over positions of text: (…, classes) logits, (…) labels, (classes,) weights.
    With weights, the mean is weighted by the class of each label, as in PyTorch."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), weights)
