"""SSD's default boxes: where on an image a detector predicts, its loss, and what it finds.

Boxes are shares of the image's width and height, so nothing here knows pixels. All are tensor operations of fixed
shapes, so that clients can be stacked and no image is looked at by itself. Source: Liu et al., SSD: Single Shot
MultiBox Detector, ECCV 2016, section 2.2.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

PER_POSITION = 6  # default boxes: of all ratios of width to height, and a square of a size between two maps
Found = NDArray[np.float32]
"""Of an image: (n, 6), class, left, top, right, bottom as shares, score; by falling score."""

_RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)
_CENTRE, _SIZE = 0.1, 0.2  # what offsets of the centre and of the logarithm of the size are divided by
_MAX_LOG_SIZE = 4.0  # that no untrained model can overflow
_MIN_SIZE = 1e-6
_MATCHES = 0.5  # overlap from which a default box is an object's
_NEGATIVES = 3  # default boxes of the background that count, for each that is an object's
_CANDIDATES, _MOST_FOUND, _MIN_SCORE, _DUPLICATE = 400, 200, 0.01, 0.45  # the last: overlap of two boxes of a class


def default_boxes(grids: Sequence[tuple[int, int]], smallest: float, largest: float) -> Tensor:
    """Return boxes as centre and size (x, y, width, height): (boxes, 4), map after map, row after row.

    Grids are the height and width of each map, from the finest; the sizes of squares are evenly spaced over them.
    """
    steps = max(1, len(grids) - 1)
    sizes = [smallest + (largest - smallest) * number / steps for number in range(len(grids))] + [1.0]
    made = []
    for (rows, columns), size, following in zip(grids, sizes, sizes[1:], strict=False):
        forms = [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in _RATIOS]
        forms.append((math.sqrt(size * following),) * 2)
        for row in range(rows):
            for column in range(columns):
                made += [((column + 0.5) / columns, (row + 0.5) / rows, *form) for form in forms]
    return torch.tensor(made)


def corners(boxes: Tensor) -> Tensor:
    """Turn (…, 4) as centre and size to left, top, right, bottom."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def overlaps(ones: Tensor, others: Tensor) -> Tensor:
    """Return intersection over union of all pairs: corners (…, m, 4) and (…, n, 4) to (…, m, n)."""
    first, second = ones[..., :, None, :], others[..., None, :, :]
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    sides = (high - low).clamp_min(0)
    shared = sides[..., 0] * sides[..., 1]
    return shared / (_area(first) + _area(second) - shared).clamp_min(_MIN_SIZE)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def encode(found: Tensor, defaults: Tensor) -> Tensor:
    """Return the offsets that place boxes with corners (…, boxes, 4), given the default boxes (boxes, 4)."""
    centre, size = (found[..., :2] + found[..., 2:]) / 2, (found[..., 2:] - found[..., :2]).clamp_min(_MIN_SIZE)
    shift = (centre - defaults[:, :2]) / defaults[:, 2:] / _CENTRE
    return torch.cat([shift, (size / defaults[:, 2:]).log() / _SIZE], -1)


def decode(offsets: Tensor, defaults: Tensor) -> Tensor:
    """Return the inverse of :func:`encode`: corners, cut off at the image's edges."""
    centre = offsets[..., :2] * _CENTRE * defaults[:, 2:] + defaults[:, :2]
    size = (offsets[..., 2:] * _SIZE).clamp_max(_MAX_LOG_SIZE).exp() * defaults[:, 2:]
    return corners(torch.cat([centre, size], -1)).clamp(0, 1)


def match(targets: Tensor, defaults: Tensor) -> tuple[Tensor, Tensor]:
    """Return which object each default box is to find.

    It is the one that it overlaps most, if that is by half at least; and every object has the default box that it
    overlaps most, whatever that has of others. Where several have the same, the one that overlaps it most has it.
    Targets are (images, objects, 6): class, -1 for none, corners, and whether it is difficult, which does not matter.
    Returned are classes counted from 1, 0 for the background, (images, boxes), and corners, (images, boxes, 4).
    """
    there = targets[..., 0] >= 0
    overlap = torch.where(there[..., None], overlaps(targets[..., 1:5], corners(defaults)), -1.0)
    best = overlap.argmax(-1, keepdim=True)
    claimed = (torch.arange(len(defaults), device=defaults.device) == best) & there[..., None]
    most, chosen = (overlap + 2.0 * claimed).max(-2)  # a claim is worth more than any overlap
    found = targets.gather(-2, chosen[..., None].expand(*chosen.shape, targets.shape[-1]))
    labels = torch.where(most >= _MATCHES, found[..., 0] + 1, 0.0).long()
    return labels, found[..., 1:5]


def losses(outputs: Tensor, targets: Tensor, defaults: Tensor) -> tuple[Tensor, Tensor]:
    """Return each image's loss, not yet divided by anything, and the number of default boxes that are objects'.

    The loss is the smooth L1 distance of their offsets, their cross-entropy, and that of the hardest boxes of the
    background, three for each of them. Outputs are (images, boxes, 4 + 1 + classes): offsets, and logits of the
    background and of the classes; targets and defaults as for :func:`match`.
    """
    offsets, logits = outputs[..., :4], outputs[..., 4:]
    labels, boxes = match(targets, defaults)
    positive = labels > 0
    away = F.smooth_l1_loss(offsets, encode(boxes, defaults), reduction="none").sum(-1)
    entropy = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    hardness = torch.where(positive, -1.0, entropy.detach())
    place = hardness.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    negative = (place < _NEGATIVES * positive.sum(-1, keepdim=True)) & ~positive
    summed = torch.where(positive, away + entropy, 0.0) + torch.where(negative, entropy, 0.0)
    return summed.sum(-1), positive.sum(-1)


def candidates(outputs: Tensor, defaults: Tensor) -> Tensor:
    """Return the 400 most certain pairs of a default box and a class in each image, or all: (images, candidates, 6).

    Each is its class, its corners and its score, the probability of the class; by falling score. Outputs as for
    :func:`losses`.
    """
    scores = outputs[..., 4:].softmax(-1)[..., 1:]
    classes = scores.shape[-1]
    best = scores.flatten(-2).topk(min(_CANDIDATES, scores.shape[-1] * scores.shape[-2]), -1)
    boxes, labels = best.indices // classes, best.indices % classes
    places = decode(outputs[..., :4], defaults).gather(-2, boxes[..., None].expand(*boxes.shape, 4))
    return torch.cat([labels[..., None].to(places.dtype), places, best.values[..., None]], -1)


def distinct(found: Found) -> Found:
    """Leave out scores below 0.01, those that a better one of the class overlaps by 0.45, and all after the 200th."""
    from torchvision.ops import batched_nms

    found = found[found[:, 5] > _MIN_SCORE]
    labels, places, scores = (torch.from_numpy(found[:, part].copy()) for part in (0, slice(1, 5), 5))
    best: Found = found[batched_nms(places, scores, labels, _DUPLICATE).numpy()[:_MOST_FOUND]]
    return best
