"""Linear layers of stacked clients, with a gradient that keeps a GPU busy.

The gradient of a client's weight is a small matrix with long sums, which cuBLAS gives to a few multiprocessors.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

_PARTS, _LONG = 8, 1024  # into how many parts a sum is split, and from which length on


def splits(x: Tensor) -> bool:
    """Return whether :func:`split_linear` is faster: with tensor cores it is not."""
    full = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return x.device.type == "cuda" and full and not torch.is_autocast_enabled("cuda")


def split_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Compute ``F.linear`` of (…, inputs) and (outputs, inputs); the sums of the weight's gradient are split."""
    made: Tensor = _Linear.apply(x, weight)  # type: ignore[no-untyped-call]
    return made


class _Linear(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        length = x.shape[:-1].numel()
        parts = _PARTS if length >= _LONG and length % _PARTS == 0 else 1
        slopes, rows = (one.reshape(parts, -1, one.shape[-1]) for one in (grads[0], x))
        slope = (slopes.mT @ rows).sum(0)
        return grads[0] @ weight if ctx.needs_input_grad[0] else None, slope
