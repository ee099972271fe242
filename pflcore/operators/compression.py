"""How what travels is made smaller: pruned layers (FedOFA), matrices of low rank (FedKD)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Tensors

PARTS = ("conv", "all")
_CONV = 5  # axes of a generated convolution: clients, filters, input channels, height, width


def masks(generated: Mapping[str, Tensor], percent: float, parts: str = "conv") -> Tensors:
    """Return which weights each client keeps: those of the largest absolute values, by layer (FedOFA, equation 9).

    Of a layer's n numbers, floor(n · `percent` / 100) are dropped, for each client separately. Of equal values on both
    sides of the limit the earlier ones are dropped, so exactly that many go, and no layer loses everything.

    Args:
        generated: Target name → (clients, \\*target shape). A layer is one tensor: a weight and its bias are two.
        percent: 0 ≤ `percent` < 100.
        parts: ``conv`` prunes weights of convolutions; ``all`` prunes every tensor.

    Returns:
        Of tensors that are pruned: target name → bool tensor of the same shape, true where a number is kept.

    Raises:
        UserError: ``conv`` finds no convolution.
    """
    chosen = {name: tensor for name, tensor in generated.items() if parts == "all" or tensor.ndim == _CONV}
    if not chosen:
        raise UserError(
            "pruning: there is no convolution among the generated tensors; use a backbone with convolutions, "
            "or parts 'all'"
        )
    return {name: _largest(tensor, percent) for name, tensor in chosen.items()}


def masked(tensors: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Tensors:
    """Return `tensors` with zeros where their mask in `kept` is false; those without a mask pass as they are."""
    return {name: tensor.masked_fill(~kept[name], 0) if name in kept else tensor for name, tensor in tensors.items()}


def low_rank(matrix: Tensor, energy: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrix of smallest rank, along its singular vectors, that keeps a share of squared singular values.

    Singular values that are dropped become zeros and are not cut off, so that shapes do not depend on the data and it
    can be vectorised over clients. It has no use for gradients, which need not exist.

    Args:
        matrix: (…, rows, columns); each matrix is truncated for itself.
        energy: The share to keep, 0 < `energy` ≤ 1; a tensor without axes may differ between vectorised clients.

    Returns:
        The truncated matrix, of the same shape; and how many numbers must be sent for it, int64, (…): rank · (rows +
        columns + 1), or all of the matrix where that is less.
    """
    rows, columns = matrix.shape[-2:]
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    squares = values.double().square()
    # Sums of all that come before, as a product: on CUDA, cumulative sums are not the same each time.
    earlier = torch.ones(2 * squares.shape[-1:], dtype=squares.dtype, device=squares.device).triu(1)
    kept = (squares.unsqueeze(-2) @ earlier).squeeze(-2) < energy * squares.sum(-1, keepdim=True)
    truncated: Tensor = (left * (values * kept).unsqueeze(-2)) @ right
    return truncated, (kept.sum(-1) * (rows + columns + 1)).clamp(max=rows * columns)


def _largest(tensor: Tensor, percent: float) -> Tensor:
    sizes = tensor.detach().abs().flatten(1)
    # In exact arithmetic on the decimal as it was written: as floats, 64.1 % of 1000 are less than 641.
    dropped = math.floor(sizes.shape[1] * Fraction(str(percent)) / 100)
    ranks = sizes.argsort(dim=1, stable=True).argsort(dim=1)
    return (ranks >= dropped).view(tensor.shape)
