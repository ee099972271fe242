"""A regulariser that changes from round to round until clients and server agree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Method, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.options import option

_STATE = "state/"


@METHODS.register
class FedDyn(Method):
    """FedAvg whose clients minimise loss − ⟨g_i, w⟩ + α/2 · ‖w − w_received‖², g_i their correction.

    At the end of a round g_i becomes g_i − α · (w_i − w_received): where the objective has its minimum, the gradient
    of the client's loss. The server has h, the mean of g_i over all N clients. It takes h ← h − α · P/N · (w̄ − w), w̄
    the mean of what P clients returned, all counting alike, and then w ← w̄ − h/α. All corrections are zero at first; as
    much travels as in FedAvg. A small α is a weak hold and a long step of the server along what clients agree on.
    Running statistics and what is personal have no corrections and are averaged or left alone as ever.
    """

    citation = "Acar et al., FedDyn, ICLR 2021, algorithm 1"
    ignores_unlabelled = True
    keeps = ("a correction of its gradients",)
    own_averaging = "uniform"

    alpha: float = option(0.01, gt=0, help="Weight α of the hold; the paper takes the best of 0.1, 0.01 and 0.001.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        held = roles.shared & federation.parameters
        if not held:
            raise UserError("method feddyn: all of the model is personal, so there is nothing to correct")
        return {name: torch.zeros_like(tensor) for name, tensor in initial.items() if name in held}

    def eval_state(self, state: Tensors) -> Tensors:
        return model_part(state)

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        server.extra = add_prefix(_STATE, self.init_client(initial, roles, federation))
        return server

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        hold = sum(
            (0.5 * self.alpha * (params[name] - local.received[name]) ** 2 - correction * params[name]).sum()
            for name, correction in strip_prefix(OWN, params).items()
        )
        return super().loss(local, params, batch) + hold

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        corrections = {
            name: correction - self.alpha * (model[name] - local.received[name])
            for name, correction in strip_prefix(OWN, model).items()
        }
        return {**state, "model": {**model, **add_prefix(OWN, corrections)}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shared, extra = self.average(updates, roles.shared), {}
        for name, before in strip_prefix(_STATE, server.extra).items():
            moved = len(updates) / server.federation.clients * (shared[name] - server.shared[name])
            extra[f"{_STATE}{name}"] = after = before - self.alpha * moved
            shared[name] = shared[name] - after / self.alpha
        return Server(shared, extra)
