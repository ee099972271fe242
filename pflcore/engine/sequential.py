"""The reference executor: one client at a time, plainly, with the best error messages.

Other executors are checked against this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pflcore.engine.divergence import Diverged
from pflcore.engine.evaluate import Scores, score_client, score_one_model
from pflcore.federation import FederatedData
from pflcore.groups import Tensors
from pflcore.methods import Method
from pflcore.methods._base import Local
from pflcore.seeds import generator, torch_seed
from pflcore.settings import Training

# A client and the model state that it receives; the latter is left as it is.
Job = tuple[int, Tensors]


@dataclass(frozen=True)
class Outcome:
    """A client after its round: its model state and the mean loss over its local steps."""

    client: int
    model: Tensors
    loss: float


class Sequential:
    """Trains and measures clients one after another on the device of the data."""

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

    def __enter__(self) -> Sequential:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def train(self, round_: int, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Local training of each job's client. Raises :class:`Diverged` for the first whose loss is not finite."""
        return (self.train_client(round_, client, received) for client, received in jobs)

    def score_each(self, jobs: Iterable[Job]) -> Scores:
        """Scores of every job's own model on its client's test samples."""
        return Scores.join(score_client(self.model, state, self.data, client) for client, state in jobs)

    def score_shared(self, state: Tensors) -> Scores:
        """Scores of one model that all clients share."""
        return score_one_model(self.model, state, self.data)

    def train_client(self, round_: int, client: int, received: Tensors) -> Outcome:
        """Local training of one client from the state it `received`. Raises :class:`Diverged`."""
        torch.manual_seed(torch_seed(self.seed, "dropout", round_, client))
        self.model.train()
        local = Local(self._forward, _gradient, self._sgd(), received, self.parameters)
        # Steps and buffers work in place, so the client starts from copies.
        state = self.method.begin(local, {name: tensor.clone() for name, tensor in received.items()})
        losses = []
        for rows in self._batches(round_, client):
            state, loss = self.method.step(local, state, self.data.batch(rows))
            losses.append(loss.detach())
        # One look at the device per client, not per step; a loss that is not finite stays so in the mean.
        mean = float(torch.stack(losses).mean())
        if not math.isfinite(mean):
            raise Diverged(round_, client)
        return Outcome(client, state["model"], mean)

    def _forward(self, state: Tensors, images: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.model, state, (images,))
        return logits

    def _batches(self, round_: int, client: int) -> Iterator[Tensor]:
        rows = self.data.train[client]
        order = generator(self.seed, "batches", round_, client)
        for _ in range(self.training.local_epochs):
            shuffled = rows[torch.from_numpy(order.permutation(len(rows))).to(rows.device)]
            yield from torch.split(shuffled, self.training.batch_size)

    def _sgd(self) -> Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]:
        training = self.training

        @torch.no_grad()
        def step(params: Tensors, gradients: Tensors, momenta: Tensors) -> tuple[Tensors, Tensors]:
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

        return step


def _gradient(loss: Callable[[Tensors], Tensor], params: Tensors) -> tuple[Tensors, Tensor]:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    value = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), value
