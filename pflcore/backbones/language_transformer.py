"""FedTP's Transformer for text."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.errors import UserError
from pflcore.options import option


@BACKBONES.register
class LanguageTransformer(Backbone):
    """A post-norm Transformer encoder that predicts the next character at every position of a text.

    Sinusoidal positions are added to embeddings of 128; each block has a norm after its attention (8 heads of 64, no
    biases) and after its MLP (256, ReLU); the logits of the bias-free head are divided by the square root of the width.
    All matrices begin Xavier uniform. With its defaults and 100 characters it has 683,008 parameters, whatever the
    length; the projections to queries, keys and values, which FedTP generates, are 393,216 of them.

    **The mask.** What a position is to predict is the input of the next one. The released code has no attention mask,
    so every position but the last attends to its own target, and accuracy over all positions measures copying. The
    default ``causal`` hides later positions; ``none`` is the model as released, of whose accuracies only those at the
    last position tell how well it predicts.

    **The width.** The paper gives an "inner hidden dimension" of 256 and does not say of what. Here, as in the released
    code, it is the MLP's; `dim: 256` is the other reading.
    """

    citation = "Li et al., FedTP, TNNLS 2023, sizes of the released code; after Vaswani et al., NeurIPS 2017"
    smoke: ClassVar[dict[str, Any]] = {"dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 32}
    groups: ClassVar[dict[str, str]] = {
        "embedding": r"embedding\.",
        "norm": r"(norm|blocks\.\d+\.(attention|mlp)_norm)\.",
        "attention.qkv": r"blocks\.\d+\.attention\.[qkv]\.",
        "attention.out": r"blocks\.\d+\.attention\.out\.",
        "mlp": r"blocks\.\d+\.mlp\.",
        "head": r"head\.",
    }
    takes = "text"
    depth: int = option(2, ge=1, help="Number of Transformer blocks.")
    dim: int = option(128, ge=1, help="Width of a position.")
    heads: int = option(8, ge=1, help="Attention heads per block.")
    head_dim: int = option(64, ge=1, help="Width of one attention head.")
    mlp_dim: int = option(256, ge=1, help="Hidden width of the MLP in a block.")
    dropout: float = option(
        0.1, ge=0, lt=1, help="Dropout after the embedding, on attention probabilities, and after attention and MLP."
    )
    positions: int = option(200, ge=1, help="Length of the table of positions: the longest text that is taken.")
    attention_mask: str = option(
        "causal", choices=("causal", "none"), help="What a position sees: itself and earlier ones, or all (released)."
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        (length,) = shape
        if length > self.positions:
            raise UserError(
                f"backbone {self.name}: positions {self.positions} are too few for texts of {length} characters; "
                f"use positions: {length} or shorter texts"
            )
        return _Transformer(self, classes)


class _Transformer(nn.Module):
    positions: Tensor

    def __init__(self, options: LanguageTransformer, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, options.dim)
        # Not part of the state: it is never trained, and methods would average and send it.
        self.register_buffer("positions", _sinusoids(options.positions, options.dim), persistent=False)
        self.dropout = nn.Dropout(options.dropout)
        self.norm = nn.LayerNorm(options.dim, eps=1e-6)
        self.blocks = nn.Sequential(*(_Block(options) for _ in range(options.depth)))
        self.head = nn.Linear(options.dim, classes, bias=False)
        self.scale = options.dim**-0.5
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, texts: Tensor) -> Tensor:
        tokens = self.norm(self.dropout(self.embedding(texts) + self.positions[: texts.shape[1]]))
        logits: Tensor = self.head(self.blocks(tokens)) * self.scale
        return logits


class _Block(nn.Module):
    def __init__(self, options: LanguageTransformer) -> None:
        super().__init__()
        self.attention = _Attention(options)
        self.attention_norm = nn.LayerNorm(options.dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(options.dim, options.mlp_dim),
            nn.ReLU(),
            nn.Linear(options.mlp_dim, options.dim),
            nn.Dropout(options.dropout),
        )
        self.mlp_norm = nn.LayerNorm(options.dim, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.attention_norm(tokens + self.attention(tokens))
        out: Tensor = self.mlp_norm(tokens + self.mlp(tokens))
        return out


class _Attention(nn.Module):
    def __init__(self, options: LanguageTransformer) -> None:
        super().__init__()
        inner = options.heads * options.head_dim
        self.heads = options.heads
        self.causal = options.attention_mask == "causal"
        self.scale = options.head_dim**-0.5
        self.q = nn.Linear(options.dim, inner, bias=False)
        self.k = nn.Linear(options.dim, inner, bias=False)
        self.v = nn.Linear(options.dim, inner, bias=False)
        self.out = nn.Linear(inner, options.dim, bias=False)
        self.attention_dropout = nn.Dropout(options.dropout)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, _ = tokens.shape
        q, k, v = (
            project(tokens).view(batch, length, self.heads, -1).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        # Not F.scaled_dot_product_attention: its dropout draws numbers of its own.
        scores = (q * self.scale) @ k.transpose(2, 3)
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        mixed = self.attention_dropout(F.softmax(scores, dim=-1)) @ v
        out: Tensor = self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, -1)))
        return out


def _sinusoids(positions: int, dim: int) -> Tensor:
    """Return (positions, dim): sin(position / 10000^(2i / dim)) at index 2i of the width, the cosine at 2i + 1."""
    position = torch.arange(positions, dtype=torch.float64)[:, None]
    index = torch.arange(dim)
    angle = position / 10_000 ** (2 * (index // 2) / dim)
    return torch.where(index % 2 == 0, angle.sin(), angle.cos()).float()
