"""ResNet-50, by timm."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._local_attention import NONE, AttentiveBackbone
from pflcore.backbones._timm import create
from pflcore.options import option


@BACKBONES.register
class ResNet50(AttentiveBackbone):
    """ResNet-50 of timm, from scratch.

    It has 23,528,522 parameters for 10 classes, 23,712,932 for 100 and 25,557,032 for 1000, whatever the image size.
    Small images shrink by 32 on their way: of 32×32 pixels one position is left. The norm of a shortcut belongs to
    ``norm`` as well, although timm does not name it "bn". As in timm, the last norm of each block begins with weight
    zero, so that a block begins as its shortcut. Local attention comes after each of the four stages, of which no paper
    has figures.
    """

    citation = "He et al., CVPR 2016, as in timm; for FedPerfix"
    smoke: ClassVar[dict[str, Any]] = {"blocks_per_stage": 1, "width": 4}
    groups: ClassVar[dict[str, str]] = {
        "conv": r"(conv1|layer\d\.\d+\.(conv\d|downsample\.0))\.",
        "norm": r"(bn1|layer\d\.\d+\.(bn\d|downsample\.1))\.",
        "head": r"fc\.",
    }

    width: int = option(64, ge=1, help="Inner width of the first stage's blocks; the others have 2, 4, 8 times it.")
    blocks_per_stage: int | None = option(
        None, ge=1, help="Blocks in each of the four stages; null is ResNet-50's 3, 4, 6, 3."
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers = (self.blocks_per_stage,) * 4 if self.blocks_per_stage else (3, 4, 6, 3)
        channels = tuple(factor * self.width for factor in (1, 2, 4, 8))
        model = create("resnet50", shape, classes, layers=layers, channels=channels)
        if self.attention != NONE:
            for index, inner in enumerate(channels, 1):
                # A block gives four times its inner width.
                model.get_submodule(f"layer{index}").add_module("attention", self.make_attention(4 * inner))
        return model
