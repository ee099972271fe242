"""Personal prompts in every block of a Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import cast

import torch
from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.methods._blocks import blocks, pattern
from pflcore.options import option


@METHODS.register
class Prompts(Method):
    """Learned tokens join the sequence before each block and leave it after it.

    They and the classifier stay on the client, the rest is averaged. They begin uniformly in ± √(6 / (3 · p² + d)) for
    patches of p × p pixels and tokens of width d; the 3 stands for channels and is used for grey images too, as
    released. On ViT-S, 10 prompts in 12 blocks are 46,080 parameters.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, Table 6; Jia et al., Visual Prompt Tuning (deep), ECCV 2022"
    personal = ("prompt", "head")

    count: int = option(10, ge=1, help="Prompts per block.")
    dropout: float = option(0.1, ge=0, lt=1, help="Dropout of the prompts.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        for block in blocks(model, "prompt tuning"):
            bound = sqrt(6 / (3 * _patch_area(model) + block.dim))
            block.module.add_module("prompt", _Prompt(self.count, block.dim, bound, self.dropout))
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
    """Return the pixels of a patch."""
    # In timm the embedding knows it, (height, width); in tiny_vit the model, one side of a square.
    size = getattr(getattr(model, "patch_embed", None), "patch_size", None) or getattr(model, "patch", None)
    if size is None:
        raise UserError(
            "prompt tuning needs a Transformer over image patches, and this backbone has none; use tiny_vit, vit, or a "
            "plain ViT of timm_model"
        )
    height, width = (size, size) if isinstance(size, int) else size
    return int(height * width)
