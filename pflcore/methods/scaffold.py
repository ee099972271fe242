"""Control variates against the drift of clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import COMMON, OWN, Batch, ClientView, Federation, LocalState, Method, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class Scaffold(Method):
    """FedAvg whose local steps are corrected by how the client's gradients differ from all clients'.

    A client keeps a control variate c_i, the server has c, both zero at first. A local step descends on gradient
    − c_i + c. After K steps at learning rate η from the received x to y, c_i becomes c_i − c + (x − y) / (K η), the
    second of the paper's two options; the client returns y and the change of c_i. The server takes
    x ← x + η_g · mean (y − x), all clients counting alike, and c ← c + Σ change / N, N all clients. Twice as much
    travels as in FedAvg. Momentum and decay act on the corrected gradient, and are then part of (x − y) / (K η), so of
    c_i. Running statistics and what is personal have no variates.
    """

    citation = "Karimireddy et al., SCAFFOLD, ICML 2020, algorithm 1, option II"
    keeps = ("a control variate",)
    exchanges = ("control variates",)
    own_averaging = "uniform"
    plain_sgd = True
    ignores_unlabelled = True

    server_step: float = option(1.0, gt=0, help="The server's step size η_g; 1 is the mean of what clients return.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        corrected = roles.shared & federation.parameters
        if not corrected:
            raise UserError("method scaffold: all of the model is personal, so there is nothing to correct")
        return {name: torch.zeros_like(tensor) for name, tensor in initial.items() if name in corrected}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return self.init_client(initial, roles, federation)

    def eval_state(self, state: Tensors) -> Tensors:
        return model_part(state)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        variate = next(iter(strip_prefix(COMMON, start).values()))
        return {**super().begin(local, start), "passed": {"rates": torch.zeros_like(variate.flatten()[0])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, rates = state["model"], state["passed"]["rates"] + local.lr
        moving, rest = split(model, local.parameters)
        grads, loss = local.gradient(lambda params: self.loss(local, {**params, **rest}, batch), moving)
        for name, variate in strip_prefix(OWN, rest).items():
            grads[name] = grads[name] - variate + rest[COMMON + name]
        moving, opt_state = local.sgd(moving, grads, state["opt_state"])
        return {"model": {**model, **moving}, "opt_state": opt_state, "passed": {"rates": rates}}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model, passed = state["model"], state["passed"]["rates"]
        changes = {
            name: (local.received[name] - model[name]) / passed - variate
            for name, variate in strip_prefix(COMMON, model).items()
        }
        variates = {name: variate + changes[name] for name, variate in strip_prefix(OWN, model).items()}
        return {**state, "model": {**model, **add_prefix(OWN, variates), **add_prefix(COMMON, changes)}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shared = self.average(updates, roles.shared)
        for name, variate in strip_prefix(COMMON, server.shared).items():
            shared[name] = server.shared[name].lerp(shared[name], self.server_step)
            changes = torch.stack([update.returned[COMMON + name] for update in updates])
            shared[COMMON + name] = variate + changes.sum(0) / server.federation.clients
        return Server(shared)
