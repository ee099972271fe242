"""Default boxes, SSD's loss, what is found of it and how good that is, against plain loops over images and boxes."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pflcore.detection.ssd import (
    PER_POSITION,
    candidates,
    decode,
    default_boxes,
    encode,
    losses,
    match,
    non_maximum_suppression,
)
from pflcore.detection.task import Detection, mean_average_precision

CLASSES = 3
DEFAULTS = default_boxes([(4, 4), (2, 2), (1, 1)], 0.2, 0.9)


def some(seed, images=4, most=5):
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


def overlap(one, other):
    width, height = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    if width <= 0 or height <= 0:
        return 0.0
    whole = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return float(width * height / (whole - width * height))


def plain_loss(outputs, targets):
    """One image's loss and its default boxes that are objects', by the words of the paper."""
    objects, owner, claims = [row for row in targets.tolist() if row[0] >= 0], {}, {}
    boxes = [[x - w / 2, y - h / 2, x + w / 2, y + h / 2] for x, y, w, h in DEFAULTS.tolist()]
    shared = {(at, n): overlap(box, one[1:5]) for at, box in enumerate(boxes) for n, one in enumerate(objects)}
    for at in range(len(boxes)):
        if objects and max(shared[at, n] for n in range(len(objects))) >= 0.5:
            owner[at] = max(range(len(objects)), key=lambda n, at=at: shared[at, n])
    for n in range(len(objects)):
        best = max(range(len(boxes)), key=lambda at, n=n: shared[at, n])
        if best not in claims or shared[best, claims[best]] < shared[best, n]:
            claims[best] = n
    owner |= claims
    total, negatives = 0.0, []
    for number, (cx, cy, width, height) in enumerate(DEFAULTS.tolist()):
        row = outputs[number].tolist()
        norm = math.log(sum(math.exp(value) for value in row[4:]))
        if number not in owner:
            negatives.append(norm - row[4])
            continue
        label, left, top, right, bottom, _ = objects[owner[number]]
        wanted = [((left + right) / 2 - cx) / width / 0.1, ((top + bottom) / 2 - cy) / height / 0.1]
        wanted += [math.log((right - left) / width) / 0.2, math.log((bottom - top) / height) / 0.2]
        away = [abs(found - should) for found, should in zip(row[:4], wanted, strict=True)]
        total += sum(one**2 / 2 if one < 1 else one - 0.5 for one in away) + norm - row[5 + int(label)]
    return total + sum(sorted(negatives, reverse=True)[: 3 * len(owner)]), len(owner)


def test_default_boxes_and_their_encoding():
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


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 9])  # of 7, two boxes overlap an object by the same
def test_the_loss_is_that_of_a_plain_loop(seed):
    outputs, targets = some(seed)
    summed, boxes = losses(outputs, targets, DEFAULTS)
    for image in range(len(outputs)):
        loss, count = plain_loss(outputs[image], targets[image])
        assert summed[image].item() == pytest.approx(loss, rel=1e-5) and boxes[image] == count
    assert summed[-1] == 0 and boxes[-1] == 0  # without an object there is nothing to learn
    whole = Detection(DEFAULTS).loss(outputs, targets)
    assert whole.item() == pytest.approx(float(summed.sum() / boxes.sum()), rel=1e-6)


def test_a_perfect_detector_finds_all_and_a_shifted_one_nothing_wherever_an_image_stands():
    (outputs, targets), task = some(6), Detection(DEFAULTS)
    labels, boxes = match(targets, DEFAULTS)
    logits = 30.0 * F.one_hot(labels, 1 + CLASSES).float()
    perfect, moved = (
        task.score([part.numpy() for part in task.measure(torch.cat([offsets, logits], -1), targets)])
        for offsets in (encode(boxes, DEFAULTS), encode(boxes, DEFAULTS) + 30)
    )
    assert (*perfect[:2], perfect[4]) == (3, 4, pytest.approx(1.0)) and moved[4] < 0.05  # the fourth image is empty
    flat = task.measure(outputs, targets)
    folded = task.measure(outputs.view(2, 2, *outputs.shape[1:]), targets.view(2, 2, *targets.shape[1:]))
    for one, other in zip(flat, folded, strict=True):
        torch.testing.assert_close(one, other.flatten(0, 1))
    loss, count = plain_loss(outputs[0], targets[0])
    assert flat[1][0].item() == pytest.approx(loss / count)


def test_candidates_are_the_most_certain_pairs_and_duplicates_go():
    outputs = some(7)[0][:1]
    found = candidates(outputs, DEFAULTS)[0].numpy()
    scores = outputs[0, :, 4:].softmax(-1)[:, 1:].numpy()
    np.testing.assert_allclose(found[:, 5], -np.sort(-scores.ravel())[: len(found)], rtol=1e-6)
    box, label = divmod(int(scores.argmax()), CLASSES)
    np.testing.assert_allclose(found[0, 1:5], decode(outputs[0, :, :4], DEFAULTS)[box].numpy(), rtol=1e-6)
    kept = non_maximum_suppression(found).tolist()
    assert found[0, 0] == label and 0 < len(kept) < len(found)
    for one in found.tolist():  # what is left out is what a better one of the class overlaps
        better = [other for other in kept if other[0] == one[0] and other[5] >= one[5] and other != one]
        hidden = any(overlap(one[1:5], other[1:5]) > 0.45 for other in better)
        assert (one in kept) is (one[5] > 0.01 and not hidden)


# --- mean average precision, by VOC's calculation --------------------------------------------------------------------


def of_class(found, targets, label):
    """The average precision of a class, interpolated at 101 recalls; None where there is nothing to find."""
    objects = sum(1 for image in targets for one in image if one[0] == label and not one[5])
    if not objects:
        return None
    mine = [(image, one) for image, own in enumerate(found) for one in own if one[0] == label]
    taken, right = set(), []
    for image, one in sorted(mine, key=lambda pair: -pair[1][5]):
        there = [(number, it) for number, it in enumerate(targets[image]) if it[0] == label]
        over = {number: overlap(one[1:5], it[1:5]) for number, it in there}
        best = max(over, key=over.get, default=None)
        if best is not None and over[best] >= 0.5 and targets[image][best][5]:
            continue  # difficult: neither right nor wrong
        free = {n: over[n] for n, it in there if over[n] >= 0.5 and (image, n) not in taken and not it[5]}
        if free:
            taken.add((image, max(free, key=free.get)))
        right.append(bool(free))
    hits = np.cumsum(right)
    recall, precision = hits / objects, hits / np.arange(1, len(hits) + 1)
    return np.mean([precision[recall >= level].max(initial=0) for level in np.linspace(0, 1, 101)])


def a_case(seed):
    """Some images, and detections of which about half are near an object."""
    rng = np.random.default_rng(seed)
    images, most, classes = int(rng.integers(1, 8)), int(rng.integers(1, 6)), int(rng.integers(1, 4))

    def boxes(*shape):
        corner = rng.uniform(0, 0.6, (*shape, 2))
        labels = rng.integers(-1 if len(shape) > 1 else 0, classes, (*shape, 1))
        return np.concatenate([labels, corner, corner + rng.uniform(0.05, 0.4, (*shape, 2)), 0 * labels], -1)

    targets, found = boxes(images, most).astype(np.float32), []
    targets[..., 5] = (rng.random((images, most)) < 0.2) & (targets[..., 0] >= 0)
    for image in range(images):
        count = int(rng.integers(0, 12))
        made, near, close = boxes(count), rng.integers(0, most, count), rng.random(count) < 0.6
        made[close, 1:5] = targets[image, near[close], 1:5] + rng.normal(0, 0.02, (int(close.sum()), 4))
        made[close, 0] = np.maximum(targets[image, near[close], 0], 0)
        made[:, 3:5] = np.maximum(made[:, 3:5], made[:, 1:3] + 0.01)
        made[:, 5] = np.arange(count)[::-1] / 12 + 0.05
        found.append(made.astype(np.float32))
    return found, targets


def test_it_is_that_of_a_plain_calculation():
    made = []
    for seed in range(40):
        found, targets = a_case(seed)
        each = [of_class(found, targets, label) for label in range(3)]
        expected = np.mean(known) if (known := [one for one in each if one is not None]) else np.nan
        made.append(mean_average_precision(found, targets))
        assert made[-1] == pytest.approx(expected, abs=1e-6, nan_ok=True)
        nothing = [np.zeros((0, 6), np.float32)] * len(targets)
        assert mean_average_precision(nothing, targets) == pytest.approx(0 * expected, nan_ok=True)
    # The cases are neither all right nor all wrong.
    assert 0.2 < np.nanmean(made) < 0.7 and np.nanmin(made) == 0 and np.isnan(made).sum() < 5
