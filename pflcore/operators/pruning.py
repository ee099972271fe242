"""Attention-guided pruning (AGPS): a client receives only the largest of its generated weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Tensors

PARTS = ("conv", "all")
_CONV = 5  # axes of a generated convolution: clients, filters, input channels, height, width


def masks(generated: Mapping[str, Tensor], percent: float, parts: str = "conv") -> Tensors:
    """Which weights each client keeps: those of the largest absolute values, layer by layer (FedOFA, equation 9).

    Of a layer's n numbers, floor(n · `percent` / 100) are dropped, for each client separately. Where equal values are
    on both sides of the limit the earlier ones are dropped, so exactly that many go, and no layer loses everything.

    Args:
        generated: Target name → (clients, \\*target shape), recalibrated weights. A layer is one tensor: a weight and
            its bias are pruned apart.
        percent: Share of each layer's numbers to drop, in percent, 0 ≤ `percent` < 100.
        parts: ``conv`` prunes weights of convolutions, to which the paper's formula is applied; ``all`` prunes every
            tensor.

    Returns:
        Target name → bool tensor of the same shape, true where a number is kept. Tensors that are not pruned have no
        mask.

    Raises:
        UserError: `percent` or `parts` is out of its range, or ``conv`` finds no convolution.
    """
    if not 0 <= percent < 100:
        raise UserError(f"pruning: percent = {percent} must be at least 0 and less than 100")
    if parts not in PARTS:
        raise UserError(f"pruning: parts = {parts!r} must be one of {', '.join(map(repr, PARTS))}")
    chosen = {name: tensor for name, tensor in generated.items() if parts == "all" or tensor.ndim == _CONV}
    if not chosen:
        raise UserError(
            "pruning: there is no convolution among the generated tensors; use a backbone with convolutions, "
            "or parts 'all'"
        )
    return {name: _largest(tensor, percent) for name, tensor in chosen.items()}


def masked(tensors: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Tensors:
    """`tensors` with zeros where their mask in `kept` is false; those without a mask pass as they are.

    For weights, and for their gradients, which must be masked too if what returns is to be as sparse as what was sent.
    """
    return {name: tensor.masked_fill(~kept[name], 0) if name in kept else tensor for name, tensor in tensors.items()}


def _largest(tensor: Tensor, percent: float) -> Tensor:
    sizes = tensor.detach().abs().flatten(1)
    # In exact arithmetic on the decimal as it was written: as floats, 64.1 % of 1000 are less than 641.
    dropped = math.floor(sizes.shape[1] * Fraction(str(percent)) / 100)
    ranks = sizes.argsort(dim=1, stable=True).argsort(dim=1)
    return (ranks >= dropped).view(tensor.shape)
