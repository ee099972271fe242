"""Blocks of a Transformer, in which methods put modules of their own; self-attention that such modules change.

Modules are added in place to a freshly built model and drawn from PyTorch's global generator; entries that the model
had keep their names. Blocks are those of ``tiny_vit``, ``vit`` and timm's plain ViTs: self-attention with one
projection to queries, keys and values, then an MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.errors import UserError

_TINY = ("pflcore.backbones.tiny_vit._Attention",)
_TIMM = ("timm.layers.attention.Attention", "timm.models.vision_transformer.Attention")
Join = Callable[[list[Tensor], Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Block:
    """A block with self-attention and an MLP.

    Attributes:
        place: Name of the attention within the block.
        timm: Whether the attention is timm's; otherwise it is that of ``tiny_vit``.
        dim: Width of a token.
        inner: Width of the queries of all heads together, and so of keys and of values.
    """

    module: nn.Module
    place: str
    timm: bool
    dim: int
    inner: int

    def change_attention(self, name: str, source: nn.Module, join: Join, parts: int) -> None:
        """Replace the attention; arguments as in :class:`ChangedAttention`."""
        kind = _Timm if self.timm else _Tiny
        setattr(self.module, self.place, kind(self.module.get_submodule(self.place), name, source, join, parts))

    def add_prefixes(self, name: str, source: nn.Module, *, scale: float, concat: bool) -> None:
        """Let the attention have the prefixes of `source`, those of keys and then of values, times `scale`.

        They are added to the tokens' keys and values, of which there must be as many, or (`concat`) put before them.
        """
        self.change_attention(name, source, partial(_prefixed, scale=scale, concat=concat), 2)


def blocks(model: nn.Module, plugin: str) -> list[Block]:
    """Return the blocks of a model, in its order; raise :class:`UserError`, for `plugin`, where there are none."""
    found = []
    for module in model.modules():
        for place, child in module.named_children() if hasattr(module, "mlp") else ():
            # By name: timm takes seconds to import, and a subclass may compute something else.
            kind = f"{type(child).__module__}.{type(child).__qualname__}"
            if kind in _TINY + _TIMM:
                qkv = cast(nn.Linear, child.get_submodule("qkv"))
                found.append(Block(module, place, kind in _TIMM, qkv.in_features, qkv.out_features // 3))
    if not found:
        raise UserError(
            f"{plugin} needs a Transformer whose attention has one projection to queries, keys and values, and this "
            "backbone has none; use tiny_vit, vit, or a plain ViT of timm_model"
        )
    return found


def pattern(name: str) -> str:
    """Return a pattern for the state names of all modules that are called `name`, wherever they are."""
    return rf"(.+\.)?{name}\."


class Bottleneck(nn.Module):
    """tanh(x · W_down) · W_up with biases: (…, inputs) → (…, outputs); begun as PyTorch's linear layers."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, width)
        self.up = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(torch.tanh(self.down(x)))
        return out


class ChangedAttention(nn.Module):
    """Attention whose queries, keys and values something is added to or joined with.

    It takes over the modules of the attention that it replaces under their names, so state names stay as they are.

    Args:
        plain: The attention that is replaced.
        name: What the module is called that is added.
        source: That module: (batch, length, dim) tokens, as they enter the attention → (batch, rows, parts · inner).
        join: (parts, q, k, v), each (batch, heads, rows, width of a head) → the q, k and v that are used.
    """

    def __init__(self, plain: nn.Module, name: str, source: nn.Module, join: Join, parts: int) -> None:
        super().__init__()
        for child, module in (*plain.named_children(), (name, source)):
            self.add_module(child, module)
        self.heads = cast(int, getattr(plain, "num_heads", None) or plain.heads)  # timm's name, else that of tiny_vit
        self.source, self.join, self.parts = name, join, parts

    def project(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (batch, heads, length, width of a head)."""
        raise NotImplementedError

    def finish(self, tokens: Tensor, mixed: Tensor) -> Tensor:
        """Map the mixed values (batch, length, inner) to the output (batch, length, dim)."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:  # timm's models have these arguments and, as classifiers, no use of them
            raise NotImplementedError("attention that a plugin changes takes no mask")
        q, k, v = self.project(tokens)
        more = self.get_submodule(self.source)(tokens).chunk(self.parts, dim=-1)
        q, k, v = self.join([self._split(part) for part in more], q, k, v)
        return self.finish(tokens, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def _split(self, joint: Tensor) -> Tensor:
        """(batch, length, inner) → (batch, heads, length, width of a head)."""
        return joint.view(*joint.shape[:2], self.heads, -1).transpose(1, 2)


class _Tiny(ChangedAttention):
    qkv: nn.Linear
    out: nn.Linear
    dropout: nn.Module

    def project(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Three products instead of one: the gradient of a joint one would have to be put together from three.
        q, k, v = (self._split(F.linear(tokens, weight)) for weight in self.qkv.weight.chunk(3))
        return q, k, v

    def finish(self, tokens: Tensor, mixed: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.out(mixed))
        return out


class _Timm(ChangedAttention):
    """Without dropout of attention weights, which no backbone here has; prefixes meet keys after their norm."""

    qkv: nn.Linear
    q_norm: nn.Module
    k_norm: nn.Module
    proj: nn.Linear
    proj_drop: nn.Module

    def project(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(tokens).view(*tokens.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.q_norm(q), self.k_norm(k), v

    def finish(self, tokens: Tensor, mixed: Tensor) -> Tensor:
        # A norm of the mixed values and a gate: in few models, and not in all versions of timm.
        norm, gate = getattr(self, "norm", None), getattr(self, "gate", None)
        mixed = mixed if norm is None else norm(mixed)
        mixed = mixed if gate is None else mixed * gate(tokens).sigmoid()
        out: Tensor = self.proj_drop(self.proj(mixed))
        return out


def _prefixed(
    more: list[Tensor], q: Tensor, k: Tensor, v: Tensor, *, scale: float, concat: bool
) -> tuple[Tensor, Tensor, Tensor]:
    # In mixed precision, parameters that no matrix product has touched are still float32.
    more_k, more_v = ((scale * part).to(k.dtype) for part in more)
    if concat:
        return q, torch.cat([more_k, k], dim=2), torch.cat([more_v, v], dim=2)
    return q, k + more_k, v + more_v
