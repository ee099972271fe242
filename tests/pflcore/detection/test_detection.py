"""Default boxes, SSD's loss, what is found of it and how good that is, against plain loops over images and boxes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcore.detection.ssd import (
    PER_POSITION,
    candidates,
    decode,
    default_boxes,
    distinct,
    encode,
    losses,
    match,
)
from pflcore.detection.task import Detection, mean_average_precision

Array = NDArray[np.float32]
CLASSES = 3
DEFAULTS = default_boxes([(4, 4), (2, 2), (1, 1)], 0.2, 0.9)


def some(seed: int, images: int = 4, most: int = 5) -> tuple[Tensor, Tensor]:
    """Outputs and targets; the first image is full, the last one empty."""
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(images, len(DEFAULTS), 5 + CLASSES, generator=draw)
    place = torch.rand(images, most, 2, generator=draw) * 0.6
    size = 0.05 + torch.rand(images, most, 2, generator=draw) * 0.35
    labels = torch.randint(CLASSES, (images, most, 1), generator=draw).float()
    counts = torch.linspace(most, 0, images).round().long()
    labels[torch.arange(most) >= counts[:, None]] = -1
    targets = torch.cat([labels, place, place + size, torch.zeros_like(labels)], -1)
    return outputs, torch.where(labels >= 0, targets, torch.tensor([-1.0, 0, 0, 0, 0, 0]))


def overlap(one: Any, other: Any) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    whole = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return float(width * height / (whole - width * height))


def plain_loss(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    """One image's loss and its default boxes that are objects', by the words of the paper."""
    objects = [row for row in targets.tolist() if row[0] >= 0]
    boxes = [[x - w / 2, y - h / 2, x + w / 2, y + h / 2] for x, y, w, h in DEFAULTS.tolist()]
    owner: dict[int, list[float]] = {}
    for number, box in enumerate(boxes):
        if objects and max(overlap(box, one[1:5]) for one in objects) >= 0.5:
            owner[number] = max(objects, key=lambda one, box=box: overlap(box, one[1:5]))  # type: ignore[misc]
    claims: dict[int, list[float]] = {}
    for one in objects:
        best = max(range(len(boxes)), key=lambda number, one=one: overlap(boxes[number], one[1:5]))  # type: ignore[misc]
        if best not in claims or overlap(boxes[best], claims[best][1:5]) < overlap(boxes[best], one[1:5]):
            claims[best] = one
    owner |= claims
    total, negatives = 0.0, []
    for number, (cx, cy, width, height) in enumerate(DEFAULTS.tolist()):
        row = outputs[number].tolist()
        norm = math.log(sum(math.exp(value) for value in row[4:]))
        if number not in owner:
            negatives.append(norm - row[4])
            continue
        label, left, top, right, bottom, _ = owner[number]
        wanted = [((left + right) / 2 - cx) / width / 0.1, ((top + bottom) / 2 - cy) / height / 0.1]
        wanted += [math.log((right - left) / width) / 0.2, math.log((bottom - top) / height) / 0.2]
        for is_, should in zip(row[:4], wanted, strict=True):
            away = abs(is_ - should)
            total += away**2 / 2 if away < 1 else away - 0.5
        total += norm - row[5 + int(label)]
    return total + sum(sorted(negatives, reverse=True)[: 3 * len(owner)]), len(owner)


def test_default_boxes_and_their_encoding() -> None:
    """Six at each position, with sizes between the smallest and the largest; decoding is the inverse of encoding."""
    assert DEFAULTS.shape == ((16 + 4 + 1) * PER_POSITION, 4)
    square, wide, tall = DEFAULTS[0], DEFAULTS[1], DEFAULTS[2]
    torch.testing.assert_close(square, torch.tensor([0.125, 0.125, 0.2, 0.2]))
    assert wide[2] / wide[3] == pytest.approx(2) and tall[3] / tall[2] == pytest.approx(2)
    assert DEFAULTS[5, 2] == pytest.approx(math.sqrt(0.2 * 0.55)) and DEFAULTS[-1, 2] == pytest.approx(math.sqrt(0.9))
    assert DEFAULTS[6, 0] == pytest.approx(0.375)  # the next column of the same row
    box = torch.tensor([0.1, 0.3, 0.45, 0.9]).expand(len(DEFAULTS), 4)
    torch.testing.assert_close(decode(encode(box, DEFAULTS), DEFAULTS), box)
    assert decode(torch.full((len(DEFAULTS), 4), 1e4), DEFAULTS).isfinite().all()


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 9])  # of 7, two boxes overlap an object alike
def test_the_loss_is_that_of_a_plain_loop(seed: int) -> None:
    outputs, targets = some(seed)
    summed, boxes = losses(outputs, targets, DEFAULTS)
    for image in range(len(outputs)):
        loss, count = plain_loss(outputs[image], targets[image])
        assert summed[image].item() == pytest.approx(loss, rel=1e-5) and boxes[image] == count
    assert summed[-1] == 0 and boxes[-1] == 0  # without an object there is nothing to learn
    tiny = torch.tensor([[[2.0, 0.6, 0.6, 0.61, 0.61, 0.0], [-1.0, 0, 0, 0, 0, 0]]])
    labels, _ = match(tiny, DEFAULTS)  # every object has a default box, however little it overlaps
    assert labels.sum() == 3 and (labels > 0).sum() == 1
    whole = Detection(DEFAULTS).loss(outputs, targets)
    assert whole.item() == pytest.approx(float(summed.sum() / boxes.sum()), rel=1e-6)


def test_gradients_are_finite_and_the_same_for_stacked_clients() -> None:
    task = Detection(DEFAULTS)
    stacks = [some(seed) for seed in (1, 2, 3)]
    outputs, targets = (torch.stack(part) for part in zip(*stacks, strict=True))
    stacked = torch.func.vmap(torch.func.grad(task.loss))(outputs, targets)
    for one, (own, wanted) in zip(stacked, stacks, strict=True):
        own = own.clone().requires_grad_()
        task.loss(own, wanted).backward()
        assert own.grad is not None and own.grad.isfinite().all() and own.grad.abs().sum() > 0
        torch.testing.assert_close(one, own.grad)


def test_a_perfect_detector_finds_all_and_a_shifted_one_nothing_wherever_an_image_stands() -> None:
    outputs, targets = some(6)
    labels, boxes = match(targets, DEFAULTS)
    logits = 30.0 * torch.nn.functional.one_hot(labels, 1 + CLASSES).float()
    task, perfect = Detection(DEFAULTS), torch.cat([encode(boxes, DEFAULTS), logits], -1)
    right, total, _, _, precision = task.score(tuple(part.numpy() for part in task.measure(perfect, targets)))
    assert (right, total, precision) == (3, 4, pytest.approx(1.0))  # the fourth image is empty
    moved = torch.cat([encode(boxes, DEFAULTS) + 30, logits], -1)
    assert task.score(tuple(part.numpy() for part in task.measure(moved, targets)))[4] < 0.05
    flat = task.measure(outputs, targets)
    folded = task.measure(outputs.view(2, 2, *outputs.shape[1:]), targets.view(2, 2, *targets.shape[1:]))
    for one, other in zip(flat, folded, strict=True):
        torch.testing.assert_close(one, other.flatten(0, 1))
    loss, count = plain_loss(outputs[0], targets[0])
    assert flat[1][0].item() == pytest.approx(loss / count)


def test_candidates_are_the_most_certain_pairs_and_duplicates_go() -> None:
    outputs = some(7)[0][:1]
    found = candidates(outputs, DEFAULTS)[0].numpy()
    scores = outputs[0, :, 4:].softmax(-1)[:, 1:]
    np.testing.assert_allclose(
        found[:, 5], scores.flatten().sort(descending=True).values[: len(found)].numpy(), rtol=1e-6
    )
    box, label = divmod(int(scores.flatten().argmax()), CLASSES)
    np.testing.assert_allclose(found[0, 1:5], decode(outputs[0, :, :4], DEFAULTS)[box].numpy(), rtol=1e-6)
    assert found[0, 0] == label
    kept = distinct(found).tolist()
    assert 0 < len(kept) < len(found)
    for number, one in enumerate(kept):
        assert all(overlap(one[1:5], better[1:5]) <= 0.45 for better in kept[:number] if better[0] == one[0])
    for one in (one for one in found.tolist() if one not in kept and one[5] > 0.01):
        assert any(b[0] == one[0] and b[5] >= one[5] and overlap(one[1:5], b[1:5]) > 0.45 for b in kept)


# --- mean average precision, by VOC's calculation --------------------------------------------------------------------


def of_class(found: list[Array], targets: Array, label: int, recalls: int | None) -> float | None:
    """The average precision of a class: exact, or interpolated at so many recalls."""
    objects = sum(1 for image in targets for one in image if one[0] == label and not one[5])
    if not objects:
        return None
    ranked = sorted(
        ((float(one[5]), image, one) for image, own in enumerate(found) for one in own if one[0] == label),
        key=lambda one: -one[0],
    )
    taken: set[tuple[int, int]] = set()
    right: list[bool] = []
    for _, image, one in ranked:
        there = {number: it for number, it in enumerate(targets[image]) if it[0] == label}
        over = {number: overlap(one[1:5], it[1:5]) for number, it in there.items()}
        best = max(over, key=lambda number: over[number], default=None)
        if best is not None and over[best] >= 0.5 and there[best][5]:
            continue  # difficult: neither right nor wrong
        free = {n: o for n, o in over.items() if o >= 0.5 and (image, n) not in taken and not there[n][5]}
        if free:
            taken.add((image, max(free, key=lambda number: free[number])))
        right.append(bool(free))
    hits = np.cumsum(right)
    recall, precision = hits / objects, hits / np.arange(1, len(hits) + 1)
    falling = np.array([precision[at:].max() for at in range(len(precision))])
    if recalls:
        levels = np.linspace(0, 1, recalls)
        return float(np.mean([falling[recall >= level].max(initial=0) for level in levels]))
    return float(sum(falling[at] * (recall[at] - (recall[at - 1] if at else 0)) for at in range(len(hits))))


def a_case(seed: int) -> tuple[list[Array], Array]:
    """Some images, and detections of which about half are near an object."""
    rng = np.random.default_rng(seed)
    images, most, classes = int(rng.integers(1, 8)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
    targets = np.zeros((images, most, 6), np.float32)
    targets[..., 0] = rng.integers(-1, classes, (images, most))
    targets[..., 1:3] = rng.uniform(0, 0.6, (images, most, 2))
    targets[..., 3:5] = targets[..., 1:3] + rng.uniform(0.05, 0.4, (images, most, 2))
    targets[..., 5] = (rng.random((images, most)) < 0.2) & (targets[..., 0] >= 0)
    found = []
    for image in range(images):
        count = int(rng.integers(0, 12))
        made = np.zeros((count, 6), np.float32)
        made[:, 0] = rng.integers(0, classes, count)
        made[:, 1:3] = rng.uniform(0, 0.6, (count, 2))
        made[:, 3:5] = made[:, 1:3] + rng.uniform(0.05, 0.4, (count, 2))
        near = rng.integers(0, most, count)
        close = rng.random(count) < 0.6
        made[close, 1:5] = targets[image, near[close], 1:5] + rng.normal(0, 0.02, (int(close.sum()), 4))
        made[close, 0] = np.maximum(targets[image, near[close], 0], 0)
        made[:, 3:5] = np.maximum(made[:, 3:5], made[:, 1:3] + 0.01)
        made[:, 5] = rng.permutation(count) / 12 + 0.05
        found.append(made[np.argsort(-made[:, 5])])
    return found, targets


def test_it_is_that_of_a_plain_calculation() -> None:
    made = []
    for seed in range(40):
        found, targets = a_case(seed)
        classes = range(int(targets[..., 0].max()) + 1)
        sampled = [ap for label in classes if (ap := of_class(found, targets, label, 101)) is not None]
        exact = [ap for label in classes if (ap := of_class(found, targets, label, None)) is not None]
        made.append(mean_average_precision(found, targets))
        assert np.isnan(made[-1]) if not sampled else made[-1] == pytest.approx(np.mean(sampled), abs=1e-6)
        assert not exact or made[-1] == pytest.approx(np.mean(exact), abs=0.01)
        nothing = [np.zeros((0, 6), np.float32)] * len(targets)
        assert not sampled or mean_average_precision(nothing, targets) == 0
    # The cases are neither all right nor all wrong.
    assert 0.2 < np.nanmean(made) < 0.7 and np.nanmin(made) == 0 and np.isnan(made).sum() < 5
