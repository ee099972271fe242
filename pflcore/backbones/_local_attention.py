"""Channel and coordinate attention after convolutions, which pFedLA-Att keeps on the client, and the options for it.

Each kind computes a mask between 0 and 1 from the features h of shape (batch, channels, height, width) and multiplies
them by it. The hybrid multiplies them by a convex combination of the masks of all kinds, with weights that are learned
for each position in the network.

Sources: Liang et al., Personalized Federated Learning with Local Attention (placement, hybrid); Hu et al.,
Squeeze-and-Excitation Networks, CVPR 2018; Wang et al., ECA-Net, CVPR 2020; Hou et al., Coordinate Attention for
Efficient Mobile Network Design, CVPR 2021. The sizes that the first paper leaves open are those that give its printed
parameter counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pflcore.backbones._base import Backbone
from pflcore.options import option

NONE = "none"
GROUP = "local_attention"
REDUCTION = "Channels per hidden unit of SE, which has at least one unit; of no effect on eca and ca."


@dataclass(frozen=True, kw_only=True)
class AttentiveBackbone(Backbone):
    """A convolutional backbone that takes local attention after each stage of convolutions.

    The base layers draw their initial weights first, so they begin the same with and without attention. Everything that
    attention adds, its own norm included, is the group ``local_attention``; without attention there is no such group.
    """

    attention: str = option(
        NONE, choices=(NONE, "se", "eca", "ca", "hybrid"), help="Attention after each stage; hybrid mixes the kinds."
    )
    attention_reduction: int = option(16, ge=1, help=REDUCTION)
    attention_kernel: int = option(
        3, choices=(0, 1, 3, 5, 7, 9), help="Channels that ECA's convolution spans; 0 derives it as ECA-Net does."
    )

    def patterns(self, model: nn.Module) -> Mapping[str, str]:
        own = {} if self.attention == NONE else {GROUP: r"(conv\d+_|layer\d\.)attention\."}
        return {**super().patterns(model), **own}

    def make_attention(self, channels: int) -> LocalAttention:
        """Return the chosen attention for features of so many channels; there must be one."""
        return local_attention(self.attention, channels, self.attention_reduction, self.attention_kernel)

    def assemble(self, layers: Mapping[str, nn.Module], stages: Mapping[str, int]) -> nn.Sequential:
        """Return the layers, which have drawn their weights, with the chosen attention at the end of each stage.

        `stages` are the last layer of each, named ``<stage>_<layer>``, and the channels that it gives; the attention is
        ``<stage>_attention``.
        """
        wanted = {} if self.attention == NONE else stages
        own = {last: self.make_attention(channels) for last, channels in wanted.items()}
        model = nn.Sequential()
        for name, layer in layers.items():
            model.add_module(name, layer)
            if name in own:
                model.add_module(f"{name.partition('_')[0]}_attention", own[name])
        return model


class LocalAttention(nn.Module):
    """Features times a mask that is computed from them. Subclasses define :meth:`mask`."""

    def mask(self, features: Tensor) -> Tensor:
        """Return numbers between 0 and 1 that broadcast to the features (batch, channels, height, width)."""
        raise NotImplementedError(f"{type(self).__name__} does not define mask()")

    def forward(self, features: Tensor) -> Tensor:
        return self.mask(features) * features


class SE(LocalAttention):
    """Squeeze-and-excitation: a mask over channels by two linear layers without bias from the channels' means.

    Of C channels there are C/reduction hidden units, rounded down, and at least one.
    """

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        units = max(1, channels // reduction)
        self.squeeze = nn.Linear(channels, units, bias=False)
        self.excite = nn.Linear(units, channels, bias=False)

    def mask(self, features: Tensor) -> Tensor:
        numbers: Tensor = self.excite(self.squeeze(features.mean((-2, -1))).relu())
        return numbers.sigmoid()[..., None, None]


class ECA(LocalAttention):
    """Efficient channel attention: a mask over channels by a convolution without bias along the channels' means.

    A channel's number depends on `kernel` neighbouring ones, odd; beyond the first and last are zeros.
    """

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, kernel, padding=kernel // 2, bias=False)

    def mask(self, features: Tensor) -> Tensor:
        numbers: Tensor = self.conv(features.mean((-2, -1))[:, None])
        return numbers.sigmoid()[:, 0, :, None, None]


class CA(LocalAttention):
    """Coordinate attention: a mask over channels and rows times one over channels and columns.

    Means over each row and over each column pass through one linear map to max(8, channels/32) numbers, batch norm over
    the batch and all positions, and h-swish; a further map each makes the two masks of them. The maps have biases.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, channels // 32)
        self.squeeze = nn.Conv1d(channels, inner, 1)
        self.norm = nn.BatchNorm1d(inner)
        self.swish = nn.Hardswish()
        self.rows = nn.Conv1d(inner, channels, 1)
        self.columns = nn.Conv1d(inner, channels, 1)

    def mask(self, features: Tensor) -> Tensor:
        # Plain means: the gradient of adaptive pooling is not deterministic on CUDA.
        positions = torch.cat([features.mean(-1), features.mean(-2)], -1)
        along_rows, along_columns = self.swish(self.norm(self.squeeze(positions))).split(features.shape[-2:], -1)
        rows: Tensor = self.rows(along_rows)
        columns: Tensor = self.columns(along_columns)
        return rows.sigmoid()[..., None] * columns.sigmoid()[..., None, :]


class Hybrid(LocalAttention):
    """A convex combination of the masks of :class:`SE`, :class:`ECA` and :class:`CA`.

    Its weights are the softmax of ``logits``, in this order. They begin equal, so the mask begins as the mean.
    """

    def __init__(self, channels: int, reduction: int, kernel: int) -> None:
        super().__init__()
        self.se = SE(channels, reduction)
        self.eca = ECA(kernel)
        self.ca = CA(channels)
        self.logits = nn.Parameter(torch.zeros(3))

    def mask(self, features: Tensor) -> Tensor:
        se, eca, ca = self.logits.softmax(0).unbind()
        return se * self.se.mask(features) + eca * self.eca.mask(features) + ca * self.ca.mask(features)


def local_attention(kind: str, channels: int, reduction: int = 16, kernel: int = 3) -> LocalAttention:
    """Return a freshly initialised ``se``, ``eca``, ``ca`` or ``hybrid``; a kernel of 0 is :func:`adaptive_kernel`."""
    kernel = kernel or adaptive_kernel(channels)
    if kind == "se":
        return SE(channels, reduction)
    if kind == "eca":
        return ECA(kernel)
    return CA(channels) if kind == "ca" else Hybrid(channels, reduction, kernel)


def adaptive_kernel(channels: int) -> int:
    """ECA's odd kernel for a number of channels C: t = (log2(C) + 1)/2 rounded down, and one more if that is even."""
    rounded = int((math.log2(channels) + 1) / 2)
    return rounded + 1 - rounded % 2
