"""The context of a model's forward pass: precision, replacements of PyTorch functions, and captured features.

Parameters, gradients and averages are always float32. Precisions of the passes:

- ``fp32`` is full single precision, on CUDA too, where PyTorch would otherwise round the inputs of convolutions.
- ``tf32`` lets CUDA round the inputs of matrix products and convolutions to 10 bits; a CPU computes as with fp32.
- ``bf16`` computes matrix products, convolutions and operations between them in bfloat16 (8 bits), norms, softmax and
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

from pflcore.groups import Groups, Tensors

# Options of attention with values that change nothing.
_PLAIN = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


@contextmanager
def use_precision(precision: str) -> Iterator[None]:
    """Set PyTorch's switches for float32 arithmetic on CUDA in the block, and restore them afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


class Features:
    """Captures, while it is entered, the inputs of the classifier and of the module whose inputs memories store.

    The classifier is the first module of the group ``head``; `head` has the names of its entries. A model without this
    group, or with a task that is not classification, has no features: they are an empty tensor. Memories and second
    classifiers (FedRoD) use the classifier's input too, unless the model's attribute ``memory`` names another module.
    """

    def __init__(self, model: nn.Module, groups: Groups) -> None:
        modules = dict(model.named_modules())
        # In a model with another task (a detector), the heads' inputs are maps and not features of a sample.
        plain = getattr(model, "task", None) is None
        names = [name for name, group in groups.group_of.items() if group == "head" and plain]
        path = names[0].rpartition(".")[0] if names else ""
        self.head = tuple(name for name in names if name.rpartition(".")[0] == path)
        self._classifier = modules[path] if names else None
        memory = getattr(model, "memory", None)
        self._memory = modules[memory] if memory else self._classifier
        self._captured: dict[nn.Module, Tensor] = {}
        self._depth = 0
        for module in {module for module in (self._classifier, self._memory) if module}:
            module.register_forward_pre_hook(self._capture)

    def __enter__(self) -> Features:
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:  # because tensors of a vectorised pass must not outlive the pass
            self._captured.clear()

    def of_classifier(self) -> Tensor:
        """Return the classifier's input in the last forward pass: (batch, …, features)."""
        return self._captured[self._classifier] if self._classifier else torch.empty(0)

    def of_memory(self) -> Tensor:
        """Return the features that memories store, from the last forward pass: (batch, …, features)."""
        return self._captured[self._memory] if self._memory else torch.empty(0)

    def _capture(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self._depth:
            self._captured[module] = inputs[0]


class Stateless:
    """Calls a model with given tensors in place of its parameters and buffers.

    ``torch.func.functional_call`` does the same, but looks up every tensor's module, and tied tensors, in each call,
    which takes a fifth of a step of a small model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, entries = model, model.state_dict().keys()
        places = {
            f"{path}.{key}".removeprefix("."): (tensors, key)
            for path, module in model.named_modules()
            for tensors in (module._parameters, module._buffers)
            for key in tensors
        }
        self.places = {name: place for name, place in places.items() if name in entries}

    def __call__(self, state: Tensors, inputs: Tensor) -> Any:
        """Return the model's output; entries of `state` that are not the model's are ignored. Raises ``ValueError``
        if one of the model's is missing, since the entry of some other client would take its place."""
        new = [(*self.places[name], tensor) for name, tensor in state.items() if name in self.places]
        if len(new) < len(self.places):
            missing = next(name for name in self.places if name not in state)
            needed = "a state for local.forward needs all entries of the model, buffers too"
            raise ValueError(f"a forward pass lacks {missing!r}: {needed}")
        before = [tensors[key] for tensors, key, _ in new]
        try:
            for tensors, key, tensor in new:
                tensors[key] = tensor
            return self.model(inputs)
        finally:
            for (tensors, key, _), tensor in zip(new, before, strict=True):
                tensors[key] = tensor


class Substitute(TorchFunctionMode):
    """Replaces some PyTorch functions by `others` while it is entered."""

    def __init__(self, others: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self.others = others

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.others.get(func, func)(*args, **(kwargs or {}))


def is_default(options: Mapping[str, Any]) -> bool:
    """Return whether these options of ``F.scaled_dot_product_attention`` do not change its result."""
    return all(name in _PLAIN and value == _PLAIN[name] for name, value in options.items())


@contextmanager
def autocast(precision: str, device: torch.device) -> Iterator[None]:
    """Enter the context of a forward pass in a precision."""
    if precision != "bf16":
        yield
        return
    # Each parameter is used once per pass, so a cache of cast parameters has no use.
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False), Substitute(_MIXED):
        yield


def _attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute attention on CPUs as two products, because their fused kernel is slow backwards in bfloat16."""
    if q.device.type != "cpu" or not is_default(options):
        return F.scaled_dot_product_attention(q, k, v, **options)
    scores = torch.matmul(q, k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    return torch.matmul(scores.softmax(-1), v)


def _in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, *args, **kwargs: function(x.float(), *args, **kwargs)


# Functions for which autocast uses kernels for mixed types, which some devices and transforms lack.
_MIXED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    **{norm: _in_float32(norm) for norm in (F.layer_norm, F.batch_norm, F.group_norm)},
}
