"""pFedHN: a hypernetwork on the server generates each client's whole model; the base of methods like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from pflcore.groups import ALL, Roles, Tensors, strip_prefix
from pflcore.method import MOMENTA, Federation, Method, Server, Update
from pflcore.methods import METHODS
from pflcore.operators.hypernetworks import HyperNetwork
from pflcore.options import option

_HYPER = "hyper/"


@dataclass(frozen=True, kw_only=True)
class HypernetworkMethod(Method):
    """A hypernetwork h on the server generates entries W_i = h(z_i; φ) from a learned embedding z_i per client.

    The server averages what is shared and takes one step of SGD along the gradient of Σ p_i · ⟨h(z_i; φ), before_i −
    after_i⟩ with respect to φ and all embeddings, p_i what the clients count in averages. ``Server.extra`` holds the
    parameters ``hyper/…`` and their momenta ``momentum/…``.
    """

    embedding: int | None = option(None, ge=1, help="Width of a client's embedding; null is floor(1 + clients / 4).")
    hidden: int = option(100, ge=1, help="Width of the hypernetwork's hidden layers.")
    layers: int = option(4, ge=1, help="Linear layers of the hypernetwork before its heads.")
    server_lr: float = option(0.01, gt=0, help="Learning rate of the hypernetwork's SGD.")
    server_momentum: float = option(0.9, ge=0, lt=1, help="Momentum of the hypernetwork's SGD.")
    server_weight_decay: float = option(1e-3, ge=0, help="L2 coefficient of the hypernetwork's SGD.")
    server_clip: float | None = option(50.0, gt=0, help="Largest norm of the hypernetwork's gradient; null: any.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        width = self.embedding or 1 + federation.clients // 4
        hyper = HyperNetwork(federation.clients, width, self.hidden, self.layers, federation.generated)
        device = next(iter(initial.values())).device
        for name, tensor in hyper.init(federation.seed).items():
            server.extra[f"{_HYPER}{name}"] = tensor.to(device)
            server.extra[f"{MOMENTA}{name}"] = torch.zeros_like(tensor, device=device)
        return server

    def make(self, server: Server, clients: Sequence[int]) -> Tensors:
        """Return generated entry → its values for some clients, (clients, \\*shape), as a function with gradients."""
        hyper, params = self.hypernetwork(server)
        return hyper(params, clients)

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        with torch.no_grad():
            made = self.make(server, clients)
        return [{name: tensor[row] for name, tensor in made.items()} for row in range(len(clients))]

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        pairs = list(zip(self.shares(updates), updates, strict=True))
        changes = {
            name: torch.stack([share * (one.sent[name] - one.returned[name]) for share, one in pairs])
            for name in server.federation.generated
        }
        self.server_step(server, [update.client for update in updates], changes)
        return replace(server, shared=self.average(updates, roles.shared))

    def hypernetwork(self, server: Server) -> tuple[HyperNetwork, Tensors]:
        """Return the hypernetwork and its parameters."""
        # Sorted, for a checkpoint does not keep the order of entries, and sums are rounded in order.
        params = dict(sorted(strip_prefix(_HYPER, server.extra).items()))
        targets = dict(sorted(server.federation.generated.items()))
        clients, width = params["embedding"].shape
        return HyperNetwork(clients, width, self.hidden, self.layers, targets), params

    def server_step(
        self, server: Server, clients: Sequence[int], upstream: Tensors, beside: Tensors | None = None
    ) -> None:
        """Take one step of the server's SGD, in place.

        `upstream` has gradients of generated entries, (clients, \\*shape), `beside` those of further entries of
        ``server.extra``, whose momenta are below ``momentum/``.
        """
        hyper, params = self.hypernetwork(server)
        grads = dict(sorted((beside or {}).items()))
        if self.server_clip is not None:
            squares = [grad.square().sum() for grad in grads.values()]
            norm = torch.stack([hyper.squared_norm(params, clients, upstream), *squares]).sum().sqrt()
            factor = (self.server_clip / (norm + 1e-6)).clamp(max=1)  # as PyTorch's clip_grad_norm_
            grads, upstream = ({name: one * factor for name, one in part.items()} for part in (grads, upstream))
        lr, rho, decay = self.server_lr, self.server_momentum, self.server_weight_decay
        momenta = strip_prefix(MOMENTA, server.extra)
        hyper.sgd_step(params, momenta, clients, upstream, lr=lr, momentum=rho, weight_decay=decay)
        with torch.no_grad():
            for name, grad in grads.items():
                param = server.extra[name]
                param.add_(momenta[name].mul_(rho).add_(grad).add_(param, alpha=decay), alpha=-lr)


@METHODS.register
class PFedHN(HypernetworkMethod):
    """Whole models are generated per client from a learned embedding; clients keep nothing.

    The client trains the generated parameters θ_i = h(z_i; φ) and returns them; hypernetwork and embedding take one SGD
    step along its change. Everyone is measured with h(z_i). h is an MLP with a ReLU between two layers and none after
    the last, then a linear head per tensor. Buffers cannot be generated: they are averaged. The paper trains one client
    per round, for 5000 rounds of 50 batches, with gradients clipped at 50 on both sides. FedTP's comparison has
    ``hidden: 150``, ``server_clip: null`` and FedTP's embeddings. pFedHN-PC is ``also_personal: [head]``.
    """

    citation = "Shamsian, Navon, Fetaya and Chechik, pFedHN, ICML 2021, algorithm 1"
    generated = (ALL,)
    smoke: ClassVar[dict[str, Any]] = {"hidden": 16}
