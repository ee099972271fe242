"""Samples without content for tests of partitions: labels, coarse classes, domains and roles."""

from __future__ import annotations

import numpy as np

from pflcore.data.assignment import Assignment
from pflcore.data.samples import Attribute, Samples


def make_samples(train: int = 10_000, test: int = 2_000, classes: int = 10) -> Samples:
    """Balanced labels in random order and one pixel per image; five coarse classes and domains, sixty roles."""
    n = train + test
    order = np.random.default_rng(0).permutation(n)
    labels = np.concatenate([np.arange(train) % classes, np.arange(test) % classes])[order]
    rng = np.random.default_rng(1)
    values = {"coarse": labels % 5, "domain": rng.permutation(np.arange(n) % 5), "role": rng.integers(0, ROLES, n)}
    counts = {"coarse": 5, "domain": 5, "role": ROLES}
    return Samples(
        inputs=np.zeros((n, 1, 1, 1), np.uint8),
        labels=labels,
        train=(np.arange(n) < train)[order],
        name="toy",
        class_names=tuple(map(str, range(classes))),
        mean=(0.5,),
        std=(0.5,),
        source="made here",
        attributes={
            name: Attribute(value, tuple(f"{name} {number}" for number in range(counts[name])))
            for name, value in values.items()
        },
    )


ROLES = 60
SAMPLES = make_samples()


def class_counts(parts: list[np.ndarray], samples: Samples = SAMPLES) -> np.ndarray:
    """Samples per client and class: [clients, classes]."""
    return np.array([np.bincount(samples.labels[rows], minlength=samples.classes) for rows in parts])


def flat(assignment: Assignment) -> list[int]:
    return np.concatenate(assignment.train + assignment.test).tolist()
