"""In which arithmetic a model is computed. Parameters, gradients and averages are always float32.

``fp32`` is full single precision, on CUDA too, where PyTorch would otherwise round the inputs of convolutions.
``tf32`` lets CUDA round the inputs of matrix products and convolutions to 10 bits; a CPU computes as with fp32.
``bf16`` computes matrix products, convolutions and what lies between them in bfloat16 (8 bits), norms, softmax and
losses in float32. It pays where the hardware multiplies bfloat16: GPUs, and CPUs with AMX or AVX512-BF16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pflcore.engine.attention import is_plain


@contextmanager
def use_precision(precision: str) -> Iterator[None]:
    """Set PyTorch's switches for float32 arithmetic on CUDA, and put them back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def autocast(precision: str, device: torch.device) -> Iterator[None]:
    """The context of a forward pass."""
    if precision != "bf16":
        yield
        return
    # Each parameter is used once in a pass, so there is nothing to gain from keeping what was cast.
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False), _Mixed():
        yield


class _Mixed(TorchFunctionMode):
    """What autocast leaves to kernels for mixed types, which not every device and transform has."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))


def _attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Attention as two products: on CPUs, the backward pass of the fused kernel is slow in bfloat16."""
    if not is_plain(options):
        return F.scaled_dot_product_attention(q, k, v, **options)
    scores = torch.matmul(q, k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    return torch.matmul(scores.softmax(-1), v)


def _in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def wrapped(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(x.float(), *args, **kwargs)

    return wrapped


_REPLACED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    **{norm: _in_float32(norm) for norm in (F.layer_norm, F.batch_norm, F.group_norm)},
}
