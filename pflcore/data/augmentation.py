"""Random changes of images, drawn anew in every round: rotations, crops, flips and noise.

Numbers are hashes of (seed, round, row) and, except for noise, the local step: equal on all devices and executors.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.seeds import torch_seed


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a training image, applied in the order of the fields."""

    seed: int  # of the run
    rotation: float = 0.0  # largest angle in degrees, in either direction; bilinear, with black corners
    crop: int = 0  # width in pixels of a black border; a window of the image's size is cut out of the result
    flip: float = 0.0  # probability of mirroring left to right

    def __call__(self, images: Tensor, rows: Tensor, steps: Tensor, round_: int) -> Tensor:
        """Return the changed images [..., C, H, W] of a batch, given as uint8; rotated ones are float32.

        `rows` are their rows in the dataset, int64 [...]; `steps`, the local steps that use them, broadcast to `rows`.
        """
        bits = _hash(_mix(rows) + steps, 4, torch_seed(self.seed, "augmentation", round_)).flatten(0, -2)
        uniform = (bits & 0xFFFFFF).float() / 2**24  # [0, 1)
        flat = images.flatten(0, -4)
        if self.rotation:
            flat = rotate(flat.float(), (2 * uniform[:, 0] - 1) * self.rotation)
        if self.crop or self.flip:
            down, right = (uniform[:, 1:3] * (2 * self.crop + 1)).long().sub(self.crop).unbind(1)
            flat = crop_and_flip(flat, down, right, uniform[:, 3] < self.flip)
        return flat.view(images.shape)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate images (batch, C, H, W) counter-clockwise about their centres by an angle each, `degrees` (batch,)."""
    height, width = images.shape[-2:]
    angle = degrees * (math.pi / 180)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # The source of each pixel, in coordinates from -1 to 1 along each side.
    rows = torch.stack([cos, -sin * height / width, zero]), torch.stack([sin * width / height, cos, zero])
    grid = F.affine_grid(torch.stack(rows).permute(2, 0, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def crop_and_flip(images: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Return windows of images (batch, C, H, W), `mirrored` or not, that begin `down` and `right` pixels into them.

    The other arguments are (batch,). Pixels outside the image are 0.
    """
    count, channels, height, width = images.shape
    device = images.device
    columns = torch.arange(width, device=device).expand(count, width)
    xs = torch.where(mirrored[:, None], width - 1 - columns, columns) + right[:, None]
    ys = torch.arange(height, device=device) + down[:, None]
    inside = ((ys >= 0) & (ys < height))[:, None, :, None] & ((xs >= 0) & (xs < width))[:, None, None, :]
    image, channel = torch.arange(count, device=device)[:, None, None, None], torch.arange(channels, device=device)
    ys, xs = ys.clamp(0, height - 1)[:, None, :, None], xs.clamp(0, width - 1)[:, None, None, :]
    return images[image, channel[:, None, None], ys, xs] * inside


def add_noise(images: Tensor, std: Tensor, rows: Tensor, key: int) -> Tensor:
    """Add Gaussian noise of `std` [...] to normalised images [..., C, H, W]; clamp to 0..255 as FedTP's code does.

    With the same key, a row of the dataset always gets the same noise.
    """
    bits = _hash(rows, images.shape[-3:].numel(), key)
    # The Box-Muller transform of two 24-bit numbers; the first is never 0.
    first, second = ((bits & 0xFFFFFF).float() + 1) / 2**24, ((bits >> 24) & 0xFFFFFF).float() / 2**24
    noise = (-2 * first.log()).sqrt_() * (2 * math.pi * second).cos_()
    return (images + noise.view_as(images) * std[..., None, None, None]).clamp_(0, 255)


def _hash(ids: Tensor, count: int, key: int) -> Tensor:
    """Return `count` 64-bit hashes of (key, id, position) for each id: int64 [..., count]."""
    position = torch.arange(count, device=ids.device)
    return _mix(_mix(ids[..., None] + _mix(torch.tensor(key, device=ids.device))) + position)


def _mix(bits: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser (Steele et al., 2014): each bit of the result depends on all bits of the input."""
    bits = bits + -0x61C8864680B583EB
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return bits ^ ((bits >> 31) & 0x1FFFFFFFF)
