"""Optimisers of clients and of the server, and schedules of the learning rate, as functions of values.

The state of a client's optimiser is one flat dict of tensors. So it can be handled like the model: sent to another
worker, stacked with those of other clients, or read by a recorded step. It is empty before the first step of a round.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pflcore.client_view import Rate
from pflcore.errors import UserError
from pflcore.groups import Tensors, add_prefix, strip_prefix
from pflcore.method import Server
from pflcore.settings import Training

_FIRST, _SECOND, _STEPS = "first/", "second/", "steps"


@dataclass(frozen=True)
class Sgd:
    """SGD as in ``torch.optim.SGD``; the state has the momenta, under the parameters' names."""

    training: Training

    def apply(self, params: Tensors, gradients: Tensors, state: Tensors, lr: Rate) -> tuple[Tensors, Tensors]:
        """Return the next parameters and state as new tensors; works under ``torch.func.vmap``."""
        training, slopes = self.training, clipped(gradients, self.training.clip)
        if training.weight_decay:
            slopes = _plus(slopes, params, training.weight_decay)
        if training.momentum:
            state = _plus(slopes, state, training.momentum) if state else slopes
            slopes = _plus(slopes, state, training.momentum) if training.nesterov else state
        if isinstance(lr, Tensor):
            return {name: tensor - lr * slopes[name] for name, tensor in params.items()}, state
        return _plus(params, slopes, -lr), state

    def apply_in_place(self, params: Tensors, gradients: Tensors, state: Tensors, lr: float) -> tuple[Tensors, Tensors]:
        """Take the step of :meth:`apply`, in the storage of `params` and `state` if that is faster."""
        training = self.training
        values, by_name = list(params.values()), clipped(gradients, training.clip)
        slopes = [by_name[name] for name in params]
        if training.weight_decay:
            slopes = list(torch._foreach_add(slopes, values, alpha=training.weight_decay))
        if training.momentum:
            if state:
                torch._foreach_mul_(list(state.values()), training.momentum)
                torch._foreach_add_(list(state.values()), slopes)
            else:
                state = {name: slope.clone() for name, slope in zip(params, slopes, strict=True)}
            moved = list(state.values())
            slopes = list(torch._foreach_add(slopes, moved, alpha=training.momentum)) if training.nesterov else moved
        torch._foreach_add_(values, slopes, alpha=-lr)
        return params, state


@dataclass(frozen=True)
class Adam:
    """Adam as in ``torch.optim.Adam`` and ``torch.optim.AdamW``; the state has both moments and the number of steps."""

    training: Training

    def apply(self, params: Tensors, gradients: Tensors, state: Tensors, lr: Rate) -> tuple[Tensors, Tensors]:
        training, slopes = self.training, clipped(gradients, self.training.clip)
        if training.weight_decay and training.optimizer == "adam":
            slopes = _plus(slopes, params, training.weight_decay)
        elif training.weight_decay:
            params = {name: tensor - tensor * (lr * training.weight_decay) for name, tensor in params.items()}
        if not state:
            zeros = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
            count = next(iter(params.values())).new_zeros(())
            state = {**add_prefix(_FIRST, zeros), **add_prefix(_SECOND, zeros), _STEPS: count}
        first, second, steps = strip_prefix(_FIRST, state), strip_prefix(_SECOND, state), state[_STEPS] + 1
        first = {name: torch.lerp(first[name], slope, 1 - training.beta1) for name, slope in slopes.items()}
        second = {name: torch.lerp(second[name], slope.square(), 1 - training.beta2) for name, slope in slopes.items()}
        size, scale = lr / (1 - training.beta1**steps), (1 - training.beta2**steps).sqrt()
        moved = {
            name: tensor - size * first[name] / (second[name].sqrt() / scale + training.eps)
            for name, tensor in params.items()
        }
        return moved, {**add_prefix(_FIRST, first), **add_prefix(_SECOND, second), _STEPS: steps}

    def apply_in_place(self, params: Tensors, gradients: Tensors, state: Tensors, lr: float) -> tuple[Tensors, Tensors]:
        """Take the step of :meth:`apply`, to the bit, in the storage of `params` and of a `state` that is not empty."""
        training, values = self.training, list(params.values())
        if not state:
            moved, state = self.apply(params, gradients, state, lr)
            torch._foreach_copy_(values, [moved[name] for name in params])
            return params, state
        by_name = clipped(gradients, training.clip)
        slopes = [by_name[name] for name in params]
        if training.weight_decay and training.optimizer == "adam":
            slopes = list(torch._foreach_add(slopes, values, alpha=training.weight_decay))
        elif training.weight_decay:
            torch._foreach_sub_(values, torch._foreach_mul(values, lr * training.weight_decay))
        first, second = ([state[f"{prefix}{name}"] for name in params] for prefix in (_FIRST, _SECOND))
        steps = state[_STEPS] + 1
        torch._foreach_lerp_(first, slopes, 1 - training.beta1)
        torch._foreach_lerp_(second, torch._foreach_mul(slopes, slopes), 1 - training.beta2)
        moves = torch._foreach_mul(first, lr / (1 - training.beta1**steps))
        sizes = torch._foreach_sqrt(second)
        torch._foreach_div_(sizes, (1 - training.beta2**steps).sqrt())
        torch._foreach_add_(sizes, training.eps)
        torch._foreach_div_(moves, sizes)
        torch._foreach_sub_(values, moves)
        return params, {**state, _STEPS: steps}


def make_optimizer(training: Training) -> Sgd | Adam:
    """Return the clients' optimiser that the settings name."""
    return Sgd(training) if training.optimizer == "sgd" else Adam(training)


def clipped(gradients: Tensors, norm: float | None) -> Tensors:
    """Return gradients scaled down to a joint norm of at most `norm`, as in ``clip_grad_norm_``; None: unchanged."""
    if not norm:
        return gradients
    total = torch.stack([slope.square().sum() for slope in gradients.values()]).sum().sqrt()
    factor = (norm / (total + 1e-6)).clamp(max=1.0)
    return {name: slope * factor for name, slope in gradients.items()}


def _plus(tensors: Tensors, others: Tensors, weight: float) -> Tensors:
    return {name: torch.add(tensor, others[name], alpha=weight) for name, tensor in tensors.items()}


def learning_rate(training: Training, done: float) -> float:
    """Return the clients' learning rate of a step after `done` rounds; a fraction means a step within a round.

    Schedules are those of PyTorch with rounds in place of epochs: ``CosineAnnealingLR``, ``LinearLR``, ``MultiStepLR``
    or ``StepLR``, ``ExponentialLR``. A warm-up of w rounds is a ``LinearLR`` before the schedule: the rate begins at
    lr / (w + 1) and grows by the same amount in each round. The schedule counts rounds from the end of the warm-up.
    """
    if done < training.warmup:
        return training.lr * (done + 1) / (training.warmup + 1)
    since = done - training.warmup
    share = since / max(1, training.rounds - training.warmup)
    above = training.lr - training.lr_min
    match training.schedule:
        case "cosine":
            return training.lr_min + above * (1 + math.cos(math.pi * share)) / 2
        case "linear":
            return training.lr_min + above * (1 - share)
        case "step":
            drops = since // training.step_every if training.step_every else bisect_right(training.milestones, since)
            return training.lr * math.pow(training.gamma or 1.0, drops)
        case "exponential":
            return training.lr * math.pow(training.gamma or 1.0, since)
    return training.lr


class ServerOptimizer:
    """The server's optimiser on the shared parameters; without one, the method's update is unchanged.

    As in Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2: the pseudo-gradient Δ is the change
    that the method's update makes. With x the shared `parameters`, m initially 0 and v initially τ²:

    - adam, yogi, adagrad: m ← β1 · m + (1 − β1) · Δ, and x ← x + η · m / (√v + τ), where v becomes
      β2 · v + (1 − β2) · Δ² (adam), v − (1 − β2) · Δ² · sign(v − Δ²) (yogi), v + Δ² (adagrad). No bias correction.
    - momentum, FedAvgM of Hsu et al. (arXiv 1909.06335): m ← β1 · m + Δ, and x ← x + η · m.
    """

    def __init__(self, training: Training, method: str, parameters: Mapping[str, Tensor]) -> None:
        self.training, self.kind = training, training.server_optimizer
        on = self.kind != "none"
        if on and not parameters:
            why = f"so training.server_optimizer: {self.kind} has nothing to act on"
            raise UserError(f"method {method} shares no parameters of the model, {why}")
        # Default learning rates: 1 is plain averaging; for adaptive optimisers, about the size of a parameter's step.
        self.lr = training.server_lr or (1.0 if self.kind == "momentum" else 0.01)
        self.first: Tensors = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()} if on else {}
        squared = self.first if self.kind != "momentum" else {}
        self.second: Tensors = {name: torch.full_like(zeros, training.server_tau**2) for name, zeros in squared.items()}

    def before(self, server: Server) -> Tensors:
        """Return copies of the parameters before the method's update, which may work in place."""
        return {name: server.shared[name].clone() for name in self.first}

    def step(self, before: Tensors, server: Server) -> Server:
        """Return the server after the step; `server` is after the method's update, `before` from :meth:`before`."""
        if not before:
            return server
        moved = {name: self._moved(name, tensor, server.shared[name] - tensor) for name, tensor in before.items()}
        return replace(server, shared={**server.shared, **moved})

    def _moved(self, name: str, x: Tensor, change: Tensor) -> Tensor:
        beta1, beta2, tau = self.training.server_beta1, self.training.server_beta2, self.training.server_tau
        m = beta1 * self.first[name] + (1 if self.kind == "momentum" else 1 - beta1) * change
        self.first[name] = m
        if self.kind == "momentum":
            return x + self.lr * m
        v, square = self.second[name], change.square()
        if self.kind == "adagrad":
            v = v + square
        elif self.kind == "adam":
            v = beta2 * v + (1 - beta2) * square
        else:
            v = v - (1 - beta2) * square * (v - square).sign()
        self.second[name] = v
        return x + self.lr * m / (v.sqrt() + tau)

    def state(self) -> Tensors:
        """Return the moments, with prefixes before the parameters' names."""
        return add_prefix(_FIRST, self.first) | add_prefix(_SECOND, self.second)

    def restore(self, tensors: Tensors) -> None:
        """Set the moments to those of :meth:`state`."""
        self.first, self.second = strip_prefix(_FIRST, tensors), strip_prefix(_SECOND, tensors)
