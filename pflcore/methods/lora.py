"""Low-rank updates of attention over a model that stays as it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.groups import Groups, Roles
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.methods._blocks import blocks, pattern
from pflcore.options import option


@METHODS.register
class Lora(Method):
    """LoRA by federated averaging: W + (α / r) · B · A, where W stays as it begins.

    Trained and sent are A, B and the classifier alone. A begins at random, as PyTorch's linear layers, and B with
    zeros. With ``averaged: both`` the mean of the A and that of the B are taken apart from one another, as FedIT does.
    FFA-LoRA is ``train_a: false``, FedSA-LoRA ``averaged: a``. ``train_only: [all]`` trains W as well. It is meant for
    a backbone with pretrained weights. On ViT-S with the defaults there are 73,728 parameters.
    """

    citation = "Hu et al., LoRA, ICLR 2022; Zhang et al., FedIT, ICASSP 2024; Sun et al., FFA-LoRA, ICLR 2024"
    smoke: ClassVar[dict[str, Any]] = {"rank": 2}

    rank: int = option(4, ge=1, help="Rank r of an update.")
    alpha: float = option(8.0, gt=0, help="Factor α; an update counts α / r.")
    projections: tuple[str, ...] = option(("q", "v"), choices=("q", "k", "v"), help="What has an update.")
    averaged: str = option("both", choices=("both", "a", "none"), help="What is averaged; the rest is personal.")
    train_a: bool = option(True, help="Whether A is trained; otherwise it stays as it begins, as in FFA-LoRA.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.projections:
            raise UserError("lora.projections names none; choose of q, k and v")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        chosen = tuple(dict.fromkeys(self.projections))
        join = partial(_added, scale=self.alpha / self.rank, projections=chosen)
        for block in blocks(model, "LoRA"):
            source = _LowRank(block.dim, self.rank, block.inner, chosen)
            block.change_attention("lora", source, join, len(chosen))
        return {f"lora.{part}": pattern(rf"lora\.{part}") for part in ("a", "b")}

    def trained(self) -> tuple[str, ...]:
        return self.train_only or ("lora" if self.train_a else "lora.b", "head")

    def roles(self, groups: Groups) -> Roles:
        own = {"both": (), "a": ("lora.b",), "none": ("lora",)}[self.averaged]
        return Roles.split(groups, (*own, *self.also_personal))


class _LowRank(nn.Module):
    """tokens · Aᵀ · Bᵀ of each projection: (…, dim) → (…, projections · inner)."""

    def __init__(self, dim: int, rank: int, inner: int, projections: Sequence[str]) -> None:
        super().__init__()
        self.a = nn.ModuleDict({projection: nn.Linear(dim, rank, bias=False) for projection in projections})
        self.b = nn.ModuleDict({projection: nn.Linear(rank, inner, bias=False) for projection in projections})
        for layer in self.b.children():
            nn.init.zeros_(layer.get_parameter("weight"))

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.cat([self.b[projection](self.a[projection](tokens)) for projection in self.a], dim=-1)


def _added(
    more: list[Tensor], q: Tensor, k: Tensor, v: Tensor, *, scale: float, projections: Sequence[str]
) -> tuple[Tensor, Tensor, Tensor]:
    plain = {"q": q, "k": k, "v": v}
    plain |= {name: plain[name] + scale * part for name, part in zip(projections, more, strict=True)}
    return plain["q"], plain["k"], plain["v"]
