"""FedTP's tiny vision Transformer."""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.errors import UserError
from pflcore.options import option


@BACKBONES.register
class TinyViT(Backbone):
    """A pre-norm Transformer over image patches, trained from scratch.

    Heads are wide: 8 heads of 64 make an inner width of 512 for tokens of 128, as in the official code. With its
    defaults on 3×32×32 images it has 2,645,898 parameters for 10 classes and 2,657,508 for 100, of which FedTP
    generates 1,572,864. The paper's "8 blocks with 8 self-attention layers in each block" is read as 8 blocks, each
    with one self-attention of 8 heads. The official code's depth defaults to 6.
    """

    citation = "Li et al., FedTP, TNNLS 2023, section IV-A; after Dosovitskiy et al., ICLR 2021"
    smoke: ClassVar[dict[str, Any]] = {"dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 32}
    groups: ClassVar[dict[str, str]] = {
        "patch_embed": r"patch_embed\.",
        "cls_token": r"cls_token$",
        "pos_embed": r"pos_embed$",
        "norm": r"(blocks\.\d+\.(attention|mlp)_norm|norm)\.",
        "attention.qkv": r"blocks\.\d+\.attention\.qkv\.",
        "attention.out": r"blocks\.\d+\.attention\.out\.",
        "mlp": r"blocks\.\d+\.mlp\.",
        "head": r"head\.",
    }
    depth: int = option(8, ge=1, help="Number of Transformer blocks.")
    dim: int = option(128, ge=1, help="Width of a token.")
    heads: int = option(8, ge=1, help="Attention heads per block.")
    head_dim: int = option(64, ge=1, help="Width of one attention head.")
    mlp_dim: int = option(256, ge=1, help="Hidden width of the MLP in a block.")
    patch: int = option(4, ge=1, help="Side of a square patch, in pixels; it must divide the image's sides.")
    dropout: float = option(0.1, ge=0, lt=1, help="Dropout after the embedding, the attention output and in the MLP.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = shape
        if height % self.patch or width % self.patch:
            raise UserError(f"backbone tiny_vit: patch {self.patch} does not divide images of {height}×{width} pixels")
        return _VisionTransformer(self, channels, (height // self.patch) * (width // self.patch), classes)


class _VisionTransformer(nn.Module):
    memory = "norm"  # FedTP+KNN and FedTP+FedRoD's second classifier read this module's input, which is the class token

    def __init__(self, options: TinyViT, channels: int, patches: int, classes: int) -> None:
        super().__init__()
        self.patch = options.patch
        self.patch_embed = nn.Linear(channels * options.patch**2, options.dim)
        self.cls_token = nn.Parameter(torch.randn(1, 1, options.dim))
        self.pos_embed = nn.Parameter(torch.randn(1, patches + 1, options.dim))
        self.dropout = nn.Dropout(options.dropout)
        self.blocks = nn.Sequential(*(_Block(options) for _ in range(options.depth)))
        self.norm = nn.LayerNorm(options.dim)
        self.head = nn.Linear(options.dim, classes)

    def forward(self, images: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        side = self.patch  # channels vary fastest in a patch
        grid = images.view(batch, channels, height // side, side, width // side, side).permute(0, 2, 4, 3, 5, 1)
        tokens = self.patch_embed(grid.reshape(batch, -1, side * side * channels))
        cls_token = self.cls_token.expand(tokens.shape[0], -1, -1)
        tokens = self.dropout(torch.cat([cls_token, tokens], dim=1) + self.pos_embed)
        return cast(Tensor, self.head(self.norm(self.blocks(tokens)[:, 0])))


class _Block(nn.Module):
    def __init__(self, options: TinyViT) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(options.dim)
        self.attention = _Attention(options)
        self.mlp_norm = nn.LayerNorm(options.dim)
        wide, narrow = nn.Linear(options.dim, options.mlp_dim), nn.Linear(options.mlp_dim, options.dim)
        self.mlp = nn.Sequential(wide, nn.GELU(), nn.Dropout(options.dropout), narrow, nn.Dropout(options.dropout))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return cast(Tensor, tokens + self.mlp(self.mlp_norm(tokens)))


class _Attention(nn.Module):
    def __init__(self, options: TinyViT) -> None:
        super().__init__()
        inner = options.heads * options.head_dim
        self.heads = options.heads
        self.qkv = nn.Linear(options.dim, 3 * inner, bias=False)
        self.out = nn.Linear(inner, options.dim)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, _ = tokens.shape
        # Three products instead of one, because the gradient of a joint one would be assembled from three.
        qkv = (F.linear(tokens, weight) for weight in self.qkv.weight.chunk(3))
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in qkv)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, -1)
        return cast(Tensor, self.dropout(self.out(mixed)))
