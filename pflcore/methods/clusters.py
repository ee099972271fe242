"""Clusters of clients, each with a model: CFL, IFCA."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pflcore.groups import ALL, Groups, Roles, Tensors, add_prefix, pick, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Phase, Server, Steps, Update
from pflcore.methods import METHODS
from pflcore.methods._bases import OwnTuning, PerClientModels, check_exchanged
from pflcore.options import option
from pflcore.seeds import generator

_CLUSTER, _SIMILARITY = "cluster", "likeness"


@METHODS.register
class CFL(PerClientModels):
    """FedAvg in clusters; a cluster is split in two if its mean update is small but a client's is large.

    All begin in one cluster. A cluster of three or more is split by the cosine similarities of its updates Δ_i if ‖mean
    Δ_i‖ < ε₁ and max ‖Δ_i‖ > ε₂; each half continues from the same model, with its own updates. Norms grow with model,
    learning rate and steps, so ε₁ and ε₂ need tuning. Buffers belong to the model. Clients are weighted equally.
    """

    name = "cfl"
    citation = "Sattler, Müller and Samek, Clustered Federated Learning, IEEE TNNLS 2020"
    buffers = "generated"
    own_averaging = "uniform"
    beyond_mean = ""
    smoke: ClassVar[dict[str, Any]] = {"eps1": 10.0, "eps2": 0.0, "after": 0}  # so that a cluster is split
    eps1: float = option(0.4, ge=0, help="A cluster is at rest where its mean update's norm is below ε₁; 0 is FedAvg.")
    eps2: float = option(1.6, ge=0, help="Its clients are not where the largest norm of their updates is above ε₂.")
    after: int = option(20, ge=0, help="Rounds in which no cluster is split, from the first.")
    linkage: str = option("complete", choices=("complete", "single"), help="As the authors' code has it, or the paper.")
    gamma: float = option(0.0, ge=0, le=1, help="γ_max of the paper: larger is less splitting; 0: no such condition.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        check_exchanged(self, roles.generated & federation.parameters)
        server = super().init_server(initial, roles, federation)
        clients = federation.clients
        like = next(iter(initial.values()))
        server.extra[_CLUSTER] = like.new_zeros(clients).long()
        server.extra[_SIMILARITY] = like.new_zeros(clients, clients)
        return server

    def mix(self, server: Server, clients: Sequence[int]) -> Tensors:
        return super().mix(server, server.extra[_CLUSTER][list(clients)].tolist())

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        from scipy.cluster import hierarchy  # slow to import
        from scipy.spatial.distance import squareform

        extra = server.extra
        present = [update.client for update in updates]
        # Sorted: the rounding of sums depends on the order of entries.
        names = sorted(server.federation.parameters & updates[0].returned.keys())
        vectors = [torch.cat([(update.returned[n] - update.sent[n]).flatten() for n in names]) for update in updates]
        changes = torch.stack(vectors)
        norms = changes.norm(dim=1)
        directions = changes / norms.clamp_min(1e-12).unsqueeze(1)
        extra[_SIMILARITY][torch.tensor(present).unsqueeze(1), torch.tensor(present)] = directions @ directions.t()
        before, similarity = extra[_CLUSTER].cpu(), extra[_SIMILARITY].cpu()
        after = before.clone()
        trains = torch.tensor([client not in server.federation.novel for client in range(len(before))])
        for cluster in range(int(before.max()) + 1):
            members = (trains & (before == cluster)).nonzero().flatten()
            rows = (before[present] == cluster).nonzero().flatten().tolist()
            if server.round <= self.after or len(members) < 3 or not rows:
                continue
            if float(changes[rows].mean(0).norm()) < self.eps1 and float(norms[rows].max()) > self.eps2:
                similarities = similarity[members][:, members]
                distances = squareform(1 - similarities.double().numpy(), checks=False)
                sides = torch.from_numpy(hierarchy.cut_tree(hierarchy.linkage(distances, self.linkage), 2).ravel())
                first, second = sides == sides[0], sides != sides[0]
                if float(((1 - similarities[first][:, second].max()) / 2).clamp_min(0).sqrt()) > self.gamma:
                    new = int(after.max()) + 1
                    after[members[second]] = new
                    for models in self.models(server).values():
                        models[new] = models[cluster]
        for cluster in range(int(after.max()) + 1):
            if cohort := [update for update in updates if after[update.client] == cluster]:
                for name, mean in self.average(cohort, roles.generated).items():
                    self.models(server)[name][cluster] = mean
        extra[_CLUSTER] = after.to(extra[_CLUSTER].device)
        return Server(server.shared, extra)


_FIRST, _CHOICE = "first/", "common/choice"


@METHODS.register
class IFCA(OwnTuning):
    """Several models; each client trains and uses the one with the least loss on its own samples.

    A client receives all k models, passes over its samples once with each, trains the one with the least mean loss and
    returns it with its number; before a measurement it chooses again. The server averages each model, with buffers,
    over the clients that chose it, weighted equally. The first model is the initial model at first, the others are
    copies of it with the entries of each parameter permuted.
    """

    name = "ifca"
    citation = "Ghosh et al., IFCA, NeurIPS 2020, algorithm 1, model averaging"
    generated = (ALL,)
    exchanges = ("the models of the other clusters", "the chosen cluster")
    own_averaging = "uniform"
    clusters: int = option(2, ge=1, help="Number k of models; the paper takes 4, 2 and 3 for its datasets.")

    def roles(self, groups: Groups) -> Roles:
        roles = super().roles(groups)
        return replace(roles, generated=roles.generated | roles.shared, shared=frozenset())

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        entries = {"choice": torch.tensor(0)}
        for cluster in range(1, self.clusters):
            random = generator(federation.seed, "clusters", cluster)
            for name, tensor in pick(initial, roles.generated).items():
                order = torch.from_numpy(random.permutation(tensor.numel())).to(tensor.device)
                trained = name in federation.parameters
                entries[f"{cluster}/{name}"] = tensor.flatten()[order].view_as(tensor) if trained else tensor
        return entries

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        first = {name: tensor.clone() for name, tensor in pick(initial, roles.generated).items()}
        return replace(server, extra=add_prefix(_FIRST, first))

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        return [strip_prefix(_FIRST, server.extra) for _ in clients]

    def phases(self) -> tuple[Phase, ...]:
        return Phase(Choosing(self.clusters), extra=True), Phase()

    def tuning(self) -> Phase:
        return Phase(Choosing(self.clusters))

    def origin(self, sent: Tensors, returned: Tensors) -> Tensors:
        return {**sent, **strip_prefix(f"common/{int(returned[_CHOICE])}/", sent)}  # of the model that it chose

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
    """Steps that train nothing; at their end the model with the least loss takes the place of the client's model."""

    clusters: int

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        losses = torch.zeros(self.clusters, device=start[_CHOICE].device)
        return {**super().begin(local, start), "losses": {"sums": losses}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        with torch.no_grad():
            models = [{**model, **strip_prefix(f"common/{cluster}/", model)} for cluster in range(self.clusters)]
            losses = torch.stack([self.loss(local, local.frozen(candidate), batch) for candidate in models])
        # Weighted by samples, because batches differ in size.
        sums = state["losses"]["sums"] + len(batch.labels) * losses
        return {**state, "losses": {"sums": sums}}, losses.min()

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model, choice = state["model"], state["losses"]["sums"].argmin()
        chosen = {_CHOICE: choice}
        for cluster in range(1, self.clusters):
            for name, tensor in strip_prefix(f"common/{cluster}/", model).items():
                chosen[name] = torch.where(choice == cluster, tensor, chosen.get(name, model[name]))
        return {**state, "model": {**model, **chosen}}
