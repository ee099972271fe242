"""Clusters of clients that are split in two where their updates point apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors
from pflcore.method import Federation, Server, Update
from pflcore.methods import METHODS
from pflcore.methods._features import need_exchanged
from pflcore.methods._per_client_models import PerClientModels
from pflcore.options import option

_CLUSTER, _SIMILARITY = "cluster", "likeness"


@METHODS.register
class CFL(PerClientModels):
    """FedAvg in clusters; where a cluster has come to rest and its clients have not, it is split in two.

    All clients begin in one cluster and return its model with an update Δ_i of its parameters. Where ‖mean Δ_i‖ < ε₁
    and max ‖Δ_i‖ > ε₂, a cluster of three or more is divided by the cosine similarities of its clients' updates, and
    each half goes on from its model, with its own updates. Norms grow with model, learning rate and steps, so ε₁ and
    ε₂ need tuning. Buffers go with their model. Clients count alike in means.
    """

    citation = "Sattler, Müller and Samek, Clustered Federated Learning, IEEE TNNLS 2020"
    buffers = "generated"
    own_averaging = "uniform"
    smoke: ClassVar[dict[str, Any]] = {"eps1": 10.0, "eps2": 0.0, "after": 0}  # so that something is split

    eps1: float = option(0.4, ge=0, help="A cluster is at rest where its mean update's norm is below ε₁; 0 is FedAvg.")
    eps2: float = option(1.6, ge=0, help="Its clients are not where the largest norm of their updates is above ε₂.")
    after: int = option(20, ge=0, help="Rounds in which no cluster is split, from the first.")
    linkage: str = option("complete", choices=("complete", "single"), help="As the authors' code has it, or the paper.")
    gamma: float = option(0.0, ge=0, le=1, help="γ_max of the paper: larger is less splitting; 0: no such condition.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        need_exchanged(self, roles.generated & federation.parameters)
        server, clients = super().init_server(initial, roles, federation), federation.clients
        device = next(iter(initial.values())).device
        server.extra[_CLUSTER] = torch.zeros(clients, dtype=torch.int64, device=device)
        server.extra[_SIMILARITY] = torch.zeros(clients, clients, device=device)
        return server

    def mix(self, server: Server, clients: Sequence[int]) -> Tensors:
        return super().mix(server, server.extra[_CLUSTER][list(clients)].tolist())

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        extra, present = server.extra, [update.client for update in updates]
        # Sorted, for a checkpoint does not keep the order of entries, and sums are rounded in order.
        names = sorted(server.federation.parameters & updates[0].returned.keys())
        moved = torch.stack([torch.cat([(one.returned[n] - one.sent[n]).flatten() for n in names]) for one in updates])
        norms = moved.norm(dim=1)
        directions = moved / norms.clamp_min(1e-12).unsqueeze(1)
        extra[_SIMILARITY][torch.tensor(present).unsqueeze(1), torch.tensor(present)] = directions @ directions.t()
        before = extra[_CLUSTER].tolist()
        after, similarity = list(before), extra[_SIMILARITY].cpu()
        for cluster in range(max(before) + 1):
            members = [client for client, own in enumerate(before) if own == cluster]
            rows = [row for row, client in enumerate(present) if before[client] == cluster]
            if server.round > self.after and len(members) > 2 and rows and self._diverged(moved[rows], norms[rows]):
                within = similarity[members][:, members]
                first, second = bipartition(within, self.linkage)
                if float(((1 - within[first][:, second].max()) / 2).clamp_min(0).sqrt()) > self.gamma:
                    new = max(after) + 1
                    for place in second:
                        after[members[place]] = new
                    for models in self.models(server).values():
                        models[new] = models[cluster]
        for cluster in range(max(after) + 1):
            if own := [update for update in updates if after[update.client] == cluster]:
                for name, mean in self.average(own, roles.generated).items():
                    self.models(server)[name][cluster] = mean
        extra[_CLUSTER] = torch.tensor(after, device=extra[_CLUSTER].device)
        return Server(server.shared, extra)

    def _diverged(self, moved: Tensor, norms: Tensor) -> bool:
        """Return whether a cluster is at rest and its clients are not, by updates (clients, parameters) and norms."""
        return float(moved.mean(0).norm()) < self.eps1 and float(norms.max()) > self.eps2


def bipartition(similarity: Tensor, linkage: str) -> tuple[list[int], list[int]]:
    """Return the two last clusters, as places in increasing order, the first with client 0, of (clients, clients).

    Two clusters are as near as their most (``single``) or their least similar clients (``complete``).
    """
    # Only needed here, and slow to import.
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    distances = squareform(1 - similarity.double().numpy(), checks=False)
    sides = hierarchy.cut_tree(hierarchy.linkage(distances, linkage), 2).ravel()
    return np.flatnonzero(sides == sides[0]).tolist(), np.flatnonzero(sides != sides[0]).tolist()
