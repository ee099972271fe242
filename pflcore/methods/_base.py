"""What a method is: small functions over explicit state. No loop, no input or output, no device code.

A method says which groups of the model are personal or generated, what a client minimises, and what the server does
with what it gets back. The base class is federated averaging of everything that is shared; most methods override one
or two of the functions. Executors in :mod:`pflcore.engine` decide how the functions are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.groups import Groups, Roles, Tensors
from pflcore.registry import Entry


@dataclass(frozen=True)
class Federation:
    """The facts about a federation that a method may build its server state from; `momentum` is the clients'."""

    clients: int
    seed: int
    momentum: float = 0.0


@dataclass
class Server:
    """State of the server.

    Attributes:
        shared: The shared part of the model; empty for a method that shares nothing.
        extra: Whatever else the method keeps, under names of its own: hypernetworks, momenta, embeddings.
    """

    shared: Tensors
    extra: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Samples of one client: `images` (batch, channels, height, width), normalised; `labels` (batch,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Local:
    """One client's view of its round, made by the executor.

    Attributes:
        forward: (model state, images) → logits, in training mode.
        gradient: (loss function of the trained parameters, those parameters) → (gradients, loss).
        sgd: (parameters, gradients, momenta) → the next parameters and momenta. Momenta are empty at the first step.
        received: The model state that the client began the round with; not to be modified.
        parameters: Names of the entries that gradients train; the others are buffers.
    """

    forward: Callable[[Tensors, Tensor], Tensor]
    gradient: Callable[[Callable[[Tensors], Tensor], Tensors], tuple[Tensors, Tensor]]
    sgd: Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]
    received: Mapping[str, Tensor]
    parameters: frozenset[str]


@dataclass(frozen=True)
class Update:
    """What one client returns to the server.

    Attributes:
        client: Its number.
        samples: Its number of training samples, the weight in averages.
        sent: Its shared and generated entries as it received them.
        returned: The same entries after local training. Personal entries are never among them.
        steps: Local steps that it took.
    """

    client: int
    samples: int
    sent: Mapping[str, Tensor]
    returned: Mapping[str, Tensor]
    steps: int = 0


LocalState = dict[str, Tensors]

_OWN = "own/"


def own(tensors: Mapping[str, Tensor]) -> Tensors:
    """Entries under names that mark them as a client's further ones, beside those of its model."""
    return {f"{_OWN}{name}": tensor for name, tensor in tensors.items()}


def own_part(state: Mapping[str, Tensor]) -> Tensors:
    """The inverse of :func:`own`: a client's further entries under their plain names."""
    return {name.removeprefix(_OWN): tensor for name, tensor in state.items() if name.startswith(_OWN)}


def model_part(state: Mapping[str, Tensor]) -> Tensors:
    """A client's state without its further entries."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(_OWN)}


class Method(Entry):
    """Federated averaging over the shared groups; the base of every method."""

    # Group names as in Groups.select; everything that is neither personal nor generated is shared.
    personal: ClassVar[tuple[str, ...]] = ()
    generated: ClassVar[tuple[str, ...]] = ()

    def roles(self, groups: Groups) -> Roles:
        """Which state entries are shared, personal and generated. Raises :class:`UserError` for a missing group."""
        return Roles.split(groups, self.personal, self.generated)

    def companions(self, initial: Tensors, roles: Roles) -> Tensors:
        """What a client keeps beside its model, as it begins, under plain names: a second model, a mixing weight.

        Such entries never leave the client. They are in the state that its local training begins with and ends with,
        under names made by :func:`own`.
        """
        return {}

    def personalised(self, state: Tensors) -> Tensors:
        """The model that a client is measured with, from its state: entries of the model, and maybe further ones."""
        return state

    def participants(self, sampled: Sequence[int], clients: int) -> Sequence[int]:
        """The clients that train in a round, given those that were sampled out of `clients`."""
        return sampled

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        """Server state before the first round; `initial` is the common initial model."""
        return Server({name: tensor.clone() for name, tensor in initial.items() if name in roles.shared})

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        """The generated entries for each of the clients."""
        return [{} for _ in clients]

    def loss(self, local: Local, params: Tensors, batch: Batch) -> Tensor:
        """What a client minimises on one batch: a scalar."""
        return F.cross_entropy(local.forward(params, batch.images), batch.labels)

    def begin(self, local: Local, start: Tensors) -> LocalState:
        """State of local training before its first step; ``"model"`` is what the client ends with.

        `start` is the client's own copy of what it received; steps may work in place on it.
        """
        return {"model": start, "momenta": {}}

    def end(self, local: Local, state: LocalState) -> LocalState:
        """State of local training after its last step."""
        return state

    def step(self, local: Local, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        """One local step; returns the next state and the loss before it."""
        model = state["model"]
        # Further entries go along with the buffers; a forward pass takes no notice of them.
        trained = {name: tensor for name, tensor in model.items() if name in local.parameters}
        buffers = {name: tensor for name, tensor in model.items() if name not in local.parameters}
        gradients, loss = local.gradient(lambda params: self.loss(local, {**params, **buffers}, batch), trained)
        trained, momenta = local.sgd(trained, gradients, state["momenta"])
        return {**state, "model": {**model, **trained}, "momenta": momenta}, loss

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        """Server state after a round. It may reuse the storage of `server`, which is not used again."""
        return Server(average(updates, roles.shared), server.extra)


def weights(updates: Sequence[Update]) -> list[float]:
    """Each client's share of the cohort's training samples; sums to 1 over the *sampled* clients."""
    total = sum(update.samples for update in updates)
    return [update.samples / total for update in updates]


def average(updates: Sequence[Update], names: frozenset[str]) -> Tensors:
    """Mean of the returned entries, weighted by training samples; counters (integers) come from the first client."""
    shares = weights(updates)
    mean: Tensors = {}
    for name, first in updates[0].returned.items():
        if name not in names:
            continue
        if not first.is_floating_point():
            mean[name] = first.clone()
            continue
        total = torch.zeros_like(first)
        for share, update in zip(shares, updates, strict=True):
            total.add_(update.returned[name], alpha=share)
        mean[name] = total
    return mean
