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
from pflcore.errors import UserError
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
        batch_norm: Whether the model has batch norm, which cannot train on a batch of one sample.
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
        self.entries = frozenset(model.state_dict())
        self.data = data
        self.method = method
        self.training = training
        self.seed = seed
        self.batch_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
        self.noise = Noise(model, data.shape, data.device)

    def steps(self, client: int) -> int:
        """Local steps of a client per round. Raises as :meth:`batches`."""
        samples, size = len(self.data.train[client]), self.training.batch_size
        return self.training.local_epochs * (math.ceil(samples / size) - self._leaves_one_out(client))

    def batches(self, round_: int, client: int) -> list[Tensor]:
        """The rows of each local step: every epoch shuffled anew, its last batch as small as it turns out.

        A last batch of one sample is left out when the model has batch norm, which has nothing to normalise there.

        Raises:
            UserError: The model has batch norm, and all batches of this client have one sample.
        """
        rows, size = self.data.train[client], self.training.batch_size
        used = len(rows) - self._leaves_one_out(client)
        order = generator(self.seed, "batches", round_, client)
        batches: list[Tensor] = []
        for _ in range(self.training.local_epochs):
            shuffled = rows[torch.from_numpy(order.permutation(len(rows))).to(rows.device)]
            batches += torch.split(shuffled[:used], size)
        return batches

    def _leaves_one_out(self, client: int) -> bool:
        """Whether a client's last batch is left out, since batch norm cannot take its only sample."""
        samples, size = len(self.data.train[client]), self.training.batch_size
        if not self.batch_norm or samples % size != (1 if size > 1 else 0):
            return False
        if size == 1 or samples == 1:
            why = "batch_size is 1" if size == 1 else "it has a single training sample"
            raise UserError(
                f"client {client} cannot train a model with batch norm, since {why} and there is nothing to normalise; "
                "use larger batches, clients with more samples, or a backbone without batch norm"
            )
        return True

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
        local = Local(self.forward, gradient, self.sgd, {}, self.parameters)
        model = self.method.end(local, unfinished.state)["model"]
        # One look at the device per client, not per step; a loss that is not finite stays so in the mean.
        mean = float(torch.stack(unfinished.losses).mean())
        if not math.isfinite(mean):
            raise Diverged(round_, client)
        return Outcome(client, model, mean)

    def train(self, round_: int, client: int, received: Tensors) -> Outcome:
        """All of a client's local training. Raises :class:`Diverged`."""
        return self.finish(round_, client, self.advance(round_, client, received, self.begin(received)))

    def forward(self, state: Tensors, images: Tensor) -> Tensor:
        """Logits of a model state, in the run's precision; the model's mode decides whether it is training.

        Entries that are not the model's are passed over.
        """
        state = {name: tensor for name, tensor in state.items() if name in self.entries}
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
