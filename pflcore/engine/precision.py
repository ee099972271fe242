"""In which arithmetic a model is computed. Parameters, gradients and averages are always float32.

``fp32`` is full single precision, on CUDA too, where PyTorch would otherwise round the inputs of convolutions.
``tf32`` lets CUDA round the inputs of matrix products and convolutions to 10 bits; a CPU computes as with fp32.
``bf16`` computes what gains from it in bfloat16 (8 bits) and the rest, such as norms and losses, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


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


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
