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


def random_case(seed, images=4, objects=5):
    """Outputs and targets; the first image is full, the last one empty."""
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(images, len(DEFAULTS), 5 + CLASSES, generator=draw)
    place = torch.rand(images, objects, 2, generator=draw) * 0.6
    size = 0.05 + torch.rand(images, objects, 2, generator=draw) * 0.35
    labels = torch.randint(CLASSES, (images, objects, 1), generator=draw).float()
    counts = torch.linspace(objects, 0, images).round().long()
    labels[torch.arange(objects) >= counts[:, None]] = -1
    targets = torch.cat([labels, place, place + size, torch.zeros_like(labels)], -1)
    return outputs, torch.where(labels >= 0, targets, torch.tensor([-1.0, 0, 0, 0, 0, 0]))


def overlap(a, b):
    width, height = (min(a[axis + 2], b[axis + 2]) - max(a[axis], b[axis]) for axis in (0, 1))
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return float(width * height / (areas - width * height))


def plain_loss(outputs, targets):
    """One image's loss and its default boxes that are objects', by the words of the paper."""
    objects, owner, claims = [row for row in targets.tolist() if row[0] >= 0], {}, {}
    boxes = [[x - w / 2, y - h / 2, x + w / 2, y + h / 2] for x, y, w, h in DEFAULTS.tolist()]
    shared = {(index, n): overlap(box, it[1:5]) for index, box in enumerate(boxes) for n, it in enumerate(objects)}
    for index in range(len(boxes)):
        if objects and max(shared[index, n] for n in range(len(objects))) >= 0.5:
            owner[index] = max(range(len(objects)), key=lambda n, index=index: shared[index, n])
    for n in range(len(objects)):
        best = max(range(len(boxes)), key=lambda index, n=n: shared[index, n])
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
        expected = [((left + right) / 2 - cx) / width / 0.1, ((top + bottom) / 2 - cy) / height / 0.1]
        expected += [math.log((right - left) / width) / 0.2, math.log((bottom - top) / height) / 0.2]
        away = [abs(offset - target) for offset, target in zip(row[:4], expected, strict=True)]
        total += sum(it**2 / 2 if it < 1 else it - 0.5 for it in away) + norm - row[5 + int(label)]
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
    outputs, targets = random_case(seed)
    summed, boxes = losses(outputs, targets, DEFAULTS)
    for image in range(len(outputs)):
        loss, count = plain_loss(outputs[image], targets[image])
        assert summed[image].item() == pytest.approx(loss, rel=1e-5) and boxes[image] == count
    assert summed[-1] == 0 and boxes[-1] == 0  # without an object there is nothing to learn
    mean = Detection(DEFAULTS).loss(outputs, targets)
    assert mean.item() == pytest.approx(float(summed.sum() / boxes.sum()), rel=1e-6)


def test_a_perfect_detector_finds_all_and_a_shifted_one_nothing_wherever_an_image_stands():
    (outputs, targets), task = random_case(6), Detection(DEFAULTS)
    labels, boxes = match(targets, DEFAULTS)
    logits = 30.0 * F.one_hot(labels, 1 + CLASSES).float()
    perfect, moved = (
        task.score([part.numpy() for part in task.measure(torch.cat([offsets, logits], -1), targets)])
        for offsets in (encode(boxes, DEFAULTS), encode(boxes, DEFAULTS) + 30)
    )
    assert (*perfect[:2], perfect[4]) == (3, 4, pytest.approx(1.0)) and moved[4] < 0.05  # the fourth image is empty
    flat = task.measure(outputs, targets)
    folded = task.measure(outputs.view(2, 2, *outputs.shape[1:]), targets.view(2, 2, *targets.shape[1:]))
    for first, second in zip(flat, folded, strict=True):
        torch.testing.assert_close(first, second.flatten(0, 1))
    loss, count = plain_loss(outputs[0], targets[0])
    assert flat[1][0].item() == pytest.approx(loss / count)


def test_candidates_are_the_most_certain_pairs_and_duplicates_go():
    outputs = random_case(7)[0][:1]
    boxes = candidates(outputs, DEFAULTS)[0].numpy()
    scores = outputs[0, :, 4:].softmax(-1)[:, 1:].numpy()
    np.testing.assert_allclose(boxes[:, 5], -np.sort(-scores.ravel())[: len(boxes)], rtol=1e-6)
    box, label = divmod(int(scores.argmax()), CLASSES)
    np.testing.assert_allclose(boxes[0, 1:5], decode(outputs[0, :, :4], DEFAULTS)[box].numpy(), rtol=1e-6)
    best = non_maximum_suppression(boxes).tolist()
    assert boxes[0, 0] == label and 0 < len(best) < len(boxes)
    for row in boxes.tolist():  # what is left out is what a better one of the class overlaps
        better = [other for other in best if other[0] == row[0] and other[5] >= row[5] and other != row]
        hidden = any(overlap(row[1:5], other[1:5]) > 0.45 for other in better)
        assert (row in best) is (row[5] > 0.01 and not hidden)


# --- mean average precision, by VOC's calculation --------------------------------------------------------------------


def of_class(detections, targets, label):
    """The average precision of a class, interpolated at 101 recalls; None where there is nothing to find."""
    objects = sum(1 for image in targets for box in image if box[0] == label and not box[5])
    if not objects:
        return None
    claims = [(image, box) for image, boxes in enumerate(detections) for box in boxes if box[0] == label]
    matched, right = set(), []
    for image, box in sorted(claims, key=lambda pair: -pair[1][5]):
        candidates_ = [(number, it) for number, it in enumerate(targets[image]) if it[0] == label]
        over = {number: overlap(box[1:5], it[1:5]) for number, it in candidates_}
        best = max(over, key=over.get, default=None)
        if best is not None and over[best] >= 0.5 and targets[image][best][5]:
            continue  # difficult: neither right nor wrong
        free = {n: over[n] for n, it in candidates_ if over[n] >= 0.5 and (image, n) not in matched and not it[5]}
        if free:
            matched.add((image, max(free, key=free.get)))
        right.append(bool(free))
    hits = np.cumsum(right)
    recall, precision = hits / objects, hits / np.arange(1, len(hits) + 1)
    return np.mean([precision[recall >= level].max(initial=0) for level in np.linspace(0, 1, 101)])


def a_case(seed):
    """Some images, and detections of which about half are near an object."""
    rng = np.random.default_rng(seed)
    images, objects, classes = int(rng.integers(1, 8)), int(rng.integers(1, 6)), int(rng.integers(1, 4))

    def boxes(*shape):
        corner = rng.uniform(0, 0.6, (*shape, 2))
        labels = rng.integers(-1 if len(shape) > 1 else 0, classes, (*shape, 1))
        return np.concatenate([labels, corner, corner + rng.uniform(0.05, 0.4, (*shape, 2)), 0 * labels], -1)

    targets, detections = boxes(images, objects).astype(np.float32), []
    targets[..., 5] = (rng.random((images, objects)) < 0.2) & (targets[..., 0] >= 0)
    for image in range(images):
        count = int(rng.integers(0, 12))
        drawn, near, close = boxes(count), rng.integers(0, objects, count), rng.random(count) < 0.6
        drawn[close, 1:5] = targets[image, near[close], 1:5] + rng.normal(0, 0.02, (int(close.sum()), 4))
        drawn[close, 0] = np.maximum(targets[image, near[close], 0], 0)
        drawn[:, 3:5] = np.maximum(drawn[:, 3:5], drawn[:, 1:3] + 0.01)
        drawn[:, 5] = np.arange(count)[::-1] / 12 + 0.05
        detections.append(drawn.astype(np.float32))
    return detections, targets


def test_it_is_that_of_a_plain_calculation():
    precisions = []
    for seed in range(40):
        detections, targets = a_case(seed)
        each = [of_class(detections, targets, label) for label in range(3)]
        expected = np.mean(measured) if (measured := [value for value in each if value is not None]) else np.nan
        precisions.append(mean_average_precision(detections, targets))
        assert precisions[-1] == pytest.approx(expected, abs=1e-6, nan_ok=True)
        empty = [np.zeros((0, 6), np.float32)] * len(targets)
        assert mean_average_precision(empty, targets) == pytest.approx(0 * expected, nan_ok=True)
    # The cases are neither all right nor all wrong.
    assert 0.2 < np.nanmean(precisions) < 0.7 and np.nanmin(precisions) == 0 and np.isnan(precisions).sum() < 5
