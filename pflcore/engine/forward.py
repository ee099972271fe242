"""What surrounds a model's forward pass: arithmetic, the form of attention, a look at its features.

Parameters, gradients and averages are always float32. Precisions of the passes:

- ``fp32`` is full single precision, on CUDA too, where PyTorch would otherwise round the inputs of convolutions.
- ``tf32`` lets CUDA round the inputs of matrix products and convolutions to 10 bits; a CPU computes as with fp32.
- ``bf16`` computes matrix products, convolutions and what lies between them in bfloat16 (8 bits), norms, softmax and
  losses in float32. It pays where the hardware multiplies bfloat16: GPUs, and CPUs with AMX or AVX512-BF16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pflcore.groups import Groups

# Options of attention that change nothing.
_PLAIN = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


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


class Features:
    """Captures the input of the classifier, and of the module that memories are made of, while it is entered.

    The classifier is the first module of the group ``head``, its entries are named in `head`; a model without such a
    group, or with a task of its own, has no features, which is an empty tensor. Memories, and second classifiers
    (FedRoD's), are made of its input too, unless the model names another module in an attribute ``memory``.
    """

    def __init__(self, model: nn.Module, groups: Groups) -> None:
        modules = dict(model.named_modules())
        # The heads of a model with a task of its own see maps, not features of a sample.
        plain = getattr(model, "task", None) is None
        names = [name for name, group in groups.of.items() if group == "head" and plain]
        path = names[0].rpartition(".")[0] if names else ""
        self.head = tuple(name for name in names if name.rpartition(".")[0] == path)
        self._classifier = modules[path] if names else None
        memory = getattr(model, "memory", None)
        self._memory = modules[memory] if memory else self._classifier
        self._captured: dict[nn.Module, Tensor] = {}
        self._depth = 0
        for module in {one for one in (self._classifier, self._memory) if one}:
            module.register_forward_pre_hook(self._capture)

    def __enter__(self) -> Features:
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:  # tensors of a vectorised pass must not outlive it
            self._captured.clear()

    def of_classifier(self) -> Tensor:
        """Return the classifier's input in the forward pass that was made: (batch, …, features)."""
        return self._captured[self._classifier] if self._classifier else torch.empty(0)

    def of_memory(self) -> Tensor:
        """Return what memories are made of, in the forward pass that was made: (batch, …, features)."""
        return self._captured[self._memory] if self._memory else torch.empty(0)

    def _capture(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self._depth:
            self._captured[module] = inputs[0]


class Substitute(TorchFunctionMode):
    """Has others called in the place of some of PyTorch's functions, while it is entered."""

    def __init__(self, others: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self.others = others

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.others.get(func, func)(*args, **(kwargs or {}))


def is_plain(options: Mapping[str, Any]) -> bool:
    """Return whether options of ``F.scaled_dot_product_attention`` leave it what it is without them."""
    return all(name in _PLAIN and value == _PLAIN[name] for name, value in options.items())


@contextmanager
def autocast(precision: str, device: torch.device) -> Iterator[None]:
    """Enter the context of a forward pass."""
    if precision != "bf16":
        yield
        return
    # Each parameter is used once in a pass, so there is nothing to gain from keeping what was cast.
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False), Substitute(_MIXED):
        yield


def _attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute two products: on CPUs, the backward pass of the fused kernel is slow in bfloat16."""
    if not is_plain(options):
        return F.scaled_dot_product_attention(q, k, v, **options)
    scores = torch.matmul(q, k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    return torch.matmul(scores.softmax(-1), v)


def _in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, *args, **kwargs: function(x.float(), *args, **kwargs)


# What autocast leaves to kernels for mixed types, which not every device and transform has.
_MIXED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    **{norm: _in_float32(norm) for norm in (F.layer_norm, F.batch_norm, F.group_norm)},
}
