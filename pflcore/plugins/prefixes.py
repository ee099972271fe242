"""Prefixes: personal keys and values in every self-attention. FedPerfix, and the plain prefixes it is compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflcore.plugins._attention import put_prefixes
from pflcore.plugins._blocks import blocks, check_choice, pattern
from pflcore.plugins.adapters import Bottleneck


def add_perfix(model: nn.Module, *, width: int = 256, scale: float = 1.5, mode: str = "add") -> dict[str, str]:
    """FedPerfix: in each block an adapter makes prefixes, [P_k, P_v] = tanh(Z · W_down) · W_up, from the input Z of
    the attention.

    The paper joins the scaled prefixes to keys and values, so that a token attends to twice as many; the released code
    adds them: k ← k + s · P_k, v ← v + s · P_v. Both linear maps have biases, which the paper's formula leaves out. The
    output of the joined form is (1 − λ) · (attention to the tokens) + λ · (attention to the prefixes), λ being the
    attention that a query gives to all prefixes; the paper says so of its method, but it does not hold for the sum.

    With the defaults on ViT-S (384 wide, 12 blocks) there are 295,936 parameters per block and 3,551,232 in all;
    on ViT-T 1,777,152, on ViT-B 7,099,392.

    Source: Sun et al., FedPerfix, ICCV 2023, equations 4 and 5, and its released code.

    Args:
        model: A freshly built Transformer.
        width: Hidden width of an adapter.
        scale: s.
        mode: ``add`` or ``concat``.

    Returns:
        The pattern of the group ``adapter``.

    Raises:
        UserError: `mode` is neither, or the model has no attention of a known kind.
    """
    check_choice("mode", mode, ("add", "concat"))
    for block in blocks(model, "FedPerfix"):
        adapter = Bottleneck(block.dim, width, 2 * block.inner)
        put_prefixes(block, "adapter", adapter, scale=scale, concat=mode == "concat")
    return {"adapter": pattern("adapter")}


def add_prefix(
    model: nn.Module, *, zero: bool, kind: str = "linear", tokens: int = 10, scale: float = 1.5
) -> dict[str, str]:
    """Plain prefixes, begun with zeros (Prefix-Z) or at random (Prefix-R).

    ``linear`` is what the released code of FedPerfix does: one linear map per block from the input of the attention
    to what is added to keys and values. On ViT-S it has 3,548,160 parameters; begun with zeros it changes nothing.

    ``tokens`` is what the paper describes: free vectors, the same for every image, that are joined to keys and values;
    2 · 384 · 12 = 9,216 parameters per token on ViT-S. The paper has no scale there, i.e. 1. Random ones are standard
    normal, as rows of ``nn.Embedding``; the paper does not say. Begun with zeros they still take attention from the
    tokens, since a key of zeros has the weight exp(0).

    Source: Sun et al., FedPerfix, ICCV 2023, section 3.4, Table 6, and its released code.

    Args:
        model: A freshly built Transformer.
        zero: Whether prefixes begin with zeros; otherwise with random numbers, a linear map as PyTorch's.
        kind: ``linear`` or ``tokens``.
        tokens: How many prefixes a block has; of no effect with ``linear``, which makes one per token.
        scale: Factor of the prefixes.

    Returns:
        The pattern of the group ``prefix``.

    Raises:
        UserError: `kind` is neither, or the model has no attention of a known kind.
    """
    check_choice("kind", kind, ("linear", "tokens"))
    for block in blocks(model, "prefix tuning"):
        source = nn.Linear(block.dim, 2 * block.inner) if kind == "linear" else _Free(tokens, 2 * block.inner)
        if zero:
            for parameter in source.parameters():
                nn.init.zeros_(parameter)
        put_prefixes(block, "prefix", source, scale=scale, concat=kind == "tokens")
    return {"prefix": pattern("prefix")}


class _Free(nn.Module):
    """Prefixes that depend on nothing: the same `count` rows for every image."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(count, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens.expand(tokens.shape[0], -1, -1)
