"""What a detector has found: candidates as tensors of one shape, and of these the ones that are no duplicates."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcore.detection.default_boxes import decode

Found = NDArray[np.float32]
"""Of an image: (n, 6), class, left, top, right, bottom as shares, score; by falling score."""

_CANDIDATES = 400
_KEPT = 200
_SCORE = 0.01
_DUPLICATE = 0.45  # overlap of two boxes of a class


def candidates(outputs: Tensor, defaults: Tensor) -> Tensor:
    """Return the 400 most certain pairs of a default box and a class in each image, or all: (images, candidates, 6).

    Each is its class, its corners and its score, the probability of the class; by falling score.

    Args:
        outputs: (images, boxes, 4 + 1 + classes), as the loss takes them.
        defaults: (boxes, 4).
    """
    scores = outputs[..., 4:].softmax(-1)[..., 1:]
    classes = scores.shape[-1]
    best = scores.flatten(-2).topk(min(_CANDIDATES, scores.shape[-1] * scores.shape[-2]), -1)
    boxes, labels = best.indices // classes, best.indices % classes
    places = decode(outputs[..., :4], defaults).gather(-2, boxes[..., None].expand(*boxes.shape, 4))
    return torch.cat([labels[..., None].to(places.dtype), places, best.values[..., None]], -1)


def distinct(found: Found) -> Found:
    """Without those of a score below 0.01, those that a better one of the class overlaps by 0.45, and the 201st."""
    from torchvision.ops import batched_nms

    found = found[found[:, 5] > _SCORE]
    labels, places, scores = (torch.from_numpy(found[:, part].copy()) for part in (0, slice(1, 5), 5))
    kept: Found = found[batched_nms(places, scores, labels, _DUPLICATE).numpy()[:_KEPT]]
    return kept
