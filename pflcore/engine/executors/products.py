"""Linear layers and convolutions of stacked clients as matrix products that keep a GPU busy.

PyTorch's own forms do not, because the weights differ between clients: cuDNN starts a kernel per client, and the
gradient of a linear layer's weight is a small matrix with long sums, which cuBLAS gives to a few multiprocessors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

_PARTS, _LONG = 8, 1024  # into how many parts a sum is split, and from which length on

Pair = tuple[int, int]
"""Rows and columns."""


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


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair | str = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Compute ``F.conv2d`` as a product of the weight and each sample's windows, where that is possible."""
    if isinstance(padding, str) or groups != 1 or _pair(dilation) != (1, 1):
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    if torch.is_autocast_enabled(x.device.type):  # before the windows are copied, since these are larger
        kind = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(kind), weight.to(kind)
    height = (x.shape[-2] + 2 * _pair(padding)[0] - weight.shape[-2]) // _pair(stride)[0] + 1
    made: Tensor = _Convolution.apply(x, weight, _pair(stride), _pair(padding))  # type: ignore[no-untyped-call]
    made = made.view(*made.shape[:-1], height, -1)
    return made if bias is None else made + bias.to(made.dtype).view(-1, 1, 1)


class _Convolution(Function):
    """Returns (batch, outputs, positions). Windows are copied again for the gradient, since all layers' would take
    many times the memory of the activations."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        return torch.bmm(_matrices(weight, x), _windows(x, weight.shape[-2:], stride, padding))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.options = inputs[2:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x, weight), options = ctx.saved_tensors, ctx.options
        windows: Tensor = _Windows.apply(x, weight.shape[-2:], *options)  # type: ignore[no-untyped-call]
        slope = torch.bmm(grads[0], windows.mT).sum(0).view(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, slope, None, None
        back = torch.bmm(_matrices(weight, x).mT, grads[0])
        return _fold(back, x.shape[-2:], weight.shape[-2:], *options), slope, None, None


class _Windows(Function):
    """Computes :func:`_windows` with a gradient that ``vmap`` supports, for second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, size: Sequence[int], stride: Pair, padding: Pair) -> Tensor:
        return _windows(x, size, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.options = inputs[0].shape[-2:], *inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _fold(grads[0], *ctx.options), None, None, None


def _windows(x: Tensor, size: Sequence[int], stride: Pair, padding: Pair) -> Tensor:
    """Return windows of `size` of samples: (batch, channels · rows · columns of a window, positions).

    It copies once. ``F.unfold`` starts a kernel per sample on CUDA.
    """
    if padding != (0, 0):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    windows = x.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(1, 3).flatten(2)


def _fold(windows: Tensor, image: Sequence[int], size: Sequence[int], stride: Pair, padding: Pair) -> Tensor:
    """Return the sums over windows at each position of images (batch, channels, *image)."""
    return F.fold(windows, tuple(image), tuple(size), 1, padding, stride)


def _matrices(weight: Tensor, x: Tensor) -> Tensor:
    """Return the weight as a matrix for each sample, so that no product copies windows in another order."""
    return weight.flatten(1).expand(len(x), -1, -1)


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
