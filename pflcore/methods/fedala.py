"""Element-wise mixtures of a client's last model with the global one, learned before each round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Phase, Steps
from pflcore.methods import METHODS
from pflcore.methods._features import OwnTuning
from pflcore.options import option

_BEFORE, _WEIGHTS = "own/before/", "own/weights/"


@METHODS.register
class FedALA(OwnTuning):
    """FedAvg whose clients begin a round with a learned mixture of the global model and their last one.

    A round begins with θ + (w − θ) ⊙ W in the layers that are mixed, and with the global model w below them; θ is what
    the client ended its last round with. The weights W begin as ones and learn before the client trains, in one pass
    over a share of its samples: W ← clip(W − η · gradient of the mixture ⊙ (w − θ), 0, 1). W and θ stay on the client,
    the trained mixture is averaged. A client is measured with one that it learns likewise, over all its samples.
    """

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
        grads, loss = local.gradient(
            lambda params: self.loss(local, {**rest, **params}, batch), mixture(local.received, weights)
        )
        away = {name: local.received[name] - before for name, before in strip_prefix(_BEFORE, model).items()}
        weights = {name: (weights[name] - self.eta * grads[name] * away[name]).clamp(0, 1) for name in weights}
        return {**state, "model": {**model, **add_prefix(_WEIGHTS, weights)}}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        return {**state, "model": {**model, **mixture(local.received, strip_prefix(_WEIGHTS, model))}}


def mixture(received: Mapping[str, Tensor], weights: Tensors) -> Tensors:
    """Return θ + (w − θ) ⊙ W of the mixed entries, w and θ from what a client received."""
    return {name: torch.lerp(received[f"{_BEFORE}{name}"], received[name], weight) for name, weight in weights.items()}
