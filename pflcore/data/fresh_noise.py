"""Noise that is drawn anew in every round, on the device, without a generator's state.

Its numbers are hashes of (key, row, pixel), so that they do not depend on batches, executors or the kind of device.
"""

from __future__ import annotations

import math

from torch import Tensor

from pflcore.data.hashes import hashed


def on_normalised(images: Tensor, std: Tensor, rows: Tensor, key: int) -> Tensor:
    """Return the released form, for a batch.

    Args:
        images: [..., C, H, W], normalised.
        std: [...], of each image's noise.
        rows: [...], int64, the images' rows in the dataset.
        key: Another key gives other noise; with the same one an image always gets the same, on any device and in any
            batch.
    """
    return (images + normals(rows, images.shape[-3:].numel(), key).view_as(images) * std[..., None, None, None]).clamp_(
        0, 255
    )


def normals(rows: Tensor, count: int, key: int) -> Tensor:
    """Return standard normal numbers, float32 [..., count], each a hash of (key, row, position) and of nothing else."""
    bits = hashed(rows, count, key)
    # Box and Muller's method on two numbers of 24 bits; the first is never 0.
    first, second = ((bits & 0xFFFFFF).float() + 1) / 2**24, ((bits >> 24) & 0xFFFFFF).float() / 2**24
    return (-2 * first.log()).sqrt_() * (2 * math.pi * second).cos_()
