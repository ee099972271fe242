"""Global models that clients adapt: Per-FedAvg, FedALA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Phase, Steps
from pflcore.methods import METHODS
from pflcore.methods._bases import OwnTuning
from pflcore.options import option


@METHODS.register
class PerFedAvg(OwnTuning):
    """FedAvg of a model that is good after one gradient step: MAML across clients, to first order.

    On the first half of a batch w' = w − α · gradient(w); the gradient at w' on the second half is that of the step of
    w, by the run's SGD. Before each measurement a client takes one step of α on one batch of its own training samples,
    which is not kept. The reported loss is that of w'.
    """

    name = "per_fedavg"
    citation = "Fallah, Mokhtari and Ozdaglar, Per-FedAvg, NeurIPS 2020, algorithm 1"
    plain_sgd = True
    alpha: float | None = option(None, gt=0, help="Size α of the step within and before a measurement; null: the lr.")

    def tuning(self) -> Phase:
        return Phase(Steps(), count=1, lr=self.alpha)

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        w, rest = split(model, local.parameters)

        def loss_on(half: Batch) -> Callable[[Tensors], Tensor]:
            return lambda params: self.loss(local, {**params, **rest}, half)

        halves: tuple[Batch, ...] = (batch, batch)
        half = len(batch.labels) // 2
        if half >= (2 if any(name.endswith("running_mean") for name in rest) else 1):  # else both are all of it
            halves = tuple(Batch(batch.inputs[part], batch.labels[part]) for part in (slice(half), slice(half, None)))
        first, second = halves
        grads, _ = local.gradient(loss_on(first), w)
        size = local.lr if self.alpha is None else self.alpha
        adapted = {name: tensor - size * grads[name] for name, tensor in w.items()}
        grads, loss = local.gradient(loss_on(second), adapted)
        w, opt_state = local.sgd(w, grads, state["opt_state"])
        return {**state, "model": {**model, **w}, "opt_state": opt_state}, loss


_BEFORE, _WEIGHTS = "own/before/", "own/weights/"


@METHODS.register
class FedALA(OwnTuning):
    """FedAvg whose clients begin a round with a learned mixture of the global model and their last one.

    It is θ + (w − θ) ⊙ W in the layers that are mixed, and the global model w below; θ is what the client ended its
    last round with. W begins as ones and learns before the client trains, in a pass over a share of its samples: W ←
    clip(W − η · gradient of the mixture ⊙ (w − θ), 0, 1). W and θ stay on the client, the trained mixture is averaged.
    A client is measured with one that it learns likewise, over all its samples.
    """

    name = "fedala"
    citation = "Zhang et al., FedALA, AAAI 2023, section 3"
    keeps = ("the mixed layers of its last model", "weights of the mixture")
    layers: str = option("head", choices=("head", "all"), help="What is mixed: the last linear layer or everything.")
    share: float = option(0.8, gt=0, le=1, help="Share s of a client's samples that weights learn from in a round.")
    eta: float = option(1.0, ge=0, help="Learning rate η of the weights; 0 is FedAvg.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        mixed = roles.shared & (federation.parameters if self.layers == "all" else frozenset(federation.head))
        if not mixed:
            raise UserError(f"method fedala: layers: {self.layers}: the backbone has none, or they are personal")
        start = {name: tensor for name, tensor in initial.items() if name in mixed}
        ones = {name: torch.ones_like(tensor) for name, tensor in start.items()}
        return {**add_prefix("before/", start), **add_prefix("weights/", ones)}

    def phases(self) -> tuple[Phase, ...]:
        return Phase(Mixing(self.eta), extra=True, share=self.share), Phase()

    def tuning(self) -> Phase:
        return Phase(Mixing(self.eta))

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        ended = {name: model[name] for name in strip_prefix(_BEFORE, model)}
        return {**state, "model": {**model, **add_prefix(_BEFORE, ended)}}


@dataclass(frozen=True)
class Mixing(Steps):
    """Steps that train the weights of the mixture, and leave the model as the mixture with which they end."""

    ignores_unlabelled = True
    eta: float

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, weights = state["model"], strip_prefix(_WEIGHTS, state["model"])
        rest = local.frozen(model)  # running statistics are those of the global model
        mixed = mixture(local.received, weights)
        grads, loss = local.gradient(lambda params: self.loss(local, {**rest, **params}, batch), mixed)
        away = {name: local.received[name] - before for name, before in strip_prefix(_BEFORE, model).items()}
        weights = {name: (weights[name] - self.eta * grads[name] * away[name]).clamp(0, 1) for name in weights}
        return {**state, "model": {**model, **add_prefix(_WEIGHTS, weights)}}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        return {**state, "model": {**model, **mixture(local.received, strip_prefix(_WEIGHTS, model))}}


def mixture(received: Mapping[str, Tensor], weights: Tensors) -> Tensors:
    """Return θ + (w − θ) ⊙ W of the mixed entries, w and θ from what a client received."""
    return {name: torch.lerp(received[f"{_BEFORE}{name}"], received[name], weight) for name, weight in weights.items()}
