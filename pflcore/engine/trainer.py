"""What one client does in a round: the steps of its local training, which every executor carries out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pflcore.engine.divergence import Diverged
from pflcore.engine.dropout import Noise
from pflcore.engine.precision import autocast
from pflcore.federation import FederatedData
from pflcore.groups import Tensors
from pflcore.methods import Method
from pflcore.methods._base import Local, LocalState
from pflcore.seeds import generator
from pflcore.settings import Training

# A client and the model state that it receives; the latter is left as it is.
Job = tuple[int, Tensors]


@dataclass(frozen=True)
class Outcome:
    """A client after its round: its model state and the mean loss over its local steps."""

    client: int
    model: Tensors
    loss: float


@dataclass
class Unfinished:
    """A client between two of its local steps."""

    state: LocalState
    losses: list[Tensor] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return len(self.losses)


class Trainer:
    """Local training and inference of any client of a federation: one model object, one method, one data set.

    Attributes:
        model: The module; its dropout layers are replaced by those of :mod:`pflcore.engine.dropout`.
        parameters: Names of the state entries that gradients train.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: frozenset[str],
        data: FederatedData,
        method: Method,
        training: Training,
        seed: int,
    ) -> None:
        self.model = model
        self.parameters = parameters
        self.data = data
        self.method = method
        self.training = training
        self.seed = seed
        self.noise = Noise(model, data.shape, data.device)

    def steps(self, client: int) -> int:
        """Local steps of a client per round."""
        return self.training.local_epochs * math.ceil(len(self.data.train[client]) / self.training.batch_size)

    def batches(self, round_: int, client: int) -> list[Tensor]:
        """The rows of each local step: every epoch shuffled anew, its last batch as small as it turns out."""
        rows = self.data.train[client]
        order = generator(self.seed, "batches", round_, client)
        batches: list[Tensor] = []
        for _ in range(self.training.local_epochs):
            shuffled = rows[torch.from_numpy(order.permutation(len(rows))).to(rows.device)]
            batches += torch.split(shuffled, self.training.batch_size)
        return batches

    def begin(self, received: Tensors) -> Unfinished:
        """Before the first step. Steps and buffers work in place, so the client starts from copies."""
        local = Local(self.forward, gradient, self.sgd, received, self.parameters)
        return Unfinished(self.method.begin(local, {name: tensor.clone() for name, tensor in received.items()}))

    def advance(
        self, round_: int, client: int, received: Tensors, unfinished: Unfinished, stop: int | None = None
    ) -> Unfinished:
        """Take the steps up to `stop`, by default all that are left."""
        self.model.train()
        state, losses = unfinished.state, list(unfinished.losses)
        batches = self.batches(round_, client)[unfinished.step : stop]
        for rows, batch in zip(batches, self.data.batches(batches, round_), strict=True):
            forward = self._noisy(len(rows), round_, client, len(losses))
            local = Local(forward, gradient, self.sgd, received, self.parameters)
            state, loss = self.method.step(local, state, batch)
            losses.append(loss.detach())
        return Unfinished(state, losses)

    def finish(self, round_: int, client: int, unfinished: Unfinished) -> Outcome:
        """After the last step. Raises :class:`Diverged` when a loss was not finite."""
        # One look at the device per client, not per step; a loss that is not finite stays so in the mean.
        mean = float(torch.stack(unfinished.losses).mean())
        if not math.isfinite(mean):
            raise Diverged(round_, client)
        return Outcome(client, unfinished.state["model"], mean)

    def train(self, round_: int, client: int, received: Tensors) -> Outcome:
        """All of a client's local training. Raises :class:`Diverged`."""
        return self.finish(round_, client, self.advance(round_, client, received, self.begin(received)))

    def forward(self, state: Tensors, images: Tensor) -> Tensor:
        """Logits of a model state, in the run's precision; the model's mode decides whether it is training."""
        with autocast(self.training.precision, images.device):
            logits: Tensor = functional_call(self.model, state, (images,))
        return logits.float()

    def _noisy(self, samples: int, round_: int, client: int, step: int) -> Callable[[Tensors, Tensor], Tensor]:
        """:meth:`forward` in training mode; each call within the step has dropout masks of its own."""
        if not self.noise.per_sample:
            return self.forward
        calls = iter(range(1 << 31))

        def forward(state: Tensors, images: Tensor) -> Tensor:
            self.noise.load(self.noise.draw(samples, self.seed, round_, client, step, next(calls)))
            return self.forward(state, images)

        return forward

    @torch.no_grad()
    def sgd(self, params: Tensors, gradients: Tensors, momenta: Tensors) -> tuple[Tensors, Tensors]:
        """One step of SGD as PyTorch's, in place."""
        training = self.training
        values, slopes = list(params.values()), list(gradients.values())
        if training.weight_decay:
            slopes = list(torch._foreach_add(slopes, values, alpha=training.weight_decay))
        if training.momentum:
            if momenta:
                torch._foreach_mul_(list(momenta.values()), training.momentum)
                torch._foreach_add_(list(momenta.values()), slopes)
            else:
                momenta = {name: slope.clone() for name, slope in zip(params, slopes, strict=True)}
            slopes = list(momenta.values())
        torch._foreach_add_(values, slopes, alpha=-training.lr)
        return params, momenta


def gradient(loss: Callable[[Tensors], Tensor], params: Tensors) -> tuple[Tensors, Tensor]:
    """The gradients of a loss function at `params`, by name, and its value."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    value = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), value
