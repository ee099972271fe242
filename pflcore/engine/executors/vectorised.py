"""Local steps as functions for :func:`torch.func.vmap`: everything that differs between clients is an argument."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pflcore.client_view import Rate
from pflcore.engine.client import Trainer
from pflcore.engine.executors.attention import fused_attention, has_kernel
from pflcore.engine.executors.graphs import copy_tree
from pflcore.engine.forward import Substitute, is_default
from pflcore.engine.linear import should_split, split_linear
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView, LocalState

# The label that PyTorch's cross_entropy ignores; the mean is over samples with other labels.
_NO_LABEL = -100


class TooFewMasks(Exception):
    """A step makes more forward passes than there are dropout masks for."""


class Step:
    """Vectorised steps of `trainer`'s clients, whose states and data are arguments. With `pads`, batches are padded
    with samples of weight 0."""

    def __init__(self, trainer: Trainer, pads: bool) -> None:
        self.trainer, self.pads = trainer, pads
        self._noise, self._pass = torch.empty(0), 0
        self._rate: Rate = trainer.training.lr
        # Buffers changed in a forward pass inside of a gradient: the buffers of the state, and their new values.
        self._changed: list[tuple[Tensor, Tensor]] | None = None

    def take(self, state: LocalState, received: Tensors, *data: Tensor) -> tuple[LocalState, Tensor]:
        """Take a step of all clients; return their next states, as new tensors, and their losses.

        Args:
            data: Inputs and labels; random numbers of dropout, (clients, passes, numbers); learning rates, (clients,),
                or (clients, 0) if they never vary; weights, (clients, batch), 1 for samples and 0 for padding, or
                (clients, 0) without padding. The state of a client without samples does not change, and its loss has no
                meaning.
        """
        after, losses = vmap(self._take_one)(copy_tree(state), received, *data)
        if not data[-1].numel():
            return after, losses
        steps = data[-1].any(1)

        def select(key: str, name: str, tensor: Tensor) -> Tensor:
            before = state.get(key, {}).get(name)  # new entries, such as momenta, are zero before
            condition = steps.view(-1, *[1] * (tensor.ndim - 1))
            return torch.where(condition, tensor, torch.zeros_like(tensor) if before is None else before)

        return {key: {name: select(key, name, it) for name, it in part.items()} for key, part in after.items()}, losses

    def begin(self, received: Tensors) -> LocalState:
        """Return the states of all clients before the first step."""
        return vmap(lambda entries: self.trainer.method.begin(self._local(entries), dict(entries)))(copy_tree(received))

    def end(self, state: LocalState, received: Tensors) -> LocalState:
        """Return the states of all clients after the last step, as new tensors."""
        return vmap(lambda it, entries: self.trainer.method.end(self._local(entries), it))(copy_tree(state), received)

    def _take_one(self, state: LocalState, received: Tensors, *data: Tensor) -> tuple[LocalState, Tensor]:
        inputs, labels, self._noise, rate, weight = data
        self._pass = 0
        self._rate = rate if rate.numel() else self.trainer.training.lr
        local = self._local(received, self._rate)
        if not (self.pads and weight.numel()):
            return self.trainer.step(local, state, Batch(inputs, labels))
        labels = labels.masked_fill((weight == 0).view(-1, *[1] * (labels.ndim - 1)), _NO_LABEL)
        with Substitute({F.batch_norm: partial(weighted_batch_norm, weight)}):
            return self.trainer.step(local, state, Batch(inputs, labels))

    def _local(self, received: Tensors, lr: Rate | None = None) -> ClientView:
        view = self.trainer.view(self._features, received)
        return replace(view, differentiate=self._differentiate, sgd=self._sgd, rate=lr)

    def _features(self, state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
        trainer = self.trainer
        if trainer.noise.per_sample:
            if self._pass == len(self._noise):
                raise TooFewMasks
            trainer.noise.load(self._noise[self._pass])
            self._pass += 1
        # The inputs of a gradient must not change, so buffers are copied, and written back after the gradient.
        buffers = {name: tensor for name, tensor in state.items() if name in trainer.entries - trainer.parameters}
        copies = {name: tensor.clone() for name, tensor in buffers.items()}
        outputs = trainer.features({**state, **copies}, inputs)
        pairs = list(zip(buffers.values(), copies.values(), strict=True))
        if self._changed is not None:
            self._changed += pairs
        else:
            _write_back(pairs)
        return outputs

    def _differentiate(
        self, loss: Callable[[Tensors], tuple[Tensor, Tensors]], params: Tensors
    ) -> tuple[Tensors, Tensor, Tensors]:
        targets: list[Tensor] = []

        def traced(params: Tensors) -> tuple[Tensor, tuple[list[Tensor], Tensors]]:
            self._changed = []
            value, aux = loss(params)
            pairs, self._changed = self._changed, None
            targets.extend(target for target, _ in pairs)
            return value, ([copy.detach() for _, copy in pairs], aux)

        gradients, (value, (copies, aux)) = grad_and_value(traced, has_aux=True)(params)
        _write_back(list(zip(targets, copies, strict=True)))
        return gradients, value, aux

    def _sgd(self, params: Tensors, gradients: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return self.trainer.optimizer.apply(params, gradients, state, self._rate)


def _write_back(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for target, value in pairs:
        target.copy_(value)


# --- PyTorch functions in forms that vmap supports, or that make fewer passes over memory under vmap -----------------


@contextmanager
def vectorisable() -> Iterator[None]:
    """Enter the context for vectorised models; enter it outside of ``vmap``."""
    # SDPBackend.MATH is for attention with options, because vmap does not support PyTorch's fused kernels.
    with sdpa_kernel(SDPBackend.MATH), Substitute(REWRITTEN):
        yield


def _attention(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Tensor:
    """Compute softmax(q kᵀ / √width) v, (…, queries, width) and (…, keys, width), by a fused kernel if there is one.

    Otherwise it makes fewer passes over memory than PyTorch's form without fused kernels, which also scales keys and
    checks for rows that a mask leaves empty.
    """
    if args or not is_default(options):
        return F.scaled_dot_product_attention(q, k, v, *args, **options)
    if has_kernel(q, k, v):
        return fused_attention(q, k, v)
    scores = (q * float(q.shape[-1] ** -0.5)) @ k.transpose(-1, -2)
    return scores.softmax(-1) @ v


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Apply weight and bias separately, because the vectorised gradient of the fused form normalises again."""
    normed = F.layer_norm(x, shape, eps=eps)
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Add the bias separately, because PyTorch's vectorised form multiplies it by 1 first."""
    product = split_linear(x, weight) if should_split(x) else F.linear(x, weight)
    return product if bias is None else product + bias.to(product.dtype)


REWRITTEN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    F.layer_norm: _layer_norm,
    F.linear: _linear,
}


def weighted_batch_norm(
    counts: Tensor,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute ``F.batch_norm``, in training with statistics over the samples for which `counts` (batch,) is 1."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    over, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
    counted = counts.view(-1, *[1] * (x.ndim - 1))
    count = counts.sum() * (x[0, 0].numel())
    mean = (x * counted).sum(over) / count
    centred = x - mean.view(shape)
    variance = (centred.square() * counted).sum(over) / count
    if running_mean is not None and running_var is not None:
        running_mean.mul_(1 - momentum).add_(momentum * mean.detach())
        running_var.mul_(1 - momentum).add_(momentum * variance.detach() * (count / (count - 1)))
    normed = centred * (variance + eps).rsqrt().view(shape)
    normed = normed if weight is None else normed * weight.view(shape)
    return normed if bias is None else normed + bias.view(shape)
