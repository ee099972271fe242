"""A personal model beside the global one, held near it."""

from __future__ import annotations

from torch import Tensor

from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Method
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class Ditto(Method):
    """FedAvg, and on each client a second model v that minimises its loss + λ/2 · ‖v − w_received‖².

    For every batch the global model takes its step and the personal one takes one on the same batch, as the authors'
    code does. The personal model is what a client is measured with; it stays on the client, and that of one that has
    never been sampled is the initial model. Batch norm statistics of the two models are separate.
    """

    citation = "Li et al., Ditto, ICML 2021, algorithm 1"
    keeps = ("a second model",)
    ignores_unlabelled = True

    lam: float = option(1.0, ge=0, help="Weight λ of the distance to the global model; 0 is training alone.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return initial

    def eval_state(self, state: Tensors) -> Tensors:
        return strip_prefix(OWN, state)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "own_opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        state, loss = super().step(local, state, batch)
        trained, buffers = split(strip_prefix(OWN, state["model"]), local.parameters)
        grads, _ = local.gradient(lambda params: self.loss(local, {**params, **buffers}, batch), trained)
        for name in grads.keys() & local.roles.shared:
            grads[name] = grads[name] + self.lam * (trained[name] - local.received[name])
        trained, opt_state = local.sgd(trained, grads, state["own_opt_state"])
        return {**state, "model": {**state["model"], **add_prefix(OWN, trained)}, "own_opt_state": opt_state}, loss
