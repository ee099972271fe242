"""Samples without content for tests of partitions: labels, coarse classes, domains and roles."""

import numpy as np

from pflcore.data.samples import Attribute, Samples

ROLES = 60


def make_samples(train=10_000, test=2_000, classes=10):
    """Balanced labels in random order and one pixel per image; five coarse classes and domains, sixty roles."""
    n = train + test
    order, rng = np.random.default_rng(0).permutation(n), np.random.default_rng(1)
    labels = np.concatenate([np.arange(train) % classes, np.arange(test) % classes])[order]
    domains, roles = rng.permutation(np.arange(n) % 5), rng.integers(0, ROLES, n)
    values = {"coarse": (labels % 5, 5), "domain": (domains, 5), "role": (roles, ROLES)}
    return Samples(
        inputs=np.zeros((n, 1, 1, 1), np.uint8),
        labels=labels,
        train=(np.arange(n) < train)[order],
        class_names=tuple(map(str, range(classes))),
        attributes={
            name: Attribute(codes, tuple(f"{name} {number}" for number in range(count)))
            for name, (codes, count) in values.items()
        },
        **{"name": "toy", "mean": (0.5,), "std": (0.5,), "source": "made here"},
    )


SAMPLES = make_samples()


def class_counts(parts, samples=SAMPLES):
    """Samples per client and class: [clients, classes]."""
    return np.array([np.bincount(samples.labels[rows], minlength=samples.classes) for rows in parts])


def flat(assignment):
    return np.concatenate(assignment.train + assignment.test).tolist()
