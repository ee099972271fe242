"""Personal prefixes in the attention of a Transformer that are parameters or a linear map."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.methods._blocks import blocks, pattern
from pflcore.options import option


@METHODS.register
class Prefix(Method):
    """Plain prefix tuning as FedPerfix's comparison: Prefix-Z begins at zero, Prefix-R at random.

    Prefixes and classifier stay on the client, the rest is averaged. The paper describes learned tokens that are
    appended to keys and values (``kind: tokens``); the released code has one linear map of the block's input instead,
    whose output is added to them (``kind: linear``, 3,548,160 numbers in ViT-S). A linear prefix of zeros leaves the
    model as it is at first; zero tokens take their share of the attention. Random tokens are standard normal.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, section 3.4, Table 6; Li and Liang, Prefix-Tuning, ACL 2021"
    personal = ("prefix", "head")

    init: str = option("zero", choices=("zero", "random"), help="zero is Prefix-Z, random is Prefix-R.")
    kind: str = option(
        "linear", choices=("linear", "tokens"), help="A linear map of the input that is added, or appended tokens."
    )
    tokens: int = option(10, ge=1, help="Number of tokens, where `kind` is tokens.")
    scale: float = option(1.5, ge=0, help="Factor of the prefixes.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        for block in blocks(model, "prefix tuning"):
            width, linear = 2 * block.inner, self.kind == "linear"
            source = nn.Linear(block.dim, width) if linear else _Free(self.tokens, width)
            if self.init == "zero":
                for parameter in source.parameters():
                    nn.init.zeros_(parameter)
            block.add_prefixes("prefix", source, scale=self.scale, concat=not linear)
        return {"prefix": pattern("prefix")}


class _Free(nn.Module):
    """Prefixes that depend on nothing: the same `count` rows for every image."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(count, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens.expand(tokens.shape[0], -1, -1)
