"""Steps of the clients' optimisers: functions of (parameters, gradients, state, learning rate), for every executor.

A state is one flat dict of tensors, so that it travels with a client's local state like momenta do: to another worker,
stacked with those of others, into a recorded step. It is empty before the first step of a round: nothing of an
optimiser outlives a round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pflcore.client_view import Rate
from pflcore.groups import Tensors, add_prefix, strip_prefix
from pflcore.settings import Training

_FIRST, _SECOND, _STEPS = "first/", "second/", "steps"


class Optimizer(Protocol):
    """One step, twice: for tensors that may be overwritten, and for those that must not."""

    def apply(self, params: Tensors, gradients: Tensors, state: Tensors, lr: Rate) -> tuple[Tensors, Tensors]:
        """The next parameters and state, in tensors of their own; works under ``torch.func.vmap``."""

    def apply_in_place(self, params: Tensors, gradients: Tensors, state: Tensors, lr: float) -> tuple[Tensors, Tensors]:
        """As :meth:`apply`, in the storage of `params` and `state` where that is faster."""


def make_optimizer(training: Training) -> Optimizer:
    """The optimiser that the settings name."""
    return Sgd(training) if training.optimizer == "sgd" else Adam(training)


@dataclass(frozen=True)
class Sgd:
    """As ``torch.optim.SGD``; the state are momenta, by the parameters' names."""

    training: Training

    def apply(self, params: Tensors, gradients: Tensors, state: Tensors, lr: Rate) -> tuple[Tensors, Tensors]:
        training, slopes = self.training, clipped(gradients, self.training.clip)
        if training.weight_decay:
            slopes = _plus(slopes, params, training.weight_decay)
        if training.momentum:
            state = _plus(slopes, state, training.momentum) if state else slopes
            slopes = _plus(slopes, state, training.momentum) if training.nesterov else state
        return _minus(params, slopes, lr), state

    def apply_in_place(self, params: Tensors, gradients: Tensors, state: Tensors, lr: float) -> tuple[Tensors, Tensors]:
        training = self.training
        values, slopes = list(params.values()), list(gradients.values())
        if training.clip:
            slopes = list(torch._foreach_mul(slopes, clipping(slopes, training.clip)))
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
    """As ``torch.optim.Adam`` and, with decay apart from the gradient, ``torch.optim.AdamW``.

    The state are the two moments and, since they are corrected by it, the number of steps.
    """

    training: Training

    def apply(self, params: Tensors, gradients: Tensors, state: Tensors, lr: Rate) -> tuple[Tensors, Tensors]:
        training, slopes = self.training, clipped(gradients, self.training.clip)
        if training.weight_decay and training.optimizer == "adam":
            slopes = _plus(slopes, params, training.weight_decay)
        elif training.weight_decay:
            params = {name: tensor - tensor * (lr * training.weight_decay) for name, tensor in params.items()}
        state = state or _at_rest(params)
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
        return self.apply(params, gradients, state, lr)


def _at_rest(params: Tensors) -> Tensors:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    steps = next(iter(params.values())).new_zeros(())
    return {**add_prefix(_FIRST, zeros), **add_prefix(_SECOND, zeros), _STEPS: steps}


def clipped(gradients: Tensors, most: float | None) -> Tensors:
    """The gradients, cut down to a norm of `most`; None leaves them."""
    if not most:
        return gradients
    factor = clipping(gradients.values(), most)
    return {name: slope * factor for name, slope in gradients.items()}


def clipping(gradients: Iterable[Tensor], most: float) -> Tensor:
    """What all gradients are multiplied by so that their norm is at most `most`, as PyTorch's ``clip_grad_norm_``."""
    norm = torch.stack([slope.square().sum() for slope in gradients]).sum().sqrt()
    return (most / (norm + 1e-6)).clamp(max=1.0)


def _plus(ones: Tensors, others: Tensors, weight: float) -> Tensors:
    return {name: torch.add(one, others[name], alpha=weight) for name, one in ones.items()}


def _minus(params: Tensors, slopes: Tensors, lr: Rate) -> Tensors:
    if isinstance(lr, Tensor):
        return {name: tensor - lr * slopes[name] for name, tensor in params.items()}
    return _plus(params, slopes, -lr)
