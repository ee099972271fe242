"""Features freed of what is the client's own: its mean is learned apart, and theirs is held near all clients'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors, split
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Phase, Server, Steps, Update
from pflcore.methods import METHODS
from pflcore.methods._features import need_classifier
from pflcore.options import option

_SHIFT, _MEAN = "own/shift/", "common/mean"


@METHODS.register
class FedDBE(Method):
    """FedAvg with a personal shift of features, whose mean is held near that of all clients.

    A client adds a vector of its own, zero at first, to the features before the classifier. The loss is the
    cross-entropy plus κ times the mean over features of ½ (m − g)². m is a moving mean of a client's features without
    the shift: from zeros in each round it goes to (1 − μ) · m + μ · the batch's mean, and gradients pass through the
    latter alone. The global mean g is that of the m with which all clients end a pass before the first round, by the
    cross-entropy alone; what else that pass has trained is dropped. `also_personal: [head]` makes it FedPer with DBE.
    """

    citation = "Zhang et al., Eliminating Domain Bias (DBE), NeurIPS 2023"
    keeps = ("a shift of its features",)
    exchanges = ("the global mean of features, before the first round",)

    kappa: float = option(50.0, ge=0, help="Weight κ of the distance of a client's mean from the global one.")
    mu: float = option(1.0, gt=0, le=1, help="Momentum μ: the share of the latest batch in a client's moving mean.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation, initial)
        return {f"shift/{federation.head[0]}": initial[federation.head[0]].new_zeros(federation.features)}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {"mean": torch.zeros(federation.features)}

    def warmup(self) -> Phase:
        return Phase(FirstMeans(self.mu))

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "moving": {"mean": torch.zeros_like(start[_MEAN])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        return step(local, state, batch, self.mu, self.kappa, local.parameters | {_SHIFT + local.head[0]})

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        return local.forward(state, inputs) + shifted(local, state)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        mean = server.shared[_MEAN]
        after = super().update_server(server, roles, updates)
        return Server({**after.shared, _MEAN: mean}, after.extra)

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return bytes without the global mean: it stays as it is, so it need not be sent in rounds."""
        sent, received = super().traffic(update)
        beside = update.sent[_MEAN].nbytes
        return sent - beside, received - beside


@dataclass(frozen=True)
class FirstMeans(Steps):
    """Steps on the cross-entropy that leave nothing but a client's moving mean."""

    mu: float

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "moving": {"mean": torch.zeros_like(start[_MEAN])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        return step(local, state, batch, self.mu, 0.0, local.parameters)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        return {**state, "model": {**local.received, _MEAN: state["moving"]["mean"]}}


def step(
    local: ClientView, state: LocalState, batch: Batch, mu: float, kappa: float, trained: frozenset[str]
) -> tuple[LocalState, Tensor]:
    """Take a step on the entries in `trained`, and of the moving mean, which a `kappa` of 0 keeps out of the loss."""
    moving, rest = split(state["model"], trained)

    def loss(params: Tensors) -> tuple[Tensor, Tensors]:
        model = {**rest, **params}
        logits, features = local.features(model, batch.inputs)
        mean = torch.lerp(state["moving"]["mean"], features.flatten(0, -2).mean(0), mu)
        away = 0.5 * (mean - rest[_MEAN]).square().mean()
        value = local.cross_entropy(logits + shifted(local, model), batch.labels) + kappa * away
        return value, {"mean": mean.detach()}

    grads, value, aside = local.differentiate(loss, moving)
    moving, opt_state = local.sgd(moving, grads, state["opt_state"])
    return {**state, "model": {**state["model"], **moving}, "opt_state": opt_state, "moving": aside}, value


def shifted(local: ClientView, state: Tensors) -> Tensor:
    """Return by how much a client's shift moves its logits, (classes,): the classifier's weight times it."""
    return state[local.head[0]] @ state[_SHIFT + local.head[0]]
