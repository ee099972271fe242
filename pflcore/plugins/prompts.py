"""Deep prompts: further tokens of its own for every block of a Transformer."""

from __future__ import annotations

from math import sqrt
from typing import cast

import torch
from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.plugins._blocks import blocks, pattern


def add_prompts(model: nn.Module, *, count: int = 10, dropout: float = 0.1) -> dict[str, str]:
    """Learned tokens that are appended to a block's tokens and cut off after it; each block has its own.

    They begin uniformly in ± √(6 / (3 · p² + d)) for patches of p × p pixels and tokens of width d; the 3 stands for
    channels and is used for grey images too, as released. On ViT-S, 10 prompts in 12 blocks are 46,080 parameters. The
    released class cannot run as it is; it also speaks of 10 prompts that are shared, which are left out here.

    Source: Jia et al., Visual Prompt Tuning, ECCV 2022 (deep), as in the released code of FedPerfix (Sun et al., ICCV
    2023, Table 6).

    Args:
        model: A freshly built Transformer over image patches.
        count: Prompts per block.
        dropout: Rate of dropout on the prompts, in training.

    Returns:
        The pattern of the group ``prompt``.

    Raises:
        UserError: The model has no attention of a known kind, or does not work on patches.
    """
    for block in blocks(model, "prompt tuning"):
        bound = sqrt(6 / (3 * _patch_area(model) + block.dim))
        block.module.add_module("prompt", _Prompt(count, block.dim, bound, dropout))
        # Functions of this module, not bound to a model: copies and pickles of the model use their own prompts.
        block.module.register_forward_pre_hook(_append)
        block.module.register_forward_hook(_cut)
    return {"prompt": pattern("prompt")}


class _Prompt(nn.Module):
    def __init__(self, count: int, dim: int, bound: float, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(count, dim).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length, dim) → (batch, length + count, dim)."""
        # Expanded first: every image has a dropout mask of its own.
        prompts: Tensor = self.dropout(self.tokens.to(tokens.dtype).expand(tokens.shape[0], -1, -1))
        return torch.cat([tokens, prompts], dim=1)


def _append(block: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (_prompt(block)(inputs[0]), *inputs[1:])


def _cut(block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output[:, : output.shape[1] - len(_prompt(block).tokens)]


def _prompt(block: nn.Module) -> _Prompt:
    return cast(_Prompt, block.get_submodule("prompt"))


def _patch_area(model: nn.Module) -> int:
    """Pixels of a patch."""
    # In timm the embedding knows it, (height, width); in tiny_vit the model, one side of a square.
    size = getattr(getattr(model, "patch_embed", None), "patch_size", None) or getattr(model, "patch", None)
    if size is None:
        raise UserError(
            "prompt tuning needs a Transformer over image patches, and this backbone has none; use tiny_vit, vit, or a "
            "plain ViT of timm_model"
        )
    height, width = (size, size) if isinstance(size, int) else size
    return int(height * width)
