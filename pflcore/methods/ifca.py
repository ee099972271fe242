"""Clusters of clients, each with a model; every round a client joins the one whose model fits it best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pflcore.groups import ALL, Groups, Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Phase, Server, Steps, Update
from pflcore.methods import METHODS
from pflcore.methods._features import OwnTuning
from pflcore.options import option
from pflcore.seeds import generator

_FIRST, _CHOICE = "first/", "common/choice"


@METHODS.register
class IFCA(OwnTuning):
    """Several models, of which a client trains and uses the one of least loss on its own samples.

    A client receives all k, passes over its samples once with each, trains the one of the least mean loss and returns
    it with the number of its choice. The server averages each model over the clients that chose it, all counting alike.
    Buffers go with their model. Before a measurement a client chooses anew. The first model begins as the backbone
    does, the others as its parameters with the entries of each put in another order.
    """

    citation = "Ghosh et al., IFCA, NeurIPS 2020, algorithm 1, model averaging"
    generated = (ALL,)
    exchanges = ("the models of the other clusters", "the chosen cluster")
    own_averaging = "uniform"

    clusters: int = option(2, ge=1, help="Number k of models; the paper takes 4, 2 and 3 for its datasets.")

    def roles(self, groups: Groups) -> Roles:
        roles = super().roles(groups)
        return replace(roles, generated=roles.generated | roles.shared, shared=frozenset())

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        made: Tensors = {"choice": torch.zeros((), dtype=torch.int64)}
        for cluster in range(1, self.clusters):
            order = generator(federation.seed, "clusters", cluster)
            for name, tensor in initial.items():
                if name in roles.generated:
                    at = torch.from_numpy(order.permutation(tensor.numel())).to(tensor.device)
                    redrawn = tensor.flatten()[at].view_as(tensor) if name in federation.parameters else tensor
                    made[f"{cluster}/{name}"] = redrawn
        return made

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        first = {name: tensor.clone() for name, tensor in initial.items() if name in roles.generated}
        return replace(server, extra=add_prefix(_FIRST, first))

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        return [strip_prefix(_FIRST, server.extra) for _ in clients]

    def phases(self) -> tuple[Phase, ...]:
        return Phase(Choosing(self.clusters), extra=True), Phase()

    def tuning(self) -> Phase:
        return Phase(Choosing(self.clusters))

    def traffic(self, update: Update) -> tuple[int, int]:
        down = sum(tensor.nbytes for name, tensor in update.sent.items() if name != _CHOICE)
        up = sum(tensor.nbytes for name, tensor in update.returned.items() if "/" not in name or name == _CHOICE)
        return up, down

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shared, extra = dict(server.shared), dict(server.extra)
        for cluster in range(self.clusters):
            if members := [update for update in updates if int(update.returned[_CHOICE]) == cluster]:
                mean = self.average(members, roles.generated)
                if cluster:
                    shared |= add_prefix(f"common/{cluster}/", mean)
                else:
                    extra |= add_prefix(_FIRST, mean)
        return Server(shared, extra)


@dataclass(frozen=True)
class Choosing(Steps):
    """Steps that train nothing, and leave the client with the model of least loss in the place of its model."""

    clusters: int

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        losses = torch.zeros(self.clusters, device=start[_CHOICE].device)
        return {**super().begin(local, start), "losses": {"sums": losses}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        with torch.no_grad():
            candidates = [{**model, **strip_prefix(f"common/{cluster}/", model)} for cluster in range(self.clusters)]
            losses = torch.stack([self.loss(local, local.frozen(one), batch) for one in candidates])
        # A batch counts by its samples.
        sums = state["losses"]["sums"] + len(batch.labels) * losses
        return {**state, "losses": {"sums": sums}}, losses.min()

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model, choice = state["model"], state["losses"]["sums"].argmin()
        chosen = {_CHOICE: choice}
        for cluster in range(1, self.clusters):
            for name, tensor in strip_prefix(f"common/{cluster}/", model).items():
                chosen[name] = torch.where(choice == cluster, tensor, chosen.get(name, model[name]))
        return {**state, "model": {**model, **chosen}}
