"""Local attention: channel and coordinate attention after convolutions, which pFedLA-Att keeps on the client.

Each kind multiplies features (batch, channels, height, width) by a mask between 0 and 1 that is computed from them.
Sources: Liang et al., Personalized Federated Learning with Local Attention (placement, hybrid); Hu et al.,
Squeeze-and-Excitation Networks, CVPR 2018; Wang et al., ECA-Net, CVPR 2020; Hou et al., Coordinate Attention,
CVPR 2021. Sizes that the first paper does not state are chosen to give its printed parameter counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones._base import Backbone
from pflcore.options import option

NONE = "none"
GROUP = "local_attention"
REDUCTION = "Channels per hidden unit of SE, which has at least one unit; of no effect on eca and ca."


@dataclass(frozen=True, kw_only=True)
class AttentiveBackbone(Backbone):
    """A convolutional backbone with optional local attention after each stage of convolutions.

    The base layers draw their initial weights first, so these are the same with and without attention. All entries of
    attention, including its norm, are the group ``local_attention``.
    """

    attention: str = option(NONE, choices=(NONE, "se", "eca", "ca", "hybrid"), help="Attention after each stage.")
    attention_reduction: int = option(16, ge=1, help=REDUCTION)
    attention_kernel: int = option(3, choices=(0, 1, 3, 5, 7, 9), help="Channels that ECA spans; 0 as in its paper.")

    def patterns(self, model: nn.Module) -> Mapping[str, str]:
        patterns = super().patterns(model)
        return patterns if self.attention == NONE else {**patterns, GROUP: r"(conv\d+_|layer\d\.)attention\."}

    def make_attention(self, channels: int) -> LocalAttention:
        """Return the chosen attention, freshly initialised, for features with `channels` channels."""
        reduction, kernel = self.attention_reduction, self.attention_kernel or adaptive_kernel(channels)
        if self.attention == "se":
            return SE(channels, reduction)
        if self.attention == "eca":
            return ECA(kernel)
        return CA(channels) if self.attention == "ca" else Hybrid(channels, reduction, kernel)

    def assemble(self, layers: Mapping[str, nn.Module], stages: Mapping[str, int]) -> nn.Sequential:
        """Return the layers, with the chosen attention at the end of each stage as ``<stage>_attention``. `stages` maps
        the last layer of each stage, named ``<stage>_<layer>``, to its number of output channels."""
        model = nn.Sequential()
        for name, layer in layers.items():
            model.add_module(name, layer)
            if name in stages and self.attention != NONE:
                model.add_module(f"{name.partition('_')[0]}_attention", self.make_attention(stages[name]))
        return model


class LocalAttention(nn.Module):
    """Base of the kinds of attention, which multiply features by a mask that is computed from them."""

    def mask(self, features: Tensor) -> Tensor:
        """Return numbers between 0 and 1 that broadcast to the features (batch, channels, height, width)."""
        raise NotImplementedError(f"{type(self).__name__} does not define mask()")

    def forward(self, features: Tensor) -> Tensor:
        return self.mask(features) * features


class SE(LocalAttention):
    """Squeeze-and-excitation: two linear layers without bias compute a mask over channels from the channels' means."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        units = max(1, channels // reduction)
        self.squeeze = nn.Linear(channels, units, bias=False)
        self.excite = nn.Linear(units, channels, bias=False)

    def mask(self, features: Tensor) -> Tensor:
        numbers: Tensor = self.excite(self.squeeze(features.mean((-2, -1))).relu())
        return numbers.sigmoid()[..., None, None]


class ECA(LocalAttention):
    """Efficient channel attention: a convolution without bias over the channels' means gives a mask over channels."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, kernel, padding=kernel // 2, bias=False)

    def mask(self, features: Tensor) -> Tensor:
        numbers: Tensor = self.conv(features.mean((-2, -1))[:, None])
        return numbers.sigmoid()[:, 0, :, None, None]


class CA(LocalAttention):
    """Coordinate attention: a mask over channels and rows, multiplied by a mask over channels and columns.

    Means over each row and each column pass through one linear map to max(8, channels/32) numbers, batch norm over the
    batch and all positions, and h-swish. Two further maps compute the two masks. All maps have biases.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, channels // 32)
        self.squeeze, self.norm = nn.Conv1d(channels, inner, 1), nn.BatchNorm1d(inner)
        self.rows, self.columns = nn.Conv1d(inner, channels, 1), nn.Conv1d(inner, channels, 1)

    def mask(self, features: Tensor) -> Tensor:
        # Plain means: the gradient of adaptive pooling is not deterministic on CUDA.
        positions = torch.cat([features.mean(-1), features.mean(-2)], -1)
        inner = F.hardswish(self.norm(self.squeeze(positions)))
        along_rows, along_columns = torch.split(inner, list(features.shape[-2:]), -1)
        rows, columns = self.rows(along_rows).sigmoid(), self.columns(along_columns).sigmoid()
        return torch.mul(rows[..., None], columns[..., None, :])


class Hybrid(LocalAttention):
    """A weighted mean of the masks of SE, ECA and CA; weights are the softmax of ``logits``, equal at the start."""

    def __init__(self, channels: int, reduction: int, kernel: int) -> None:
        super().__init__()
        self.se, self.eca, self.ca = SE(channels, reduction), ECA(kernel), CA(channels)
        self.logits = nn.Parameter(torch.zeros(3))

    def mask(self, features: Tensor) -> Tensor:
        se, eca, ca = self.logits.softmax(0).unbind()
        return se * self.se.mask(features) + eca * self.eca.mask(features) + ca * self.ca.mask(features)


def adaptive_kernel(channels: int) -> int:
    """Return ECA's odd kernel for C channels: t = (log2(C) + 1)/2 rounded down, or t + 1 if t is even."""
    rounded = int((math.log2(channels) + 1) / 2)
    return rounded + 1 - rounded % 2
