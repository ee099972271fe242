"""FedTP: a hypernetwork on the server generates each client's attention projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors
from pflcore.hypernetworks import HyperNetwork
from pflcore.methods import METHODS
from pflcore.methods._base import Federation, Method, Server, Update, average, weights
from pflcore.options import option


@METHODS.register
@dataclass(frozen=True, kw_only=True)
class FedTP(Method):
    """Attention projections are generated per client from a learned embedding; the rest is averaged.

    A round: the server sends the shared part ξ and the generated projections W_i = h(z_i; φ); the client trains both
    jointly and returns both; ξ is averaged; the hypernetwork takes one SGD step along the clients' changes. Clients
    keep nothing. Everyone is evaluated with the new ξ and h(z_i), without any tuning.

    Paper and code disagree in places. The paper prints the change as after − before and then descends along it, which
    would undo what clients learned; the released code uses before − after, and so does this. Momentum 0.9 and decay
    1e-3 of the hypernetwork's SGD are in the code only. Embeddings have 32 dimensions in the paper, 128 in the code.
    Embedding rows of clients that were not sampled still move through momentum and decay, as in the code.
    """

    citation: ClassVar[str] = "Li et al., FedTP, TNNLS 2023 (arXiv 2211.01572), section III"
    generated: ClassVar[tuple[str, ...]] = ("attention.qkv",)
    smoke: ClassVar[dict[str, Any]] = {"hidden": 16}

    embedding: int = option(32, ge=1, help="Width of a client's embedding.")
    hidden: int = option(150, ge=1, help="Width of the hypernetwork's hidden layers.")
    layers: int = option(4, ge=1, help="Linear layers of the hypernetwork before its heads.")
    server_lr: float = option(0.01, gt=0, help="Learning rate of the hypernetwork's SGD.")
    server_momentum: float = option(0.9, ge=0, lt=1, help="Momentum of the hypernetwork's SGD.")
    server_weight_decay: float = option(1e-3, ge=0, help="L2 coefficient of the hypernetwork's SGD.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        targets = {name: tuple(tensor.shape) for name, tensor in initial.items() if name in roles.generated}
        hyper = HyperNetwork(federation.clients, self.embedding, self.hidden, self.layers, targets)
        device = next(iter(initial.values())).device
        for name, tensor in hyper.init(federation.seed).items():
            server.extra[f"hyper/{name}"] = tensor.to(device)
            server.extra[f"momentum/{name}"] = torch.zeros_like(tensor, device=device)
        # A hypernetwork's heads are flat; the shapes of what they generate are part of the server's state.
        for name, shape in targets.items():
            server.extra[f"shape/{name}"] = torch.tensor(shape)
        return server

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        hyper, params = self._hypernetwork(server)
        with torch.no_grad():
            made = hyper(params, clients)
        return [{name: tensor[row] for name, tensor in made.items()} for row in range(len(clients))]

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        hyper, params = self._hypernetwork(server)
        shares = weights(updates)

        def change(name: str) -> Tensor:
            """Pseudo-gradients of W_i: before − after, weighted by the client's share of the samples."""
            return torch.stack(
                [share * (one.sent[name] - one.returned[name]) for share, one in zip(shares, updates, strict=True)]
            )

        hyper.descend(
            params,
            _below("momentum/", server.extra),
            [update.client for update in updates],
            change,
            lr=self.server_lr,
            momentum=self.server_momentum,
            weight_decay=self.server_weight_decay,
        )
        return Server(average(updates, roles.shared), server.extra)

    def _hypernetwork(self, server: Server) -> tuple[HyperNetwork, Tensors]:
        params = _below("hyper/", server.extra)
        clients, embedding = params["embedding"].shape
        targets = {name: tuple(shape.tolist()) for name, shape in _below("shape/", server.extra).items()}
        return HyperNetwork(clients, embedding, self.hidden, self.layers, targets), params


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
