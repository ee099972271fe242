"""Methods that add modules to the blocks of a Transformer: FedPerfix, the plugins that its paper compares, LoRA."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.groups import Groups, Roles
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.methods._blocks import blocks, pattern
from pflcore.options import option


def add_prefixes(
    parts: list[Tensor], q: Tensor, k: Tensor, v: Tensor, *, scale: float, concat: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v with prefixes times `scale` added to keys and values, or (`concat`) put before them."""
    # In mixed precision, parameters are float32 until they enter a matrix product.
    prefix_k, prefix_v = ((scale * part).to(k.dtype) for part in parts)
    if concat:
        return q, torch.cat([prefix_k, k], dim=2), torch.cat([prefix_v, v], dim=2)
    return q, k + prefix_k, v + prefix_v


def bottleneck(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Return tanh(x · W_down) · W_up with biases as a module, (…, inputs) → (…, outputs), initialised as in PyTorch."""
    layers = {"down": nn.Linear(inputs, width), "tanh": nn.Tanh(), "up": nn.Linear(width, outputs)}
    return nn.Sequential(OrderedDict(layers))


@METHODS.register
class FedPerfix(Method):
    """Personal prefixes, computed from a block's input, join keys and values of every attention.

    Prefixes and classifier stay on the client. In each block a small network P = up(tanh(down(x))) reads the normed
    input x. Its two halves are added, k + s · P_k and v + s · P_v, as the released code does, or appended as the paper
    writes (``mode: concat``). On ViT-S the prefixes have 3,551,232 parameters. On CIFAR-100 the released configuration
    also has ``also_personal: [blocks.-1]``.
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
            join = partial(add_prefixes, scale=self.scale, concat=self.mode == "concat")
            block.change_attention("adapter", bottleneck(block.dim, self.width, 2 * block.inner), join, 2)
        return {"adapter": pattern("adapter")}


@METHODS.register
class Prefix(Method):
    """Plain prefix tuning as in FedPerfix's comparison: Prefix-Z begins at zero, Prefix-R at random.

    Prefixes and classifier stay on the client. Learned tokens are appended to keys and values (``kind: tokens``), as
    the paper describes; the released code adds one linear map of the block's input (``kind: linear``). A linear prefix
    of zeros does not change the model; tokens of zeros take a share of the attention.
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
            width = 2 * block.inner
            linear = self.kind == "linear"
            source = nn.Linear(block.dim, width) if linear else _Tokens(self.tokens, width)
            if self.init == "zero":
                for parameter in source.parameters():
                    nn.init.zeros_(parameter)
            block.change_attention("prefix", source, partial(add_prefixes, scale=self.scale, concat=not linear), 2)
        return {"prefix": pattern("prefix")}


class _Tokens(nn.Module):  # prefixes that do not depend on the input: the same rows for every image
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(count, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens.expand(tokens.shape[0], -1, -1)


@METHODS.register
class Prompts(Method):
    """Learned tokens join the sequence before each block and leave it after it.

    Prompts and classifier stay on the client. Prompts begin uniformly in ± √(6 / (3 · p² + d)) for patches of p × p
    pixels and tokens of width d, with 3 also for grey images. On ViT-S, 10 prompts in 12 blocks are 46,080 parameters.
    """

    name = "prompts"
    citation = "Sun et al., FedPerfix, ICCV 2023, Table 6; Jia et al., Visual Prompt Tuning (deep), ECCV 2022"
    personal = ("prompt", "head")
    count: int = option(10, ge=1, help="Prompts per block.")
    dropout: float = option(0.1, ge=0, lt=1, help="Dropout of the prompts.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        for block in blocks(model, "prompt tuning"):
            bound = sqrt(6 / (3 * _patch_area(model) + block.dim))
            prompt = _Prompt(self.count, block.dim, bound, self.dropout)
            block.module.add_module("prompt", prompt)
            block.module.register_forward_pre_hook(prompt.append)
            block.module.register_forward_hook(prompt.cut)
        return {"prompt": pattern("prompt")}


class _Prompt(nn.Module):
    def __init__(self, count: int, dim: int, bound: float, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(count, dim).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)

    def append(self, block: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # Expanded before dropout, so that each image has its own mask.
        prompts = self.dropout(self.tokens.to(inputs[0].dtype).expand(len(inputs[0]), -1, -1))
        return (torch.cat([inputs[0], prompts], dim=1), *inputs[1:])

    def cut(self, block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output[:, : output.shape[1] - len(self.tokens)]


def _patch_area(model: nn.Module) -> int:
    """Return the number of pixels in a patch."""
    # timm's embedding has (height, width); the model of tiny_vit has the side of a square.
    size = getattr(getattr(model, "patch_embed", None), "patch_size", getattr(model, "patch", None))
    if size is None:
        problem = "prompt tuning needs a Transformer over image patches, and this backbone has none"
        raise UserError(f"{problem}; use tiny_vit, vit, or a plain ViT of timm_model")
    height, width = (size, size) if isinstance(size, int) else size
    return int(height * width)


@METHODS.register
class Adapters(Method):
    """A personal bottleneck x + up(tanh(down(x))) after each MLP, before its output is added.

    Adapters and classifier stay on the client. With ``form: corrected`` each block has an adapter whose first map is
    random and whose second is zero, so that the model is unchanged at first. ``form: literal`` is FedPerfix's released
    code: all blocks share one adapter, begun with zeros, in which only one bias can learn.
    """

    name = "adapters"
    citation = "Sun et al., FedPerfix, ICCV 2023, Table 6; Houlsby et al., ICML 2019"
    personal = ("adapter", "head")
    smoke: ClassVar[dict[str, Any]] = {"width": 16}
    form: str = option("corrected", choices=("corrected", "literal"), help="An adapter per block, or the released one.")
    width: int = option(512, ge=1, help="Width of the bottleneck.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        modules, shared = blocks(model, "adapter tuning"), None
        if self.form == "literal":
            dims = {block.dim for block in modules}
            if len(dims) > 1:
                widths = ", ".join(map(str, sorted(dims)))
                raise UserError(f"one adapter cannot be shared by blocks of widths {widths}; use the form corrected")
            shared = bottleneck(dims.pop(), self.width, modules[0].dim)
            model.add_module("adapter", shared)  # registered once, so that its entries are in the state once
        for block in modules:
            adapter = shared or bottleneck(block.dim, self.width, block.dim)
            if shared is None:  # beside the MLP: entries inside it belong to a group of the backbone
                block.module.add_module("adapter", adapter)
            for parameter in (adapter if shared else adapter.get_submodule("up")).parameters():
                nn.init.zeros_(parameter)
            # A `partial` is copied and pickled together with the model; a closure is not.
            block.module.get_submodule("mlp").register_forward_hook(partial(_add_adapter, adapter))
        return {"adapter": pattern("adapter")}


def _add_adapter(adapter: nn.Module, mlp: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return torch.add(output, adapter(output))


@METHODS.register
class Lora(Method):
    """LoRA with federated averaging: W + (α / r) · B · A, where W keeps its initial values.

    Clients train and send A, random at first, B, zero at first, and the classifier. With ``averaged: both`` A and B are
    averaged separately, as FedIT does; FFA-LoRA is ``train_a: false``, FedSA-LoRA ``averaged: a``. ``train_only:
    [all]`` trains W as well. The method is meant for backbones with pretrained weights. On ViT-S it has 73,728
    parameters.
    """

    name = "lora"
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
        join = partial(_add_updates, scale=self.alpha / self.rank, projections=chosen)
        for block in blocks(model, "LoRA"):
            source = _LowRank(block.dim, self.rank, block.inner, chosen)
            block.change_attention("lora", source, join, len(chosen))
        return {f"lora.{part}": pattern(rf"lora\.{part}") for part in ("a", "b")}

    def trained(self) -> tuple[str, ...]:
        return self.train_only or ("lora" if self.train_a else "lora.b", "head")

    def roles(self, groups: Groups) -> Roles:
        personal = {"both": (), "a": ("lora.b",), "none": ("lora",)}[self.averaged]
        return Roles.split(groups, (*personal, *self.also_personal))


class _LowRank(nn.Module):  # tokens · Aᵀ · Bᵀ of each projection: (…, dim) → (…, projections · inner)
    def __init__(self, dim: int, rank: int, inner: int, projections: Sequence[str]) -> None:
        super().__init__()
        self.a = nn.ModuleDict({projection: nn.Linear(dim, rank, bias=False) for projection in projections})
        self.b = nn.ModuleDict({projection: nn.Linear(rank, inner, bias=False) for projection in projections})
        for layer in self.b.children():
            nn.init.zeros_(layer.get_parameter("weight"))

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.cat([self.b[projection](self.a[projection](tokens)) for projection in self.a], dim=-1)


def _add_updates(
    updates: list[Tensor], q: Tensor, k: Tensor, v: Tensor, *, scale: float, projections: Sequence[str]
) -> tuple[Tensor, Tensor, Tensor]:
    plain = {"q": q, "k": k, "v": v}
    plain |= {name: plain[name] + scale * part for name, part in zip(projections, updates, strict=True)}
    return plain["q"], plain["k"], plain["v"]
