"""Global models that clients adapt: Per-FedAvg, FedALA."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, pick, split, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Phase, Steps
from pflcore.methods import METHODS
from pflcore.methods._bases import OwnTuning
from pflcore.options import option


@METHODS.register
class PerFedAvg(OwnTuning):
    """FedAvg of a model that is good after one gradient step: first-order MAML across clients.

    The first half of a batch gives w' = w − α · gradient(w). The run's SGD then updates w with the gradient at w' on
    the second half. Before each measurement a client takes one step of size α on one batch of its own training samples,
    which is discarded afterwards. The reported loss is the loss at w'.
    """

    name = "per_fedavg"
    citation = "Fallah, Mokhtari and Ozdaglar, Per-FedAvg, NeurIPS 2020, algorithm 1"
    plain_sgd = True
    alpha: float | None = option(None, gt=0, help="Size α of the step within and before a measurement; null: the lr.")

    def tuning(self) -> Phase:
        return Phase(Steps(), count=1, lr=self.alpha)

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, half = state["model"], len(batch.labels) // 2
        w, rest = split(model, local.parameters)
        first = second = batch  # if a half would be too small
        if half >= (2 if any(name.endswith("running_mean") for name in rest) else 1):
            first = Batch(batch.inputs[:half], batch.labels[:half])
            second = Batch(batch.inputs[half:], batch.labels[half:])
        grads, _ = local.gradient(lambda params: self.loss(local, {**params, **rest}, first), w)
        size = local.lr if self.alpha is None else self.alpha
        adapted = {name: tensor - size * grads[name] for name, tensor in w.items()}
        grads, loss = local.gradient(lambda params: self.loss(local, {**params, **rest}, second), adapted)
        w, opt_state = local.sgd(w, grads, state["opt_state"])
        return {**state, "model": {**model, **w}, "opt_state": opt_state}, loss


_BEFORE, _WEIGHTS = "own/before/", "own/weights/"


@METHODS.register
class FedALA(OwnTuning):
    """FedAvg whose clients begin a round with a learned mixture of the global model and their last one.

    The mixture is θ + (w − θ) ⊙ W in the mixed layers and the global model w below them; θ is the client's model at the
    end of its last round. W begins as ones and is learned before the client trains, in a pass over a share of its
    samples: W ← clip(W − η · gradient of the mixture ⊙ (w − θ), 0, 1). W and θ stay on the client, the trained mixture
    is averaged. A client is measured with a mixture that it learns in the same way, over all its samples.
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
        values = pick(initial, mixed)
        weights = {name: torch.ones_like(tensor) for name, tensor in values.items()}
        return {**add_prefix("before/", values), **add_prefix("weights/", weights)}

    def phases(self) -> tuple[Phase, ...]:
        return Phase(Mixing(self.eta), extra=True, share=self.share), Phase()

    def tuning(self) -> Phase:
        return Phase(Mixing(self.eta))

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        return {**state, "model": {**model, **add_prefix(_BEFORE, pick(model, strip_prefix(_BEFORE, model)))}}


@dataclass(frozen=True)
class Mixing(Steps):
    """Steps that train the weights W of the mixture; at their end the model is the mixture."""

    ignores_unlabelled = True
    eta: float

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, weights = state["model"], strip_prefix(_WEIGHTS, state["model"])
        rest = local.frozen(model)  # running statistics stay those of the global model
        mixed = mixture(local.received, weights)
        grads, loss = local.gradient(lambda params: self.loss(local, {**rest, **params}, batch), mixed)
        differences = {name: local.received[name] - previous for name, previous in strip_prefix(_BEFORE, model).items()}
        weights = {name: (weights[name] - self.eta * grads[name] * differences[name]).clamp(0, 1) for name in weights}
        return {**state, "model": {**model, **add_prefix(_WEIGHTS, weights)}}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        return {**state, "model": {**model, **mixture(local.received, strip_prefix(_WEIGHTS, model))}}


def mixture(received: Mapping[str, Tensor], weights: Tensors) -> Tensors:
    """Return θ + (w − θ) ⊙ W for the entries of `weights` (W); `received` has w and θ."""
    return {name: torch.lerp(received[f"{_BEFORE}{name}"], received[name], weight) for name, weight in weights.items()}
