"""A detector: SSDLite on timm's MobileNetV2, with optional local attention in its bottlenecks."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._local_attention import GROUP, NONE, AttentiveBackbone
from pflcore.backbones.timm_model import create
from pflcore.detection.ssd import PER_POSITION, default_boxes
from pflcore.detection.task import Detection
from pflcore.errors import UserError
from pflcore.options import option

_EXTRA = (512, 256, 256, 128)  # channels of the extra maps after the last features, at full width
_STD = 0.03  # standard deviation of the initial weights of heads and extra maps, as in SSDLite
_STRIDED = 5  # index of the stage whose first bottleneck reduces the map of stride 16 to stride 32


@BACKBONES.register
class MobileNetV2SSD(AttentiveBackbone):
    """MobileNetV2 with SSDLite's heads, which detects objects; from scratch.

    The inputs of the heads are the expansion of stride 16, the last features of stride 32, and up to four extra maps,
    each of half the size, down to one position. Each position has six default boxes: 3,000 in all for 300 pixels. Where
    pFedLA does not describe the heads, they are as in SSDLite; timm's batch norm and initial weights stay. Local
    attention is in all 17 bottlenecks, between the depthwise and the last convolution. Batch norms outside attention
    are ``norm``, the other layers of heads are ``head``, and those of the extra maps are ``extra``.
    """

    citation = "Sandler et al., MobileNetV2, CVPR 2018 (section 6.2), as in timm; Liu et al., SSD, ECCV 2016"
    results_version = 2  # 1 counted too many multiply-adds of grouped convolutions
    predicts = "boxes"
    smoke: ClassVar[dict[str, Any]] = {"width": 35}
    groups: ClassVar[dict[str, str]] = {
        "conv": r"body\.(conv_stem|conv_head|blocks\.\d\.\d\.conv_(pw|dw|pwl))\.",
        "norm": r"(body\.(bn1|bn2|blocks\.\d\.\d\.bn\d)|extra\.\d\.(1|4|7)|heads\.\d\.\w+\.1)\.",
        "extra": r"extra\.\d\.(0|3|6)\.",
        "head": r"heads\.\d\.\w+\.(0|3)\.",
    }
    width: int = option(100, choices=(35, 50, 75, 100, 140), help="Channels of all layers, in percent of the paper's.")
    box_min: float = option(0.2, gt=0, lt=1, help="Size of default boxes on the finest map, as a share of the image.")
    box_max: float = option(0.95, gt=0, le=1, help="Size of default boxes on the coarsest map.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.box_min > self.box_max:
            raise UserError(f"{self.name}.box_min = {self.box_min} must be at most box_max = {self.box_max}")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        body: Any = create(f"mobilenetv2_{self.width:03}", shape, 0)
        grids = list(_grids(*shape[1:]))
        model = _Detector(body, grids, classes, self.width / 100)
        model.register_buffer("defaults", default_boxes(grids, self.box_min, self.box_max), persistent=False)
        if self.attention != NONE:
            for block in itertools.chain(*body.blocks):
                block.se = self.make_attention(block.conv_dw.out_channels)
        return model

    def patterns(self, model: nn.Module) -> Mapping[str, str]:
        return self.groups if self.attention == NONE else {**self.groups, GROUP: r"body\.blocks\.\d\.\d\.se\."}


class _Detector(nn.Module):
    """The model: (images, 3, height, width) → (images, boxes, 4 + 1 + classes), as :class:`Detection` expects."""

    defaults: Tensor

    def __init__(self, body: Any, grids: Sequence[tuple[int, int]], classes: int, width: float) -> None:
        super().__init__()
        self.body = body
        extra = [int(min(1.0, width) * channels) for channels in _EXTRA[: len(grids) - 2]]
        channels = [body.blocks[_STRIDED][0].conv_pw.out_channels, body.conv_head.out_channels, *extra]
        self.extra = nn.ModuleList(_smaller(before, after) for before, after in itertools.pairwise(channels[1:]))
        pairs = ({"places": _head(count, 4), "classes": _head(count, 1 + classes)} for count in channels)
        self.heads = nn.ModuleList(map(nn.ModuleDict, pairs))
        for layer in (*self.extra.modules(), *self.heads.modules()):
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=_STD)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    @property
    def task(self) -> Detection:
        return Detection(self.defaults)

    def forward(self, images: Tensor) -> Tensor:
        def rows(numbers: Tensor) -> Tensor:
            """Return (images, 6 · numbers, height, width) as (images, boxes, numbers), ordered as the default boxes."""
            return numbers.permute(0, 2, 3, 1).reshape(len(numbers), -1, numbers.shape[1] // PER_POSITION)

        pairs = zip(self._maps(images), self.heads, strict=True)
        return torch.cat([torch.cat([rows(head(maps)) for head in heads.values()], -1) for maps, heads in pairs], 1)  # type: ignore[operator]

    def _maps(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the feature maps, the finest first."""
        body = self.body
        x = body.blocks[:_STRIDED](body.bn1(body.conv_stem(images)))
        first, *rest = body.blocks[_STRIDED]
        x = first.bn1(first.conv_pw(x))
        yield x
        x = first.bn3(first.conv_pwl(first.se(first.bn2(first.conv_dw(x)))))
        for part in (*rest, *body.blocks[_STRIDED + 1 :]):
            x = part(x)
        x = body.bn2(body.conv_head(x))
        yield x
        for part in self.extra:
            x = part(x)
            yield x

    def extra_repr(self) -> str:
        """Return the first and last default box, so that models with different boxes have different texts."""
        return f"default boxes from {self.defaults[0].tolist()} to {self.defaults[-1].tolist()}"


def _grids(height: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield height and width of each map: of stride 16, of stride 32, and of the extra ones down to one position."""
    for _ in range(4):
        height, width = -(-height // 2), -(-width // 2)
    for index in range(2 + len(_EXTRA)):
        yield height, width
        if index and height == width == 1:
            return
        height, width = -(-height // 2), -(-width // 2)


def _smaller(before: int, after: int) -> nn.Sequential:
    inner = after // 2
    halved = nn.Conv2d(inner, inner, 3, stride=2, padding=1, groups=inner, bias=False)
    first, last = nn.Conv2d(before, inner, 1, bias=False), nn.Conv2d(inner, after, 1, bias=False)
    return nn.Sequential(*_layer(first), *_layer(halved), *_layer(last))


def _head(channels: int, numbers: int) -> nn.Sequential:
    """Return a head that predicts `numbers` numbers for each default box at each position."""
    separate = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return nn.Sequential(*_layer(separate), nn.Conv2d(channels, PER_POSITION * numbers, 1))


def _layer(convolution: nn.Conv2d) -> tuple[nn.Module, ...]:
    return convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU6()
