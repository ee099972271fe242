"""Faster linear layers: large layers on a CPU, and layers of stacked clients on a GPU.

PyTorch multiplies with MKL on a CPU, which does not use AVX-512 on processors of AMD; oneDNN does. On a GPU the
gradient of a client's weight is a small matrix with long sums, which cuBLAS gives to a few multiprocessors.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

_PARTS, _LONG = 8, 1024  # on a GPU: into how many parts a sum is split, and from which length on
_ROWS, _ENTRIES = 1024, 128 * 128  # on a CPU: least rows of an input and entries of a weight


def can_be_large(model: nn.Module, device: torch.device) -> bool:
    """Return whether :func:`large_linear` may be faster than ``F.linear``: layers are large that act on each token, and
    models of tokens have layer norms. In other models the detour over Python would take a twentieth of a step."""
    fast = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512" and torch._C._has_mkldnn
    tokens = any(isinstance(module, nn.LayerNorm) for module in model.modules())
    return fast and tokens and any(tensor.ndim == 2 and tensor.numel() >= _ENTRIES for tensor in model.parameters())


def large_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``F.linear``, by oneDNN if it is large, in single precision, not under ``vmap``, and not counted."""
    large = weight.ndim == 2 and weight.numel() >= _ENTRIES and x.numel() >= _ROWS * x.shape[-1]
    plain = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    wrapped = any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, weight)))
    if not large or not plain or wrapped or torch._C._len_torch_dispatch_stack():
        return F.linear(x, weight, bias)
    product: Tensor = _OneDnn.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


def should_split(x: Tensor) -> bool:
    """Return whether :func:`split_linear` is faster: with tensor cores it is not."""
    full = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return x.device.type == "cuda" and full and not torch.is_autocast_enabled("cuda")


def split_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Compute ``F.linear`` of (…, inputs) and (outputs, inputs); the sums of the weight's gradient are split."""
    product: Tensor = _Split.apply(x, weight)  # type: ignore[no-untyped-call]
    return product


class _OneDnn(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        slopes, rows = grads[0].flatten(0, -2).T, x.flatten(0, -2).T
        by_x, by_weight, by_bias = ctx.needs_input_grad
        multiply: Any = _OneDnn.apply
        slope = None
        if by_weight:  # a transposed first factor is copied, so it is the smaller one
            slope = multiply(slopes, rows, None) if len(slopes) <= len(rows) else multiply(rows, slopes, None).T
        return multiply(grads[0], weight.T, None) if by_x else None, slope, slopes.sum(1) if by_bias else None


class _Split(_OneDnn):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        length = x.shape[:-1].numel()
        parts = _PARTS if length >= _LONG and length % _PARTS == 0 else 1
        slopes, rows = (tensor.reshape(parts, -1, tensor.shape[-1]) for tensor in (grads[0], x))
        slope = (slopes.mT @ rows).sum(0)
        return grads[0] @ weight if ctx.needs_input_grad[0] else None, slope, None
