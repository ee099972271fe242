"""A client's local step as a function for :func:`torch.func.vmap`: everything that varies by client is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor
from torch.func import grad_and_value
from torch.nn.attention import SDPBackend, sdpa_kernel

from pflcore.client_view import Rate
from pflcore.engine.executors.rewritten import Rewritten
from pflcore.engine.trainer import Trainer
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView, LocalState


@contextmanager
def vectorisable() -> Iterator[None]:
    """The context in which models are vectorised; to be entered outside of ``vmap``."""
    # Attention as two matrix products, which vmap knows how to vectorise; fused kernels it does not. PyTorch's own two
    # are for attention with options.
    with sdpa_kernel(SDPBackend.MATH), Rewritten():
        yield


class MorePasses(Exception):
    """A step made more forward passes than dropout masks were drawn for."""


@dataclass(repr=False)  # vmap asks for it at every call, and to show tensors is to wait for the device
class Step:
    """The steps of a client of `trainer`, which is told of a client's state and data by its arguments."""

    trainer: Trainer
    _noise: Tensor = field(init=False)
    _rate: Rate = field(init=False)
    _pass: int = field(init=False, default=0)
    # Buffers that a forward pass below a gradient has changed: the client's own, and their new values.
    _changed: list[tuple[Tensor, Tensor]] | None = field(init=False, default=None)

    def __call__(
        self,
        state: LocalState,
        received: Tensors,
        inputs: Tensor,
        labels: Tensor,
        noise: Tensor,
        rate: Tensor,
    ) -> tuple[LocalState, Tensor]:
        """The state after a step, and the loss before it.

        `noise` has a row for each forward pass; `rate` is the learning rate, of no elements where that never varies.
        """
        self._noise, self._pass = noise, 0
        self._rate = rate if rate.numel() else self.trainer.training.lr
        return self.trainer.step(self._local(received, self._rate), state, Batch(inputs, labels))

    def begin(self, received: Tensors) -> LocalState:
        """The state before the first step."""
        start = {name: tensor.clone() for name, tensor in received.items()}
        return self.trainer.method.begin(self._local(received), start)

    def end(self, state: LocalState, received: Tensors) -> LocalState:
        """The state after the last step."""
        return self.trainer.method.end(self._local(received), state)

    def _local(self, received: Tensors, lr: Rate | None = None) -> ClientView:
        own = self.trainer
        view = self._features, self._differentiate, self._sgd
        return ClientView(*view, received, own.parameters, own.roles, lr, own.task, head=own.seen.head)

    def _features(self, state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
        trainer = self.trainer
        if trainer.noise.per_sample:
            if self._pass == len(self._noise):
                raise MorePasses
            trainer.noise.load(self._noise[self._pass])
            self._pass += 1
        # A gradient must not see its inputs change, so buffers are copied and written back when it has been taken.
        own = {name: tensor for name, tensor in state.items() if name in trainer.entries - trainer.parameters}
        fresh = {name: tensor.clone() for name, tensor in own.items()}
        made = trainer.features({**state, **fresh}, inputs)
        pairs = [(own[name], fresh[name]) for name in own]
        if self._changed is None:
            _write_back(pairs)
        else:
            self._changed += pairs
        return made

    def _differentiate(
        self, loss: Callable[[Tensors], tuple[Tensor, Tensors]], params: Tensors
    ) -> tuple[Tensors, Tensor, Tensors]:
        targets: list[Tensor] = []

        def traced(params: Tensors) -> tuple[Tensor, tuple[list[Tensor], Tensors]]:
            self._changed = []
            value, aside = loss(params)
            pairs, self._changed = self._changed, None
            targets.extend(target for target, _ in pairs)
            return value, ([fresh.detach() for _, fresh in pairs], aside)

        gradients, (value, (fresh, aside)) = grad_and_value(traced, has_aux=True)(params)
        _write_back(list(zip(targets, fresh, strict=True)))
        return gradients, value, aside

    def _sgd(self, params: Tensors, gradients: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return self.trainer.optimizer.apply(params, gradients, state, self._rate)


def _write_back(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for target, value in pairs:
        target.copy_(value)
