"""Clients' own models, drawn together in pairs after each round."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pflcore.groups import Roles
from pflcore.method import Server, Update
from pflcore.methods import METHODS
from pflcore.methods._per_client_models import PerClientModels
from pflcore.options import option


@METHODS.register
class FedU(PerClientModels):
    """Clients have models of their own; after a round the sampled ones move towards each other.

    After local training the server takes, for all sampled clients k at once,

        w_k ← w_k − strength · Σ_l coupling · (w_k − w_l)

    over the sampled clients l, so each of n sampled clients goes strength · coupling · n of its way to their mean: by
    default 0.2 % with five clients, in effect Local. ``coupling`` is a_kl, the same for all pairs; ``strength`` stands
    for 0.5 · η · L · β · K of the authors' code. The server stores all clients' models, sends each its own and is sent
    it back. Buffers stay on the client. Clients are not weighted by samples.
    """

    citation = "Dinh et al., FedU, arXiv 2102.07148, 2021, algorithm 1"

    coupling: float = option(0.5, ge=0, help="Relation a of any two clients; 0: each trains alone.")
    strength: float = option(
        7.5e-4, ge=0, help="Step along the pairwise differences, as given above; the default is in effect Local."
    )

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        step = self.strength * self.coupling
        for name, models in self.models(server).items():
            returned = torch.stack([update.returned[name] for update in updates])
            # Σ_l (w_k − w_l) is the number of clients times the distance from their mean.
            away = len(updates) * (returned - returned.mean(0))
            models[[update.client for update in updates]] = returned - step * away
        return Server(self.average(updates, roles.shared), server.extra)
