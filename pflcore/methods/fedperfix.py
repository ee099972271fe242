"""Modules in a Transformer that stay on the client: FedPerfix, and what its paper compares it with."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.methods._blocks import Bottleneck, blocks, pattern
from pflcore.options import option


@METHODS.register
class FedPerfix(Method):
    """Personal prefixes, made from a block's input, join keys and values of every attention.

    They and the classifier stay on the client, the rest is averaged. Beside each attention a small net
    P = up(tanh(down(x))) reads the block's normed input x. Its two halves are added, k + s · P_k and v + s · P_v, as
    the released code does, or appended as the paper writes (``mode: concat``). ViT-S has 3,551,232 numbers in its
    prefixes. On CIFAR-100 the released configuration also has ``also_personal: [blocks.-1]``.
    """

    name = "fedperfix"
    citation = "Sun et al., FedPerfix, ICCV 2023, equations 3 to 5"
    personal = ("adapter", "head")
    smoke: ClassVar[dict[str, Any]] = {"width": 16}

    mode: str = option("add", choices=("add", "concat"), help="Prefixes are added to keys and values, or appended.")
    width: int = option(256, ge=1, help="Width of the net that makes the prefixes.")
    scale: float = option(1.5, ge=0, help="Factor s of the prefixes; with 0 and add it is FedPer.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        for block in blocks(model, "FedPerfix"):
            adapter = Bottleneck(block.dim, self.width, 2 * block.inner)
            block.add_prefixes("adapter", adapter, scale=self.scale, concat=self.mode == "concat")
        return {"adapter": pattern("adapter")}


@METHODS.register
class Prefix(Method):
    """Plain prefix tuning as FedPerfix's comparison: Prefix-Z begins at zero, Prefix-R at random.

    Prefixes and classifier stay on the client, the rest is averaged. Learned tokens are appended to keys and values
    (``kind: tokens``), as the paper describes; the released code adds the output of one linear map of the block's input
    (``kind: linear``). A linear prefix of zeros leaves the model as it is; zero tokens take a share of the attention.
    """

    name = "prefix"
    citation = "Sun et al., FedPerfix, ICCV 2023, section 3.4, Table 6; Li and Liang, Prefix-Tuning, ACL 2021"
    personal = ("prefix", "head")

    init: str = option("zero", choices=("zero", "random"), help="zero is Prefix-Z, random is Prefix-R.")
    kind: str = option("linear", choices=("linear", "tokens"), help="A linear map that is added, or appended tokens.")
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


@METHODS.register
class Prompts(Method):
    """Learned tokens join the sequence before each block and leave it after it.

    They and the classifier stay on the client, the rest is averaged. They begin uniformly in ± √(6 / (3 · p² + d)) for
    patches of p × p pixels and tokens of width d, the 3 also for grey images. On ViT-S, 10 prompts in 12 blocks are
    46,080 parameters.
    """

    name = "prompts"
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
    return (block.get_submodule("prompt")(inputs[0]), *inputs[1:])


def _cut(block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output[:, : output.shape[1] - len(cast(_Prompt, block.get_submodule("prompt")).tokens)]


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


@METHODS.register
class Adapters(Method):
    """A personal bottleneck x + up(tanh(down(x))) after each MLP, before its output is added.

    It and the classifier stay on the client, the rest is averaged. With ``form: corrected`` each block has an adapter,
    its first map random and its second zero, which leaves the model as it is at first. ``form: literal`` is FedPerfix's
    released code: one adapter, begun with zeros, for all blocks, of which one bias is all that can learn.
    """

    name = "adapters"
    citation = "Sun et al., FedPerfix, ICCV 2023, Table 6; Houlsby et al., ICML 2019"
    personal = ("adapter", "head")
    smoke: ClassVar[dict[str, Any]] = {"width": 16}

    form: str = option("corrected", choices=("corrected", "literal"), help="An adapter per block, or the released one.")
    width: int = option(512, ge=1, help="Width of the bottleneck.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        found = blocks(model, "adapter tuning")
        shared: _Adapter | None = None
        if self.form == "literal":
            if len(dims := {block.dim for block in found}) > 1:
                widths = ", ".join(map(str, sorted(dims)))
                raise UserError(f"one adapter cannot be shared by blocks of widths {widths}; use the form corrected")
            shared = _Adapter(dims.pop(), self.width)
            for parameter in shared.down.parameters():
                nn.init.zeros_(parameter)
            model.add_module("adapter", shared)  # in one place, so that its entries are in the state once
        for block in found:
            adapter = shared or _Adapter(block.dim, self.width)
            if shared is None:  # beside the MLP, not in it: what is in it belongs to a group of the backbone
                block.module.add_module("adapter", adapter)
            block.module.get_submodule("mlp").register_forward_hook(adapter.after)
        return {"adapter": pattern("adapter")}


class _Adapter(Bottleneck):
    """Begins as the identity."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__(dim, width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def after(self, mlp: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Adapt an MLP's output as its forward hook; a bound method is copied and pickled together with the model."""
        adapted: Tensor = output + self(output)
        return adapted
