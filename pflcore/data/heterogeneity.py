"""Measures of how different the clients' data are: class counts, entropies and distances, a row per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from pflcore.data.assignment import Assignment
from pflcore.data.samples import Rows, Samples

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """Measures of how the clients' data differ, for N clients and K classes."""

    train: Rows  # int64 [N, K], samples of each class
    test: Rows
    validation: Rows | None
    attributes: dict[str, Rows]  # by attribute of the dataset: int64 [N, values], samples with each value
    entropy: Numbers  # float64 [N], of the training labels, in bits; 0 for one class, log2(K) for equal parts of all
    # float64 [N], total variation distance of a client's training labels from the training labels of all clients: the
    # share of its samples that would need another class. `split_distance` is from its training to its test labels.
    distance: Numbers
    split_distance: Numbers
    holders: Rows  # int64 [K], clients that train on the class
    used: int  # number of assigned samples

    @property
    def clients(self) -> int:
        return len(self.train)


def heterogeneity(samples: Samples, assignment: Assignment) -> Heterogeneity:
    """Return the measures of an assignment. The inputs of `samples` are not used."""
    counts = {side: _counts(parts, samples.labels, samples.classes) for side, parts in assignment.sides().items()}
    train, test = counts["train"], counts["test"]
    rows = assignment.rows()
    shares = _shares(train)
    return Heterogeneity(
        train=train,
        test=test,
        validation=counts.get("validation"),
        attributes={name: _counts(rows, a.values, len(a.names)) for name, a in samples.attributes.items()},
        entropy=entr(shares).sum(axis=1) / np.log(2),
        distance=np.abs(shares - _shares(train.sum(axis=0)[None])).sum(axis=1) / 2,
        split_distance=np.abs(shares - _shares(test)).sum(axis=1) / 2,
        holders=(train > 0).sum(axis=0),
        used=sum(map(len, rows)),
    )


def _counts(parts: list[Rows], values: Rows, count: int) -> Rows:
    return np.array([np.bincount(values[rows], minlength=count) for rows in parts])


def _shares(counts: Rows) -> Numbers:
    shares: Numbers = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares
