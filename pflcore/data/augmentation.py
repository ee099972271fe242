"""Images changed at random while clients train on them: rotated, cropped, flipped.

What happens to an image is a hash of (seed, round, local step, row of the dataset). So it is another thing in each
epoch and round, and the same whichever executor takes the step, alone or stacked with others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.data.hashes import hashed, mix
from pflcore.seeds import torch_seed


@dataclass(frozen=True)
class Augmentation:
    """What is done to a training image, in this order.

    Attributes:
        seed: Of the run.
        rotation: Degrees that it is turned by at most, either way; bilinear, black where nothing was.
        crop: Width of a black border, in pixels; a place of the image's own size within it is cut out.
        flip: Probability of being mirrored left to right.
    """

    seed: int
    rotation: float = 0.0
    crop: int = 0
    flip: float = 0.0

    def __call__(self, images: Tensor, rows: Tensor, steps: Tensor, round_: int) -> Tensor:
        """Return the images of a batch, changed.

        Args:
            images: [..., C, H, W], uint8, which is also the type of the result unless it is rotated.
            rows: [...], int64, the images' rows in the dataset.
            steps: The local steps that the images are used in, int64, of a shape that goes with `rows`.
            round_: The round.
        """
        drawn = hashed(mix(rows) + steps, 4, torch_seed(self.seed, "augmentation", round_)).flatten(0, -2)
        uniform = (drawn & 0xFFFFFF).float() / 2**24  # [0, 1)
        flat = images.flatten(0, -4)
        if self.rotation:
            flat = rotated(flat.float(), (2 * uniform[:, 0] - 1) * self.rotation)
        if self.crop or self.flip:
            down, right = ((uniform[:, one] * (2 * self.crop + 1)).long() - self.crop for one in (1, 2))
            flat = moved(flat, down, right, uniform[:, 3] < self.flip)
        return flat.view(images.shape)


def rotated(images: Tensor, degrees: Tensor) -> Tensor:
    """Images (batch, C, H, W), turned counter-clockwise about their centres by as many degrees each, (batch,)."""
    height, width = images.shape[-2:]
    angle = degrees * (math.pi / 180)
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # Where each pixel comes from, in coordinates of -1 to 1 along either side.
    rows = torch.stack([cos, -sin * height / width, none]), torch.stack([sin * width / height, cos, none])
    grid = F.affine_grid(torch.stack(rows).permute(2, 0, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def moved(images: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Windows of images (batch, C, H, W) that begin so many pixels down and to the right, then mirrored; each (batch,).

    What lies outside of the image is 0.
    """
    count, channels, height, width = images.shape
    device = images.device
    along = torch.arange(width, device=device).expand(count, width)
    xs = torch.where(mirrored[:, None], width - 1 - along, along) + right[:, None]
    ys = torch.arange(height, device=device) + down[:, None]
    inside = ((ys >= 0) & (ys < height))[:, None, :, None] & ((xs >= 0) & (xs < width))[:, None, None, :]
    each, channel = torch.arange(count, device=device)[:, None, None, None], torch.arange(channels, device=device)
    ys, xs = ys.clamp(0, height - 1)[:, None, :, None], xs.clamp(0, width - 1)[:, None, None, :]
    return images[each, channel[:, None, None], ys, xs] * inside
