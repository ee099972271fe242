"""SSD's loss as tensor operations of fixed shapes, so that clients can be stacked and no image is looked at by itself.

Source: Liu et al., SSD: Single Shot MultiBox Detector, ECCV 2016, section 2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.detection.default_boxes import corners, encode, overlaps

_MATCHES = 0.5  # overlap from which a default box is an object's
_NEGATIVES = 3  # default boxes of the background that count, for each that is an object's


def match(targets: Tensor, defaults: Tensor) -> tuple[Tensor, Tensor]:
    """Return which object each default box is to find.

    It is the one that it overlaps most, if that is by half at least; and every object has the default box that it
    overlaps most, whatever that has of others. Where several have the same, the one that overlaps it most has it.

    Args:
        targets: (images, objects, 6): class, -1 for none, corners, and whether it is difficult, which makes no
            difference here.
        defaults: (boxes, 4), centre and size.

    Returns:
        Classes counted from 1, 0 for the background, (images, boxes); and corners, (images, boxes, 4), of no meaning
        for the background.
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
    """Of each image the loss, not yet divided by anything, and the number of default boxes that are objects'.

    The loss is the smooth L1 distance of their offsets, their cross-entropy, and that of the hardest boxes of the
    background, three for each of them.

    Args:
        outputs: (images, boxes, 4 + 1 + classes): offsets, and logits of the background and of the classes.
        targets, defaults: As for :func:`match`.
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
