"""The base of methods whose server keeps a model, or a part of one, for every client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from pflcore.groups import ALL, Groups, Roles, Tensors, strip_prefix
from pflcore.method import Federation, Method, Server, Update


class PerClientModels(Method):
    """The server stores all clients' generated entries, stacked; a client is sent its row, or their :meth:`mix`."""

    generated = (ALL,)
    # What the names of stored entries begin with.
    stored: ClassVar[str] = "models/"
    # Who owns buffers, which no gradient trains: "shared", "personal", or "generated" as the rest of a model.
    buffers: ClassVar[str] = "personal"

    def roles(self, groups: Groups) -> Roles:
        roles = super().roles(groups)
        if self.buffers == "shared":
            return roles
        return replace(roles, shared=frozenset(), **{self.buffers: getattr(roles, self.buffers) | roles.shared})

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        for name, tensor in initial.items():
            if name in roles.generated:
                server.extra[f"{self.stored}{name}"] = tensor.expand(federation.clients, *tensor.shape).clone()
        return server

    def models(self, server: Server) -> Tensors:
        """Return the stored entries of all clients: name → (all clients, …)."""
        return strip_prefix(self.stored, server.extra)

    def mix(self, server: Server, clients: Sequence[int]) -> Tensors:
        """Return what some clients are sent: name → (clients, …)."""
        return {name: stored[list(clients)] for name, stored in self.models(server).items()}

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        mixed = self.mix(server, clients)
        return [{name: tensor[row] for name, tensor in mixed.items()} for row in range(len(clients))]

    def store(self, server: Server, updates: Sequence[Update]) -> None:
        """Store what clients returned, in place."""
        for name, stored in self.models(server).items():
            stored[[update.client for update in updates]] = torch.stack([update.returned[name] for update in updates])
