"""Attention of stacked clients with PyTorch's fused kernels, which ``vmap`` does not support.

The dimension of clients becomes part of the batch. The scores of all queries and keys never reach memory; otherwise
they are a third of the memory traffic of a step of FedTP's ViT.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import grad as grad_of
from torch.func import vjp

_KERNELS = torch.ops.aten
_ALIGNMENT = 8  # the kernels need widths that are multiples of it


def has_kernel(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether :func:`fused_attention` supports these tensors."""
    if torch.backends.cuda.matmul.allow_tf32 and q.dtype == torch.float32:  # the kernel makes three products of one
        return False
    types_fit = q.dtype == k.dtype == v.dtype != torch.float64 and q.device.type in ("cpu", "cuda")
    shapes_fit = q.ndim == k.ndim == v.ndim == 4 and q.shape[-1] == v.shape[-1]
    return types_fit and shapes_fit and q.shape[-1] % _ALIGNMENT == 0


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute softmax(q kᵀ / √width) v, (batch, heads, queries, width) and twice (batch, heads, keys, width).

    It can be differentiated twice, and is deterministic.
    """
    out: Tensor = _Attention.apply(q, k, v)[0]  # type: ignore[no-untyped-call]
    return out


class _Attention(Function):
    """Returns the output, and for the backward pass logarithms of sums and two states of random numbers."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        if q.device.type == "cpu":
            return *_KERNELS._scaled_dot_product_flash_attention_for_cpu(q, k, v), q.new_empty(0), q.new_empty(0)
        return tuple(_KERNELS._scaled_dot_product_efficient_attention(q, k, v, None, True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Backward.apply(grads[0], *ctx.saved_tensors)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return _fold(_Attention, info.batch_size, dims, tensors, 2)


class _Backward(Function):
    """Returns the gradients of q, k and v."""

    @staticmethod
    def forward(grad: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        q, k, v, out, logs, seed, offset = saved
        if q.device.type == "cpu":
            kernel = _KERNELS._scaled_dot_product_flash_attention_for_cpu_backward
            return tuple(kernel(grad, q, k, v, out, logs, 0.0, False))
        # The kernel is deterministic only if all operations must be.
        mode = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("error")
        try:
            kernel = _KERNELS._scaled_dot_product_efficient_attention_backward
            needs_grad = [True, True, True, False]
            return tuple(kernel(grad, q, k, v, None, out, logs, seed, offset, 0.0, needs_grad)[:3])
        finally:
            torch.set_deterministic_debug_mode(mode)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:4])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        def product(grad: Tensor, *qkv: Tensor) -> Tensor:
            gradients = vjp(_formula, *qkv)[1](grad)
            return torch.stack([(first * second).sum() for first, second in zip(gradients, grads, strict=True)]).sum()

        return *grad_of(product, (0, 1, 2, 3))(*ctx.saved_tensors), None, None, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return _fold(_Backward, info.batch_size, dims, tensors, 3)


def _formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention without a fused kernel, for second derivatives, which these kernels lack."""
    return (q * float(q.shape[-1] ** -0.5) @ k.mT).softmax(-1) @ v


def _fold(function: Any, clients: int, dims: Sequence[int | None], tensors: Sequence[Tensor], results: int) -> Any:
    """Call `function` with clients as part of the batch; the first `results` tensors that it returns have a batch."""

    def folded(tensor: Tensor, dim: int | None) -> Tensor:
        if tensor.ndim < 3:  # the states of random numbers
            return tensor
        stacked = tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return stacked.flatten(0, 1)

    outputs = function.apply(*map(folded, tensors, dims))
    stacked = [output.unflatten(0, (clients, -1)) for output in outputs[:results]]
    rest = outputs[results:]
    return (*stacked, *rest), (0,) * results + (None,) * len(rest)
