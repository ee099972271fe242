"""Classes as the leaves of a binary tree, in which classes with features alike part late."""

from __future__ import annotations

import torch
from torch import Tensor

# Lloyd's algorithm ends when nothing moves; that ties of rounded distances could go round is why there is an end.
_MAX_STEPS = 100


def class_tree(means: Tensor, present: Tensor) -> Tensor:
    """Return the inner nodes, from the root down: (nodes, classes), 1 on a node's first side, −1 on its other, else 0.

    Of means (classes, features), and which classes are present (classes,); n of them make n − 1 nodes.
    """
    nodes: list[Tensor] = []
    waiting = [present.nonzero().flatten()]
    while waiting:
        classes = waiting.pop(0)
        if len(classes) < 2:
            continue
        first = kmeans2(means[classes])
        sides = torch.zeros(len(means), dtype=torch.long, device=means.device)
        sides[classes] = torch.where(first, 1, -1)
        nodes.append(sides)
        waiting += [classes[first], classes[~first]]
    return torch.stack(nodes) if nodes else torch.zeros(0, len(means), dtype=torch.long, device=means.device)


def kmeans2(points: Tensor) -> Tensor:
    """Return which of at least two points (points, features) are on the side of the first: two clusters by k-means.

    It begins once with each point and the one furthest from it; the best end is taken. Points that are equal, or not
    finite, are divided in the middle of their order.
    """
    points = points.double()
    away = (points.unsqueeze(1) - points).square().sum(-1)
    centres = torch.stack([points, points[away.argmax(1)]], 1)
    near = torch.zeros_like(away, dtype=torch.long)
    for _ in range(_MAX_STEPS):
        distances = (points.unsqueeze(1) - centres.unsqueeze(1)).square().sum(-1)
        before, near = near, distances.argmin(-1)
        members = torch.stack([near == 0, near == 1], 1).to(points.dtype)
        centres = members @ points / members.sum(-1, keepdim=True).clamp_min(1)
        if torch.equal(near, before):
            break
    best = near[distances.amin(-1).sum(-1).argmin()]
    first = best == best[0]
    return torch.arange(len(points), device=points.device) < len(points) // 2 if bool(first.all()) else first
