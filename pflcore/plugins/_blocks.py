"""Where plugins go: the blocks of a Transformer and what lies in them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from torch import nn

from pflcore.errors import UserError

_TINY = ("pflcore.backbones.tiny_vit._Attention",)
_TIMM = ("timm.layers.attention.Attention", "timm.models.vision_transformer.Attention")


@dataclass(frozen=True)
class Block:
    """A block with self-attention and an MLP.

    Attributes:
        module: The block.
        place: Name of the attention within it.
        timm: Whether the attention is timm's; otherwise it is that of ``tiny_vit``.
    """

    module: nn.Module
    place: str
    timm: bool

    @property
    def attention(self) -> nn.Module:
        """The self-attention."""
        return self.module.get_submodule(self.place)

    @property
    def mlp(self) -> nn.Module:
        """What comes after the attention."""
        return self.module.get_submodule("mlp")

    @property
    def dim(self) -> int:
        """Width of a token."""
        return self._qkv.in_features

    @property
    def inner(self) -> int:
        """Width of the queries of all heads together, and so of keys and of values."""
        return self._qkv.out_features // 3

    @property
    def _qkv(self) -> nn.Linear:
        return cast(nn.Linear, self.attention.get_submodule("qkv"))


def blocks(model: nn.Module, plugin: str) -> list[Block]:
    """The blocks of a model, in its order; `plugin` is who asks, for the message.

    Raises:
        UserError: There are none whose attention is of a known kind.
    """
    found = []
    for module in model.modules():
        if not hasattr(module, "mlp"):
            continue
        for place, child in module.named_children():
            # By name: timm takes seconds to import, and a subclass may compute something else.
            kind = f"{type(child).__module__}.{type(child).__qualname__}"
            if kind in _TINY + _TIMM:
                found.append(Block(module, place, kind in _TIMM))
    if not found:
        raise UserError(
            f"{plugin} needs a Transformer whose attention has one projection to queries, keys and values, and this "
            "backbone has none; use tiny_vit, vit, or a plain ViT of timm_model"
        )
    return found


def pattern(name: str) -> str:
    """Matches the state names of all modules that are called `name`, wherever they are."""
    return rf"(.+\.)?{name}\."


def check_choice(option: str, value: str, choices: Collection[str]) -> None:
    """Raises :class:`UserError` when `value` is none of the `choices`."""
    if value not in choices:
        raise UserError(f"{option} is {value!r}; choose {' or '.join(choices)}")
