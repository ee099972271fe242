"""A client's memory: features and labels of its training samples, which vote on the class of a test sample."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

Piece = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Neighbours:
    """Nearest neighbours of kNN-Per (Marfoq et al., ICML 2022), mixed with a model's own probabilities.

    A class has as its probability the share of the k nearest training samples with this class, weighted by exp(−d² /
    D), d the Euclidean distance and D the number of features. The mixture is λ · neighbours + (1 − λ) · model.
    """

    index: Any  # a fitted sklearn.neighbors.NearestNeighbors
    labels: np.ndarray  # of the training samples in it
    classes: int
    weight: float = 1.0  # λ

    @classmethod
    def create(
        cls, samples: Iterable[Piece], classes: int, neighbours: int, weight: float, grid: Sequence[float] = ()
    ) -> Self | None:
        """Return the memory of a client's training samples, or None if their features are not finite.

        `samples` are batches: logits (batch, …, classes), features (batch, …, features), labels (batch, …). k is
        `neighbours`, or the number of samples if that is smaller; λ is `weight`, or the :meth:`best` of `grid`.
        """
        # Imported late: only few runs use it, and it takes a second.
        from sklearn.neighbors import NearestNeighbors

        flat = ((x.softmax(-1).flatten(0, -2), y.flatten(0, -2), z.flatten()) for x, y, z in samples)
        probabilities, features, labels = (torch.cat(parts).cpu().numpy() for parts in zip(*flat, strict=True))
        if not np.isfinite(features).all():
            return None
        index = NearestNeighbors(n_neighbors=min(neighbours, len(labels)))
        memory = cls(index.fit(features), labels, classes, weight)
        return replace(memory, weight=memory.best(grid, probabilities)) if grid else memory

    def best(self, grid: Sequence[float], probabilities: np.ndarray) -> float:
        """Return the weight whose mixture is right on most of the memory's samples, each left out of its own vote.

        `probabilities` are the model's for these samples, (samples, classes). Of equal weights the one with the
        lower loss is taken. In a memory of one sample, which no other can vote on, it is the lowest weight.
        """
        if len(self.labels) == 1:
            return min(grid)
        votes, rows = self.vote(None), np.arange(len(self.labels))

        def merit(weight: float) -> tuple[int, float]:
            mixed = weight * votes + (1 - weight) * probabilities
            likelihoods = np.log(np.maximum(mixed[rows, self.labels], np.finfo(np.float32).tiny))
            return int((mixed.argmax(1) == self.labels).sum()), float(likelihoods.sum())

        return max(grid, key=merit)

    def vote(self, features: np.ndarray | None) -> np.ndarray:
        """Return probabilities (samples, classes) for features (samples, features), None for the memory's own."""
        available = len(self.labels) - (features is None)
        distances, nearest = self.index.kneighbors(features, min(self.index.n_neighbors, available))
        squares = distances.astype(np.float64) ** 2 / self.index.n_features_in_
        # Relative to the nearest sample: no share changes, and weights of far samples do not vanish.
        weights = np.exp(squares[:, :1] - squares)
        votes = np.zeros((len(nearest), self.classes))
        np.add.at(votes, (np.arange(len(nearest))[:, None], self.labels[nearest]), weights)
        return cast(np.ndarray, votes / weights.sum(1, keepdims=True))

    def mix(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return the log of mixed probabilities, (batch, …, classes), for logits and features of the same samples."""
        if not features.isfinite().all():
            return logits.log_softmax(-1)
        votes = torch.from_numpy(self.vote(features.flatten(0, -2).cpu().numpy()))
        votes = votes.to(logits.device, torch.float32).view(logits.shape)
        mixed = self.weight * votes + (1 - self.weight) * logits.softmax(-1)
        # A probability of 0 becomes the least float32, so that losses stay finite.
        return mixed.clamp_min(torch.finfo(torch.float32).tiny).log()
