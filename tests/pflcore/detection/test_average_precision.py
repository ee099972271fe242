"""Mean average precision against VOC's calculation in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pflcore.detection.average_precision import mean_average_precision

Array = NDArray[np.float32]


def overlap(one: Array, other: Array) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = float(max(width, 0) * max(height, 0))
    return shared / float(sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - shared)


def of_class(found: list[Array], targets: Array, label: int, recalls: int | None) -> float | None:
    """The average precision of a class: exact, or interpolated at so many recalls."""
    objects = sum(1 for image in targets for one in image if one[0] == label and not one[5])
    if not objects:
        return None
    ranked = sorted(
        ((float(one[5]), image, one) for image, own in enumerate(found) for one in own if one[0] == label),
        key=lambda one: -one[0],
    )
    taken: set[tuple[int, int]] = set()
    right: list[bool] = []
    for _, image, one in ranked:
        there = {number: it for number, it in enumerate(targets[image]) if it[0] == label}
        over = {number: overlap(one[1:5], it[1:5]) for number, it in there.items()}
        best = max(over, key=lambda number: over[number], default=None)
        if best is not None and over[best] >= 0.5 and there[best][5]:
            continue  # difficult: neither right nor wrong
        free = {n: o for n, o in over.items() if o >= 0.5 and (image, n) not in taken and not there[n][5]}
        if free:
            taken.add((image, max(free, key=lambda number: free[number])))
        right.append(bool(free))
    hits = np.cumsum(right)
    recall, precision = hits / objects, hits / np.arange(1, len(hits) + 1)
    falling = np.array([precision[at:].max() for at in range(len(precision))])
    if recalls:
        levels = np.linspace(0, 1, recalls)
        return float(np.mean([falling[recall >= level].max(initial=0) for level in levels]))
    return float(sum(falling[at] * (recall[at] - (recall[at - 1] if at else 0)) for at in range(len(hits))))


def a_case(seed: int) -> tuple[list[Array], Array]:
    """Some images, and detections of which about half are near an object."""
    rng = np.random.default_rng(seed)
    images, most, classes = int(rng.integers(1, 8)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
    targets = np.zeros((images, most, 6), np.float32)
    targets[..., 0] = rng.integers(-1, classes, (images, most))
    targets[..., 1:3] = rng.uniform(0, 0.6, (images, most, 2))
    targets[..., 3:5] = targets[..., 1:3] + rng.uniform(0.05, 0.4, (images, most, 2))
    targets[..., 5] = (rng.random((images, most)) < 0.2) & (targets[..., 0] >= 0)
    found = []
    for image in range(images):
        count = int(rng.integers(0, 12))
        made = np.zeros((count, 6), np.float32)
        made[:, 0] = rng.integers(0, classes, count)
        made[:, 1:3] = rng.uniform(0, 0.6, (count, 2))
        made[:, 3:5] = made[:, 1:3] + rng.uniform(0.05, 0.4, (count, 2))
        near = rng.integers(0, most, count)
        close = rng.random(count) < 0.6
        made[close, 1:5] = targets[image, near[close], 1:5] + rng.normal(0, 0.02, (int(close.sum()), 4))
        made[close, 0] = np.maximum(targets[image, near[close], 0], 0)
        made[:, 3:5] = np.maximum(made[:, 3:5], made[:, 1:3] + 0.01)
        made[:, 5] = rng.permutation(count) / 12 + 0.05
        found.append(made[np.argsort(-made[:, 5])])
    return found, targets


def test_it_is_that_of_a_plain_calculation() -> None:
    made = []
    for seed in range(40):
        found, targets = a_case(seed)
        classes = range(int(targets[..., 0].max()) + 1)
        sampled = [ap for label in classes if (ap := of_class(found, targets, label, 101)) is not None]
        exact = [ap for label in classes if (ap := of_class(found, targets, label, None)) is not None]
        made.append(mean_average_precision(found, targets))
        assert np.isnan(made[-1]) if not sampled else made[-1] == pytest.approx(np.mean(sampled), abs=1e-6)
        assert not exact or made[-1] == pytest.approx(np.mean(exact), abs=0.01)
        nothing = [np.zeros((0, 6), np.float32)] * len(targets)
        assert not sampled or mean_average_precision(nothing, targets) == 0
    # The cases are neither all right nor all wrong.
    assert 0.2 < np.nanmean(made) < 0.7 and np.nanmin(made) == 0 and np.isnan(made).sum() < 5
