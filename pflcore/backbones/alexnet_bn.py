"""The AlexNet with batch norm that FedBN and pFedLA-Att train on Office and DomainNet."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._local_attention import AttentiveBackbone
from pflcore.errors import UserError
from pflcore.options import option

# Of the five convolutions: channels in multiples of the first's, kernel and padding (the first's are options).
_FACTORS = (1, 3, 6, 4, 4)
_KERNELS = (5, 3, 3, 3)
_POOLED = (1, 2, 5)


@BACKBONES.register
class AlexNetBN(AttentiveBackbone):
    """AlexNet with batch norm after each convolution and hidden linear layer.

    On 3×224×224 images it has 57,063,498 parameters for 10 classes, 57,149,535 for 31, 57,288,833 for 65 and 57,432,228
    for 100; the number does not depend on the image size. With pFedLA-Att's local attention after each convolution's
    pooling, or ReLU where there is none, it has for 31 classes 57,189,471 (se), 57,149,550 (eca), 57,184,227 (ca) and
    57,224,193 (hybrid). The paper's table has a stray third row, conv(64, 128, 5×5), which fits neither neighbour;
    without it the table is FedBN's net and has the printed 57.14 M.

    Images of 16 to 62 pixels take ``kernel: 3, stride: 1, padding: 1``, 8×8 digits ``pool_padding: 1`` in addition.
    """

    citation = "Li et al., FedBN, ICLR 2021, released AlexNet; pFedLA-Att's table 8, read as that"
    smoke: ClassVar[dict[str, Any]] = {"width": 4, "hidden": 32, "grid": 1, "kernel": 3, "stride": 1, "padding": 1}
    groups: ClassVar[dict[str, str]] = {
        "conv": r"conv\d+\.",
        "norm": r"(conv|fc)\d+_norm\.",
        "fc": r"fc\d+\.",
        "head": r"head\.",
    }
    width: int = option(64, ge=1, help="Output channels of the first convolution; the others have 3, 6, 4, 4 times it.")
    hidden: int = option(4096, ge=1, help="Width of both hidden linear layers.")
    kernel: int = option(11, ge=1, help="Side of the first convolution's kernel, in pixels.")
    stride: int = option(4, ge=1, help="Step of the first convolution, in pixels.")
    padding: int = option(2, ge=0, help="Zero padding of the first convolution, in pixels.")
    pool_padding: int = option(0, ge=0, le=1, help="Padding of the three max poolings, in pixels; 1 for tiny images.")
    grid: int = option(6, ge=1, help="Side of the grid of averages that the first linear layer takes.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers: dict[str, nn.Module] = {}
        width, sides = shape[0], list(shape[1:])
        for index, factor in enumerate(_FACTORS, 1):
            conv = (
                nn.Conv2d(width, factor * self.width, self.kernel, self.stride, self.padding)
                if index == 1
                else nn.Conv2d(width, factor * self.width, _KERNELS[index - 2], padding=_KERNELS[index - 2] // 2)
            )
            width = conv.out_channels
            layers |= {f"conv{index}": conv, f"conv{index}_norm": nn.BatchNorm2d(width), f"conv{index}_relu": nn.ReLU()}
            if index == 1:
                sides = [(side + 2 * self.padding - self.kernel) // self.stride + 1 for side in sides]
            if index in _POOLED:
                layers[f"conv{index}_pool"] = nn.MaxPool2d(3, 2, self.pool_padding)
                sides = [(side + 2 * self.pool_padding - 3) // 2 + 1 for side in sides]
            if min(sides) < 1:
                raise UserError(
                    f"backbone {self.name}: kernel {self.kernel} with stride {self.stride}, padding {self.padding} and "
                    f"pool_padding {self.pool_padding} leaves nothing of {shape[1]}×{shape[2]} images after "
                    f"convolution {index}; use a smaller kernel and stride, or more padding"
                )
        layers |= {"average": _Grid(self.grid), "flatten": nn.Flatten()}
        width *= self.grid**2
        for index in (1, 2):
            layers |= {f"fc{index}": nn.Linear(width, self.hidden), f"fc{index}_norm": nn.BatchNorm1d(self.hidden)}
            layers[f"fc{index}_relu"] = nn.ReLU()
            width = self.hidden
        layers["head"] = nn.Linear(width, classes)
        stages = {
            f"conv{index}_pool" if index in _POOLED else f"conv{index}_relu": factor * self.width
            for index, factor in enumerate(_FACTORS, 1)
        }
        return self.assemble(layers, stages)


class _Grid(nn.Module):
    """Averages over a grid of windows, as ``nn.AdaptiveAvgPool2d``, whose gradient on CUDA is not deterministic."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        for axis in (-2, -1):
            if images.shape[axis] != self.side:
                images = torch.stack(
                    [
                        images.narrow(axis, start, stop - start).mean(axis)
                        for start, stop in _windows(images.shape[axis], self.side)
                    ],
                    axis,
                )
        return images


def _windows(length: int, count: int) -> list[tuple[int, int]]:
    """Return `count` windows, first and behind the last position, that cover `length` positions and may overlap."""
    return [(index * length // count, -(-(index + 1) * length // count)) for index in range(count)]
