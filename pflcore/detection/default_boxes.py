"""Default boxes: where on an image a detector predicts, and how its predictions place a box relative to one.

Boxes are shares of the image's width and height, so nothing here knows pixels. Source: Liu et al., SSD: Single Shot
MultiBox Detector, ECCV 2016, section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

PER_POSITION = 6
"""Default boxes of a position: ratios of width to height 1, 2, 1/2, 3, 1/3, and a square of a size between two maps."""

_CENTRE, _SIZE = 0.1, 0.2  # what offsets of the centre and of the logarithm of the size are divided by
_RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)
_LARGEST = 4.0  # logarithm of a size that no untrained model can overflow
_LEAST = 1e-6


def default_boxes(grids: Sequence[tuple[int, int]], smallest: float, largest: float) -> Tensor:
    """Boxes as centre and size (x, y, width, height): (boxes, 4), map after map, row after row, position by position.

    Args:
        grids: Height and width of each feature map, from the finest.
        smallest, largest: Sizes of the squares of the first and of the last map; those between are evenly spaced.
    """
    steps = max(1, len(grids) - 1)
    sizes = [smallest + (largest - smallest) * number / steps for number in range(len(grids))] + [1.0]
    made = []
    for (rows, columns), size, following in zip(grids, sizes, sizes[1:], strict=False):
        forms = [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in _RATIOS]
        forms.append((math.sqrt(size * following),) * 2)
        for row in range(rows):
            for column in range(columns):
                centre = ((column + 0.5) / columns, (row + 0.5) / rows)
                made += [(*centre, *form) for form in forms]
    return torch.tensor(made)


def corners(boxes: Tensor) -> Tensor:
    """Return (…, 4) as centre and size to left, top, right, bottom."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def overlaps(ones: Tensor, others: Tensor) -> Tensor:
    """Return intersection over union of all pairs: corners (…, m, 4) and (…, n, 4) to (…, m, n)."""
    first, second = ones[..., :, None, :], others[..., None, :, :]
    sides = (torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])).clamp_min(
        0
    )
    shared = sides[..., 0] * sides[..., 1]
    return shared / (_area(first) + _area(second) - shared).clamp_min(_LEAST)


def encode(found: Tensor, defaults: Tensor) -> Tensor:
    """Return the offsets that place boxes with corners (…, boxes, 4), given the default boxes (boxes, 4)."""
    centre, size = (found[..., :2] + found[..., 2:]) / 2, (found[..., 2:] - found[..., :2]).clamp_min(_LEAST)
    moved = (centre - defaults[:, :2]) / defaults[:, 2:] / _CENTRE
    return torch.cat([moved, (size / defaults[:, 2:]).log() / _SIZE], -1)


def decode(offsets: Tensor, defaults: Tensor) -> Tensor:
    """Return the inverse of :func:`encode`: corners, cut off at the image's edges."""
    centre = offsets[..., :2] * _CENTRE * defaults[:, 2:] + defaults[:, :2]
    size = (offsets[..., 2:] * _SIZE).clamp_max(_LARGEST).exp() * defaults[:, 2:]
    return corners(torch.cat([centre, size], -1)).clamp(0, 1)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
