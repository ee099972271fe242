"""Augmentation: against PyTorch's own flips, turns and paddings, and the same for every executor."""

from dataclasses import replace

import pytest
import torch
from support.tiny import TEXT, backbone, federation, method, run, training
from torch.nn import functional as F

from pflcore.data.augmentation import Augmentation, crop_and_flip, rotate
from pflcore.data.federation import FederatedData
from pflcore.errors import UserError

SEED = 3
HOW = Augmentation(SEED, 15.0, 2, 0.5)
IMAGES = torch.arange(2 * 3 * 6 * 6, dtype=torch.uint8).view(2, 3, 6, 6)
FIRST = torch.tensor(0)


def test_flips_are_as_many_as_said_and_independent_of_steps_and_rounds():
    """0.3 of 4,000, within four standard deviations, and no more often together."""
    images, rows = torch.tensor([0, 1], dtype=torch.uint8).expand(4000, 1, 1, 2), torch.arange(4000)
    flip = Augmentation(SEED, flip=0.3)
    flips = [flip(images, rows, torch.tensor(step), round_)[:, 0, 0, 0] == 1 for round_ in (1, 2) for step in (0, 1)]
    for number, drawn in enumerate(flips):
        assert abs(float(drawn.float().mean()) - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5
        for other in flips[:number]:
            assert abs(float((drawn & other).float().mean()) - 0.09) < 4 * (0.09 * 0.91 / 4000) ** 0.5
    changed = Augmentation(SEED, flip=1.0)(IMAGES, torch.arange(2), FIRST, 1)
    assert torch.equal(changed, torch.flip(IMAGES, (-1,))) and changed.dtype == torch.uint8


def test_crops_are_windows_of_the_padded_image_each_as_often():
    changed = Augmentation(SEED, crop=1)(IMAGES[:1].expand(5000, -1, -1, -1), torch.arange(5000), FIRST, 1)
    padded = F.pad(IMAGES[0], (1, 1, 1, 1))
    windows = [padded[:, y : y + 6, x : x + 6] for y in range(3) for x in range(3)]
    counts = [int((changed == window).flatten(1).all(1).sum()) for window in windows]
    assert sum(counts) == 5000 and max(abs(count - 5000 / 9) for count in counts) < 4 * (5000 * 8 / 81) ** 0.5
    changed = crop_and_flip(IMAGES, torch.tensor([1, -2]), torch.tensor([-1, 2]), torch.tensor([True, False]))
    padded = F.pad(IMAGES, (2, 2, 2, 2))
    assert torch.equal(changed[0], torch.flip(padded[0, :, 3:9, 1:7], (-1,)))  # mirrored after it is cut
    assert torch.equal(changed[1], padded[1, :, 0:6, 4:10])


def test_turns_are_pytorchs_and_angles_are_within_bounds_and_spread():
    for quarters in (1, 2, 3):
        turned = rotate(IMAGES.float(), torch.full((2,), 90.0 * quarters))
        torch.testing.assert_close(turned, torch.rot90(IMAGES.float(), quarters, (-2, -1)), atol=1e-3, rtol=0)
    line = torch.zeros(300, 1, 33, 33, dtype=torch.uint8)
    line[:, :, 16, 26] = 200  # ten pixels to the right of the centre
    top = Augmentation(SEED, rotation=30.0)(line, torch.arange(300), FIRST, 1).flatten(1).argmax(1)
    angles = torch.atan2(16 - top // 33, top % 33 - 16) * 180 / torch.pi
    assert -34 < float(angles.min()) < -24 and 24 < float(angles.max()) < 34 and abs(float(angles.mean())) < 4


def test_a_row_changes_the_same_way_in_any_batch_and_from_the_host(monkeypatch):
    rows, steps = torch.tensor([[5, 7], [9, 2]]), torch.tensor([[1], [4]])
    images = torch.randint(256, (2, 2, 1, 8, 8), dtype=torch.uint8)
    stacked = HOW(images, rows, steps, 3)
    for client in range(2):
        torch.testing.assert_close(stacked[client], HOW(images[client], rows[client], steps[client, 0], 3))
    for other in (HOW(images, rows, steps + 1, 3), HOW(images, rows, steps, 4)):
        assert not torch.equal(stacked, other)
    data = replace(federation(), augmentation=HOW)
    parts, steps = [data.train[0][:5], data.train[1][:3]], [torch.tensor(0), torch.tensor(1)]
    resident, plain = list(data.batches(parts, 2, steps)), list(data.batches(parts, 2))
    monkeypatch.setattr(FederatedData, "resident", False)
    for expected, other, unchanged in zip(resident, data.batches(parts, 2, steps), plain, strict=True):
        assert torch.equal(expected.inputs, other.inputs) and not torch.equal(expected.inputs, unchanged.inputs)
    with pytest.raises(UserError, match="are of images; the dataset is of text"):
        run(method("fedavg"), backbone(TEXT), training=training(augment_flip=0.5))
