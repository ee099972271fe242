"""What a method costs: multiply-adds of a local step, bytes that travel, numbers that are stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from pflcore.engine.client import Trainer
from pflcore.groups import Tensors

_SAMPLES = 4  # batch norm needs two, and a method may split a batch


@dataclass(frozen=True)
class Cost:
    """What one run costs, apart from time."""

    sent_up: int  # bytes that one client sends in a round, on average over all that took part
    sent_down: int  # and receives
    stored: int  # numbers that a client holds between its rounds: personal entries, and what is kept beside them
    received: int  # numbers that a client receives at the beginning of a round
    server: int  # parameters that the server holds, those that it sends to clients included, without momenta
    macs: int  # multiply-adds of a local step, forward and backward, per sample; matrix products and convolutions only


def count(tensors: Tensors) -> int:
    """Count the numbers in some tensors."""
    return sum(tensor.numel() for tensor in tensors.values())


def step_macs(trainer: Trainer, received: Tensors) -> int:
    """Count the multiply-adds per sample of a first local step, forward and backward, on four samples of client 0; in
    phases, those of all of a round's steps for each step that the settings ask for."""
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
    """Count what is executed in the block. Attention is its two products, which count the same on every device."""
    with sdpa_kernel(SDPBackend.MATH), Operations() as counted:
        yield counted


class Operations(TorchDispatchMode):
    """Adds up what PyTorch's formulas say of each operation, as its ``FlopCounterMode``, which loads the compiler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func.overloadpacket):
            self.flops += int(formula(*args, **(kwargs or {}), out_val=out))
        return out
