"""SSD's default boxes, loss and detections (Liu et al., SSD: Single Shot MultiBox Detector, ECCV 2016, section 2.2).

Boxes are fractions of the image's width and height. All functions are tensor operations of fixed shapes, so that
clients can be stacked.
"""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

PER_POSITION = 6  # default boxes: one for each ratio of width to height, and a square of a size between two maps
Boxes = NDArray[np.float32]
"""The detections of an image, (n, 6): class, left, top, right, bottom as fractions, score; by falling score."""

_RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)
_CENTRE, _SIZE = 0.1, 0.2  # divisors of the offsets of the centre and of the logarithm of the size
_MAX_LOG_SIZE = 4.0  # so that no untrained model overflows
_MIN_SIZE = 1e-6
_MATCHES = 0.5  # overlap from which a default box is assigned to an object
_NEGATIVES = 3  # counted default boxes of the background, for each that is assigned to an object
_CANDIDATES, _MAX_DETECTIONS, _MIN_SCORE, _DUPLICATE = 400, 200, 0.01, 0.45  # the last: overlap of two boxes of a class


def default_boxes(grids: Sequence[tuple[int, int]], smallest: float, largest: float) -> Tensor:
    """Return boxes as centre and size (x, y, width, height): (boxes, 4), map after map, row after row. Grids are the
    height and width of each map, the finest first; the sizes of squares are evenly spaced over the maps."""
    steps = max(1, len(grids) - 1)
    sizes = [smallest + (largest - smallest) * index / steps for index in range(len(grids))] + [1.0]
    boxes = []
    for (rows, columns), size, next_size in zip(grids, sizes, sizes[1:], strict=False):
        forms = [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in _RATIOS]
        forms.append((math.sqrt(size * next_size),) * 2)
        for row in range(rows):
            for column in range(columns):
                boxes += [((column + 0.5) / columns, (row + 0.5) / rows, *form) for form in forms]
    return torch.tensor(boxes)


def corners(boxes: Tensor) -> Tensor:
    """Return boxes (…, 4) given as centre and size as left, top, right, bottom."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of all pairs, (…, m, n), of corners (…, m, 4) and (…, n, 4)."""
    first, second = a[..., :, None, :], b[..., None, :, :]
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    sides = (high - low).clamp_min(0)
    shared = sides[..., 0] * sides[..., 1]
    return shared / (_area(first) + _area(second) - shared).clamp_min(_MIN_SIZE)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def encode(boxes: Tensor, defaults: Tensor) -> Tensor:
    """Return the offsets of boxes, as corners (…, boxes, 4), from the default boxes (boxes, 4)."""
    centre, size = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]).clamp_min(_MIN_SIZE)
    shift = (centre - defaults[:, :2]) / defaults[:, 2:] / _CENTRE
    return torch.cat([shift, (size / defaults[:, 2:]).log() / _SIZE], -1)


def decode(offsets: Tensor, defaults: Tensor) -> Tensor:
    """Return the inverse of :func:`encode`: corners, cut off at the image's edges."""
    centre = offsets[..., :2] * _CENTRE * defaults[:, 2:] + defaults[:, :2]
    size = (offsets[..., 2:] * _SIZE).clamp_max(_MAX_LOG_SIZE).exp() * defaults[:, 2:]
    return corners(torch.cat([centre, size], -1)).clamp(0, 1)


def match(targets: Tensor, defaults: Tensor) -> tuple[Tensor, Tensor]:
    """Return the object of each default box: classes from 1, 0 for the background, (images, boxes), and corners,
    (images, boxes, 4).

    A default box is assigned to the object that it overlaps most, if by at least one half. Every object also gets the
    default box that it overlaps most; if several objects share that box, the one with the largest overlap gets it.
    Targets are (images, objects, 6): class, -1 for no object, corners, and whether it is difficult, which is not used.
    """
    exists = targets[..., 0] >= 0
    overlap = torch.where(exists[..., None], overlaps(targets[..., 1:5], corners(defaults)), -1.0)
    best = overlap.argmax(-1, keepdim=True)
    claimed = (torch.arange(len(defaults), device=defaults.device) == best) & exists[..., None]
    largest, index = (overlap + 2.0 * claimed).max(-2)  # a claim counts more than any overlap
    objects = targets.gather(-2, index[..., None].expand(*index.shape, targets.shape[-1]))
    labels = torch.where(largest >= _MATCHES, objects[..., 0] + 1, 0.0).long()
    return labels, objects[..., 1:5]


def losses(outputs: Tensor, targets: Tensor, defaults: Tensor) -> tuple[Tensor, Tensor]:
    """Return each image's loss, a sum, and its number of default boxes that are assigned to objects.

    The loss is the smooth L1 distance of these boxes' offsets, their cross-entropy, and that of the hardest boxes of
    the background, three for each of them. Outputs are (images, boxes, 4 + 1 + classes): offsets, and logits of the
    background and of the classes; targets and defaults as for :func:`match`.
    """
    offsets, logits = outputs[..., :4], outputs[..., 4:]
    labels, boxes = match(targets, defaults)
    positive = labels > 0
    distance = F.smooth_l1_loss(offsets, encode(boxes, defaults), reduction="none").sum(-1)
    entropy = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    hardness = torch.where(positive, -1.0, entropy.detach())
    rank = hardness.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    negative = (rank < _NEGATIVES * positive.sum(-1, keepdim=True)) & ~positive
    summed = torch.where(positive, distance + entropy, 0.0) + torch.where(negative, entropy, 0.0)
    return summed.sum(-1), positive.sum(-1)


def candidates(outputs: Tensor, defaults: Tensor) -> Tensor:
    """Return the 400 most certain pairs of a default box and a class in each image, or all: (images, candidates, 6).

    A candidate is class, corners and score, the probability of the class; by falling score. Outputs as for
    :func:`losses`.
    """
    scores = outputs[..., 4:].softmax(-1)[..., 1:]
    classes = scores.shape[-1]
    best = scores.flatten(-2).topk(min(_CANDIDATES, scores.shape[-1] * scores.shape[-2]), -1)
    boxes, labels = best.indices // classes, best.indices % classes
    corners_ = decode(outputs[..., :4], defaults).gather(-2, boxes[..., None].expand(*boxes.shape, 4))
    return torch.cat([labels[..., None].to(corners_.dtype), corners_, best.values[..., None]], -1)


def non_maximum_suppression(boxes: Boxes) -> Boxes:
    """Return at most 200 boxes, without scores below 0.01 and those that a better one of the class overlaps by 0.45."""
    from torchvision.ops import batched_nms

    boxes = boxes[boxes[:, 5] > _MIN_SCORE]
    labels, places, scores = (torch.from_numpy(boxes[:, part].copy()) for part in (0, slice(1, 5), 5))
    return cast(Boxes, boxes[batched_nms(places, scores, labels, _DUPLICATE).numpy()[:_MAX_DETECTIONS]])
