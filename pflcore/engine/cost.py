"""The cost of a method: multiply-adds of a local step, bytes sent and received, numbers stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from pflcore.engine.client import Trainer
from pflcore.groups import Tensors

_SAMPLES = 4  # batch norm needs two, and a method may split a batch


@dataclass(frozen=True)
class Cost:
    """The cost of one run, except time."""

    sent_up: int  # bytes that a client sends in a round, the mean over all participations
    sent_down: int  # bytes that a client receives in a round, the mean over all participations
    stored: int  # numbers that a client holds between its rounds: personal entries, of the model and others
    received: int  # numbers that a client receives at the beginning of a round
    server: int  # numbers that the server holds, including those that it sends to clients, without momenta
    macs: int  # multiply-adds of a local step, forward and backward, per sample; matrix products and convolutions only


def count(tensors: Tensors) -> int:
    """Return the total number of elements in tensors."""
    return sum(tensor.numel() for tensor in tensors.values())


def step_macs(trainer: Trainer, received: Tensors) -> int:
    """Return the multiply-adds per sample of a local step, forward and backward, counted in a first step on four
    samples of client 0. With phases: those of all steps of a round, divided by the number of steps in the settings."""
    rows = trainer.data.train[0][torch.arange(_SAMPLES) % len(trainer.data.train[0])]
    batch = trainer.data.batch(rows)
    trainer.model.train()
    flops = 0
    for part in map(trainer.part, trainer.order):
        with operations() as counted:
            part.take_step(0, 0, received, part.begin(received).state, batch, 0)
        flops += counted.flops * part.local.steps(0, 0)
    return flops // (2 * _SAMPLES * trainer.local.steps(0, 0))


@contextmanager
def operations() -> Iterator[Operations]:
    """Count operations in the block. Attention is computed as two products, so counts agree on all devices."""
    with sdpa_kernel(SDPBackend.MATH), Operations() as counted:
        yield counted


def _product(*tensors: Tensor, **_: Any) -> int:
    """Return the flops of the product of the last two matrices, or batches of matrices."""
    first, second = tensors[-2:]
    return 2 * first.numel() * second.shape[-1]


def _convolution(inputs: Tensor, weight: Tensor, *options: Any, out_val: Tensor) -> int:
    transposed: bool = options[4]
    return 2 * len(inputs) * weight.numel() * (inputs if transposed else out_val).shape[2:].numel()


def _convolution_backward(gradient: Tensor, inputs: Tensor, weight: Tensor, *options: Any, out_val: Any) -> int:
    """Return the flops of a convolution's gradients: as many as forward for its inputs, and as many for its weights."""
    gradients: list[bool] = options[7]
    return _convolution(inputs, weight, *options, out_val=gradient) * sum(gradients[:2])


# PyTorch has such formulas in ``torch.utils.flop_counter``, which loads Triton: 60 MB and a seventh of a second.
_ATEN = torch.ops.aten
_FORMULAS: dict[Any, Callable[..., int]] = {
    **dict.fromkeys((_ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.baddbmm), _product),
    _ATEN.convolution: _convolution,
    _ATEN.convolution_backward: _convolution_backward,
}


class Operations(TorchDispatchMode):
    """Sums up the flops of matrix products and convolutions, like PyTorch's ``FlopCounterMode``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := _FORMULAS.get(func.overloadpacket):
            self.flops += int(formula(*args, **(kwargs or {}), out_val=out))
        return out
