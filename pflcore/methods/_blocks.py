"""Transformer blocks to which methods add modules, and self-attention that such a module changes.

Methods add modules in place to a freshly built model; PyTorch's global generator draws their values. The model's own
entries keep their names. The blocks are those of ``tiny_vit``, ``vit`` and timm's plain ViTs: self-attention with one
projection to queries, keys and values, then an MLP.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.errors import UserError

_ATTENTION = (
    "pflcore.backbones.tiny_vit._Attention",
    "timm.layers.attention.Attention",
    "timm.models.vision_transformer.Attention",
)
Join = Callable[[list[Tensor], Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Block:
    """A block with self-attention and an MLP."""

    module: nn.Module
    attention: str  # name of the submodule with self-attention
    dim: int  # width of a token
    inner: int  # width of the queries of all heads together; keys and values have the same width

    def change_attention(self, name: str, source: nn.Module, join: Join, parts: int) -> None:
        """Replace the attention; arguments as in :class:`ChangedAttention`."""
        plain = self.module.get_submodule(self.attention)
        setattr(self.module, self.attention, ChangedAttention(plain, name, source, join, parts))


def blocks(model: nn.Module, plugin: str) -> list[Block]:
    """Return the blocks of a model in order; raise :class:`UserError`, which names `plugin`, if there are none."""
    result = []
    for module in model.modules():
        for name, child in module.named_children():
            # Compared by name: timm takes seconds to import, and a subclass may compute something else.
            if hasattr(module, "mlp") and f"{type(child).__module__}.{type(child).__qualname__}" in _ATTENTION:
                qkv = cast(nn.Linear, child.get_submodule("qkv"))
                result.append(Block(module, name, qkv.in_features, qkv.out_features // 3))
    if not result:
        problem = f"{plugin} needs a Transformer whose attention has one projection to queries, keys and values"
        raise UserError(f"{problem}, and this backbone has none; use tiny_vit, vit, or a plain ViT of timm_model")
    return result


def pattern(name: str) -> str:
    """Return a pattern that matches the state names of every module called `name`, at any depth."""
    return rf"(.+\.)?{name}\."


class ChangedAttention(nn.Module):
    """Attention with a module `source` that changes queries, keys and values; the original's state names stay.

    `source`, registered under `name`, maps the attention's input tokens (batch, length, dim) to (batch, rows, parts ·
    inner). `join` maps the list of these parts, q, k and v, each (batch, heads, rows, width of a head), to the q, k and
    v that are used.
    """

    def __init__(self, plain: nn.Module, name: str, source: nn.Module, join: Join, parts: int) -> None:
        super().__init__()
        for child, module in (*plain.named_children(), (name, source)):
            self.add_module(child, module)
        self.timm = hasattr(plain, "num_heads")
        self.heads = cast(int, plain.num_heads if self.timm else plain.heads)
        self.source, self.join, self.parts = name, join, parts

    def forward(self, tokens: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:  # timm declares these arguments; its classifiers do not use them
            raise NotImplementedError("attention that a plugin changes takes no mask")
        modules: Any = self  # with the modules of the attention that it replaces
        if self.timm:
            q, k, v = modules.qkv(tokens).view(*tokens.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            q, k = modules.q_norm(q), modules.k_norm(k)
        else:  # three products: the gradient of a single one would have to be assembled from three parts
            q, k, v = (self._split(F.linear(tokens, weight)) for weight in modules.qkv.weight.chunk(3))
        added = self.get_submodule(self.source)(tokens).chunk(self.parts, dim=-1)
        q, k, v = self.join([self._split(part) for part in added], q, k, v)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        if not self.timm:
            return cast(Tensor, modules.dropout(modules.out(mixed)))
        # Few models have a norm of the mixed values or a gate; in some versions of timm the attributes do not exist.
        norm, gate = getattr(self, "norm", None), getattr(self, "gate", None)
        mixed = mixed if norm is None else norm(mixed)
        mixed = mixed if gate is None else mixed * gate(tokens).sigmoid()
        return cast(Tensor, modules.proj_drop(modules.proj(mixed)))

    def _split(self, joint: Tensor) -> Tensor:
        """Reshape (batch, length, inner) to (batch, heads, length, width of a head)."""
        return joint.view(*joint.shape[:2], self.heads, -1).transpose(1, 2)
