"""A step of the server's own on the shared parameters, whatever the method made of them.

As in Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2: what the method would go to, less where
it was, is a pseudo-gradient Δ. With x the shared parameters, m at first 0 and v at first τ², as small as it allows:

- adam, yogi, adagrad: m ← β1 · m + (1 − β1) · Δ, and x ← x + η · m / (√v + τ), where v becomes β2 · v + (1 − β2) · Δ²,
  v − (1 − β2) · Δ² · sign(v − Δ²), or v + Δ². Neither mean is corrected for its beginning.
- momentum, FedAvgM of Hsu et al. (arXiv 1909.06335): m ← β1 · m + Δ, and x ← x + η · m.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from pflcore.engine.state import compare
from pflcore.errors import UserError
from pflcore.groups import Tensors, add_prefix, strip_prefix
from pflcore.method import Server
from pflcore.settings import Training

# Learning rates where the settings leave them open: that of an average, and one for steps of about its own size.
_FULL, _SMALL = 1.0, 0.01


class ServerOptimizer:
    """The optimiser and its state, which is a part of a run's. Without one the server stays as the method made it.

    Args:
        method: What the method is called.
        parameters: The shared parameters as they begin; other entries, such as running statistics, are left alone.

    Raises:
        UserError: The method shares no parameters.
    """

    def __init__(self, training: Training, method: str, parameters: Mapping[str, Tensor]) -> None:
        self.training = training
        self.kind = training.server_optimizer
        on = self.kind != "none"
        if on and not parameters:
            raise UserError(
                f"method {method} shares no parameters of the model, so training.server_optimizer: {self.kind} has "
                "nothing to act on"
            )
        self.first: Tensors = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()} if on else {}
        squared = self.first if self.kind != "momentum" else {}
        self.second: Tensors = {name: torch.full_like(zeros, training.server_tau**2) for name, zeros in squared.items()}

    def before(self, server: Server) -> Tensors:
        """Copies of what it acts on, as they are before the method's update, which may work in place."""
        return {name: server.shared[name].clone() for name in self.first}

    def step(self, before: Tensors, server: Server) -> Server:
        """The server after a round; `server` is the method's, `before` from before it."""
        if not before:
            return server
        moved = {name: self._moved(name, tensor, server.shared[name] - tensor) for name, tensor in before.items()}
        return replace(server, shared={**server.shared, **moved})

    def _moved(self, name: str, x: Tensor, change: Tensor) -> Tensor:
        training, kind = self.training, self.kind
        beta1, beta2, tau = training.server_beta1, training.server_beta2, training.server_tau
        if kind == "momentum":
            self.first[name] = m = beta1 * self.first[name] + change
            return x + (training.server_lr or _FULL) * m
        self.first[name] = m = beta1 * self.first[name] + (1 - beta1) * change
        v, square = self.second[name], change.square()
        if kind == "adagrad":
            v = v + square
        elif kind == "adam":
            v = beta2 * v + (1 - beta2) * square
        else:
            v = v - (1 - beta2) * square * (v - square).sign()
        self.second[name] = v
        return x + (training.server_lr or _SMALL) * m / (v.sqrt() + tau)

    def state(self) -> Tensors:
        return add_prefix("first/", self.first) | add_prefix("second/", self.second)

    def misfit(self, tensors: Tensors) -> str:
        return compare(tensors, self.state())

    def restore(self, tensors: Tensors) -> None:
        device = next((tensor.device for tensor in self.first.values()), None)
        moved = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
        self.first, self.second = strip_prefix("first/", moved), strip_prefix("second/", moved)
