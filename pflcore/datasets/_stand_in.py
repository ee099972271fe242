"""Generated images with the dimensions of a real dataset, for runs that only have to work."""

from __future__ import annotations

import numpy as np

from pflcore.datasets._base import Dataset
from pflcore.samples import Samples
from pflcore.seeds import generator

_GRID = 4  # a class is a pattern of this many blocks along each side
_OVERLAP = 3.5  # distance of class centres in units of the spread within a class, over sqrt(2)


def stand_in(dataset: Dataset, train: int, test: int, seed: int = 0) -> Samples:
    """Random images of `dataset`'s shape and classes: learnable, but not perfectly.

    An image is a coarse pattern of its class plus a coarse pattern of its own, so that classes overlap however large
    the image is; independent pixel noise is added on top. Labels are balanced within the training and the test rows.

    Args:
        dataset: Gives shape, classes and normalisation.
        train, test: Number of images of each kind; training rows come first.
        seed: Another seed gives other class patterns.
    """
    channels, height, width = dataset.shape
    rng = generator(seed, f"stand-in {dataset.name}")
    labels = np.concatenate([rng.permutation(np.arange(count) % dataset.classes) for count in (train, test)])
    centres = rng.standard_normal((dataset.classes, channels, _GRID, _GRID))
    spread = np.sqrt(centres[0].size) / _OVERLAP
    blocks = centres[labels] + spread * rng.standard_normal((len(labels), *centres.shape[1:]))
    blocks /= np.sqrt(1 + spread**2)
    rows, columns = np.arange(height) * _GRID // height, np.arange(width) * _GRID // width
    images = blocks[:, :, rows][:, :, :, columns] * 45 + rng.normal(127.5, 8, (len(labels), *dataset.shape))
    return Samples(
        pixels=np.clip(np.rint(images), 0, 255).astype(np.uint8),
        labels=labels.astype(np.int64),
        train=np.arange(len(labels)) < train,
        name=dataset.name,
        class_names=dataset.class_names,
        mean=dataset.mean,
        std=dataset.std,
        source=f"stand-in: generated, not {dataset.name} (seed {seed})",
    )
