"""Layer-wise mixtures in which a client keeps the layers that its own model counts most in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import COMMON, Federation, Server, Update
from pflcore.methods import METHODS
from pflcore.methods.pfedla_layerwise import PFedLALayerwise, layer_of
from pflcore.options import option

_KEPT = f"{COMMON}kept/"


@METHODS.register
class HeurpFedLA(PFedLALayerwise):
    """Layer-wise mixtures as pFedLA's, but for the k layers in which a client counts most on itself.

    Self-weight is α_i^{l,i}, what a client's model counts in layer l of its mixture. In the k layers in which it is
    largest the client goes on with its own parameters, which are not sent to it. No gradient reaches the outputs of the
    hypernetwork for such a layer, which it keeps until another layer's self-weight is larger.

    A client returns kept layers, since its changes of them are a part of other clients' mixtures; only what is sent
    down becomes less. With k = 0 this is pfedla_layerwise, and with all layers kept each client trains alone.
    """

    citation = "Ma et al., Layer-wised Model Aggregation for Personalized FL (HeurpFedLA), CVPR 2022"
    exchanges = ("which layers are kept",)

    keep: int = option(1, ge=0, help="Number k of layers that a client keeps; a layer is a module with parameters.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        mixed = [name for name in initial if name in roles.generated]
        if self.keep > (layers := len({layer_of(name) for name in mixed})):
            raise UserError(f"method heurpfedla: keep: {self.keep} is more than the {layers} layers that are mixed")
        return {f"kept/{name}": torch.zeros(federation.clients, dtype=torch.bool) for name in mixed}

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        return self._with_kept(super().init_server(initial, roles, federation), federation)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        return self._with_kept(super().update_server(server, roles, updates), server.federation)

    def _with_kept(self, server: Server, federation: Federation) -> Server:
        """Return the server with what clients keep in the round to come: for each entry that is mixed, (clients)."""
        clients = range(federation.clients)
        weights = self.weights_of(server, clients)
        alone = {layer: one[clients, clients] == 1 for layer, one in weights.items()}
        tables = {name: alone[layer_of(name)].clone() for name in strip_prefix(_KEPT, server.shared)}
        return replace(server, shared={**server.shared, **add_prefix(_KEPT, tables)})

    def mixtures(self, params: Tensors, clients: Sequence[int], layers: Sequence[str]) -> Tensors:
        weights = super().mixtures(params, clients, layers)
        if not self.keep:
            return weights
        own = torch.stack([weights[layer].detach()[range(len(clients)), list(clients)] for layer in layers], 1)
        kept = torch.zeros_like(own, dtype=torch.bool).scatter_(1, own.topk(self.keep, 1).indices, True)
        alone = F.one_hot(torch.tensor(clients, device=own.device), weights[layers[0]].shape[1]).to(own.dtype)
        return {layer: torch.where(kept[:, [place]], alone, weights[layer]) for place, layer in enumerate(layers)}

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return bytes without kept layers on the way down; who keeps what is no part of what travels."""
        sent = {name: tensor for name, tensor in update.sent.items() if not name.startswith(_KEPT)}
        tables = strip_prefix(_KEPT, update.sent)
        kept = torch.stack([clients[update.client] for clients in tables.values()]).tolist()  # one wait for a device
        own = sum(sent[name].nbytes for name, alone in zip(tables, kept, strict=True) if alone)
        up = sum(tensor.nbytes for tensor in sent.values())
        return up, up - own
