"""Vision Transformers of the usual sizes, by timm."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.backbones._timm import create
from pflcore.errors import UserError
from pflcore.options import option


@BACKBONES.register
class ViT(Backbone):
    """A vision Transformer (ViT-T, ViT-S, ViT-B) of timm, from scratch.

    Queries, keys and values with bias, MLP of 4 times the width, a norm before each part and one at the end, a class
    token, no dropout. On 3×224×224 images with 100 classes ViT-T has 5,543,716 parameters, ViT-S 21,704,164 and ViT-B
    85,875,556. The table of positions follows the size of the images: on 3×32×32, ViT-T has 5,489,482 for 10 classes
    and 5,506,852 for 100.
    """

    citation = "Dosovitskiy et al., ICLR 2021, and Touvron et al., ICML 2021, as in timm; for FedPerfix"
    smoke: ClassVar[dict[str, Any]] = {"size": "tiny", "depth": 1}
    groups: ClassVar[dict[str, str]] = {
        "patch_embed": r"patch_embed\.",
        "cls_token": r"cls_token$",
        "pos_embed": r"pos_embed$",
        "norm": r"(blocks\.\d+\.norm[12]|norm)\.",
        "attention.qkv": r"blocks\.\d+\.attn\.qkv\.",
        "attention.out": r"blocks\.\d+\.attn\.proj\.",
        "mlp": r"blocks\.\d+\.mlp\.",
        "head": r"head\.",
    }

    size: str = option(
        "tiny", choices=("tiny", "small", "base"), help="Width of a token and heads: 192 and 3, 384 and 6, 768 and 12."
    )
    patch: int = option(16, ge=1, help="Side of a square patch, in pixels; it must divide the image's sides.")
    depth: int = option(12, ge=1, help="Number of Transformer blocks.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        _, height, width = shape
        if height % self.patch or width % self.patch:
            raise UserError(
                f"backbone {self.name}: patch {self.patch} does not divide images of {height}×{width} pixels"
            )
        changes = {"img_size": (height, width), "patch_size": self.patch, "depth": self.depth}
        return create(f"vit_{self.size}_patch16_224", shape, classes, **changes)
