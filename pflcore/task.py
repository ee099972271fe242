"""What a model is to predict: the loss of that, what is measured of a sample, and the figures of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from pflcore.metrics import score_metrics

Measured = tuple[np.ndarray, ...]
"""Of some samples: what a task measures of each, along the first dimension."""
Score = tuple[float, ...]
"""Of a client's samples: correct predictions, predictions, the sum of their losses, correct predictions at last
positions; behind them what the task's `further` names."""


class Task(Protocol):
    """A kind of prediction. A model that does something else than to classify has its own in an attribute ``task``."""

    @property
    def further(self) -> tuple[str, ...]:
        """What it scores beside what every task does."""

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return what is minimised on a batch, a scalar; with weights of classes, if there are any."""

    def measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Measure samples in any leading dimensions; none depends on the other samples."""

    def score(self, measured: Measured) -> Score:
        """Score a client by what was measured of its samples."""

    def at_once(self, samples: int) -> int:
        """Return the samples of a forward pass in a measurement, where a classifier has so many."""


@dataclass(frozen=True)
class Classification:
    """One class for each image, or one character at each of the `positions` of a text, labels' last dimension."""

    positions: int = 1
    is_text: bool = False
    further: tuple[str, ...] = ()  # of :mod:`pflcore.metrics`

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        return cross_entropy(outputs, targets, weights)

    def measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return correct predictions, the sum of their losses as float64, whether the last prediction is right, of
        logits (…, classes) for labels (…); for metrics of classes also probabilities as float64, and labels."""
        hits = outputs.argmax(dim=-1) == targets
        losses = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").double()
        losses = losses.view(targets.shape)
        if self.is_text:
            return hits.sum(-1), losses.sum(-1), hits[..., -1]
        by_class = (outputs.double().softmax(-1), targets) if {*self.further} - {"nll"} else ()
        return hits, losses, hits, *by_class

    def score(self, measured: Measured) -> Score:
        hits, losses, last, *given = measured
        total, loss = len(hits) * self.positions, float(losses.sum())
        metrics = score_metrics(self.further, loss / max(1, total), (given[0], given[1]) if given else None)
        return int(hits.sum()), total, loss, int(last.sum()), *metrics

    def at_once(self, samples: int) -> int:
        return samples


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over samples, and over positions of text: (…, classes) logits, (…) labels, (classes,) weights.

    With weights, as PyTorch's: each counts by the weight of its class, divided by the sum of those in the batch.
    """
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), weights)
