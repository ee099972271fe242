"""Layer-wise mixtures of all clients' models, with weights that a hypernetwork per client learns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import Federation, Server, Update
from pflcore.methods import METHODS
from pflcore.methods._bases import PerClientModels
from pflcore.options import option
from pflcore.seeds import torch_seed

_HYPER, _LAYER, _KEPT = "hyper/", "layers.", "common/kept/"
_LINEARS = 3  # linear layers below the output layers


@METHODS.register
class PFedLALayerwise(PerClientModels):
    """A client's model is, layer by layer, a learned mixture of all clients' models.

    The server stores each client's latest model θ_j and a hypernetwork: an embedding, three linear layers with ReLU,
    then for each layer l of the model a linear layer with ReLU and N outputs. Divided by their sum, these are the
    weights α_i^l. The client receives Σ_j α_i^{l,j} · θ_j^l; its hypernetwork takes a step of plain SGD along before −
    after. All clients are measured with the new mixture. Buffers are averaged. All clients should take part in each
    round, or stale models are mixed. The method of local attention with the same short name is another one.
    """

    name = "pfedla_layerwise"
    citation = "Ma et al., Layer-wised Model Aggregation for Personalized FL (pFedLA), CVPR 2022"
    buffers = "shared"
    smoke: ClassVar[dict[str, Any]] = {"embedding": 8, "hidden": 16}
    embedding: int = option(100, ge=1, help="Width of a client's embedding.")
    hidden: int = option(100, ge=1, help="Width of the hypernetworks' hidden layers.")
    server_lr: float = option(20.0, gt=0, help="Learning rate of the hypernetworks' SGD; 0.005 is in effect FedAvg.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        clients = federation.clients
        stream = torch.Generator().manual_seed(torch_seed(federation.seed, "layer mixtures"))
        params = {"embedding": torch.randn(clients, self.embedding, generator=stream)}
        for index in range(_LINEARS):
            width = self.hidden if index else self.embedding
            for part, shape in (("weight", (self.hidden, width)), ("bias", (self.hidden,))):  # as in PyTorch
                params[f"mlp.{index}.{part}"] = (2 * torch.rand(clients, *shape, generator=stream) - 1) * width**-0.5
        for layer in self.layers(server):
            # Outputs for clients that never train are and stay zero.
            params[f"{_LAYER}{layer}.weight"] = torch.rand(clients, clients, self.hidden, generator=stream)
            params[f"{_LAYER}{layer}.weight"][:, list(federation.novel)] = 0
            params[f"{_LAYER}{layer}.bias"] = torch.zeros(clients, clients)
        device = next(iter(initial.values())).device
        server.extra.update({f"{_HYPER}{name}": tensor.to(device) for name, tensor in params.items()})
        return server

    def layers(self, server: Server) -> dict[str, list[str]]:
        """Return layer → names of its parameters; a parameter of the model itself is a layer."""
        layers: dict[str, list[str]] = {}
        # Sorted: the rounding of sums depends on the order of entries.
        for name in sorted(self.models(server)):
            layers.setdefault(layer_of(name), []).append(name)
        return layers

    def mix(self, server: Server, clients: Sequence[int]) -> Tensors:
        weights = self.weights_of(server, clients)
        mixed = {}
        for name, models in self.models(server).items():
            mixed[name] = (weights[layer_of(name)] @ models.flatten(1)).view(len(clients), *models.shape[1:])
        return mixed

    @torch.no_grad()
    def weights_of(self, server: Server, clients: Sequence[int]) -> Tensors:
        """Return the current weights α of some clients: layer → (clients, all clients)."""
        index = list(clients)
        params = {name: tensor[index] for name, tensor in strip_prefix(_HYPER, server.extra).items()}
        return self.mixtures(params, index, list(self.layers(server)))

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        index = [update.client for update in updates]
        models = self.models(server)
        layers = self.layers(server)
        stored = strip_prefix(_HYPER, server.extra)
        params = {name: tensor[index].requires_grad_() for name, tensor in stored.items()}
        weights = self.mixtures(params, index, list(layers))
        terms = []
        for layer, names in layers.items():
            for name in names:
                change = torch.stack([update.sent[name] - update.returned[name] for update in updates]).flatten(1)
                # ⟨Σ_j α_j · θ_j, change⟩ for every client; its gradient does not reach other clients' parameters.
                terms.append((weights[layer] * (change @ models[name].flatten(1).t())).sum())
        grads = torch.autograd.grad(torch.stack(terms).sum(), list(params.values()))
        with torch.no_grad():
            for (name, tensor), grad in zip(params.items(), grads, strict=True):
                stored[name][index] = tensor - self.server_lr * grad
            self.store(server, updates)
        return Server(self.average(updates, roles.shared), server.extra)

    def mixtures(self, params: Tensors, clients: Sequence[int], layers: Sequence[str]) -> Tensors:
        """Return the weights α of some clients from their stacked `params`: layer → (clients, all clients)."""
        hidden = params["embedding"]
        for index in range(_LINEARS):
            hidden = F.relu(_linear(params, f"mlp.{index}", hidden))
        mixtures = {}
        for layer in layers:
            outputs = F.relu(_linear(params, f"{_LAYER}{layer}", hidden))
            total = outputs.sum(1, keepdim=True)
            one_hot = F.one_hot(torch.tensor(clients, device=outputs.device), outputs.shape[1]).to(outputs.dtype)
            # The inner `where` keeps a division by zero out of the gradient.
            mixtures[layer] = torch.where(total > 0, outputs / torch.where(total > 0, total, 1.0), one_hot)
        return mixtures


def layer_of(name: str) -> str:
    return name.rpartition(".")[0] or name


def _linear(params: Tensors, name: str, inputs: Tensor) -> Tensor:
    return torch.einsum("coi,ci->co", params[f"{name}.weight"], inputs) + params[f"{name}.bias"]


@METHODS.register
class HeurpFedLA(PFedLALayerwise):
    """Layer-wise mixtures as in pFedLA, except for the k layers where a client's own weight is largest.

    In the k layers with the largest α_i^{l,i} a client continues with its own parameters. It returns them, but does not
    receive them; no gradient reaches the hypernetwork's outputs for them. With k = 0 this is pfedla_layerwise.
    """

    name = "heurpfedla"
    citation = "Ma et al., Layer-wised Model Aggregation for Personalized FL (HeurpFedLA), CVPR 2022"
    exchanges = ("which layers are kept",)
    keep: int = option(1, ge=0, help="Number k of layers that a client keeps; a layer is a module with parameters.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        mixed = [name for name in initial if name in roles.generated]
        layers = len({layer_of(name) for name in mixed})
        if self.keep > layers:
            raise UserError(f"method heurpfedla: keep: {self.keep} is more than the {layers} layers that are mixed")
        return {f"kept/{name}": torch.zeros(federation.clients, dtype=torch.bool) for name in mixed}

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        return self._with_kept(super().init_server(initial, roles, federation), federation)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        return self._with_kept(super().update_server(server, roles, updates), server.federation)

    def _with_kept(self, server: Server, federation: Federation) -> Server:
        """Return the server with a mask for each mixed entry, (clients,): who keeps it in the next round."""
        weights = self.weights_of(server, range(federation.clients))
        alone = {layer: weight.diagonal() == 1 for layer, weight in weights.items()}
        tables = {name: alone[layer_of(name)].clone() for name in strip_prefix(_KEPT, server.shared)}
        return replace(server, shared={**server.shared, **add_prefix(_KEPT, tables)})

    def mixtures(self, params: Tensors, clients: Sequence[int], layers: Sequence[str]) -> Tensors:
        weights = super().mixtures(params, clients, layers)
        if not self.keep:
            return weights
        diagonal = torch.stack([weights[layer].detach()[range(len(clients)), list(clients)] for layer in layers], 1)
        keeps = torch.zeros_like(diagonal, dtype=torch.bool).scatter_(1, diagonal.topk(self.keep, 1).indices, True)
        alone = F.one_hot(torch.tensor(clients, device=diagonal.device), weights[layers[0]].shape[1]).to(diagonal.dtype)
        return {layer: torch.where(keeps[:, [i]], alone, weights[layer]) for i, layer in enumerate(layers)}

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return bytes; the client does not receive kept layers."""
        sent = {name: tensor for name, tensor in update.sent.items() if not name.startswith(_KEPT)}
        tables = strip_prefix(_KEPT, update.sent)
        keeps = torch.stack([clients[update.client] for clients in tables.values()]).tolist()  # one device sync
        saved = sum(sent[name].nbytes for name, keep in zip(tables, keeps, strict=True) if keep)
        up = sum(tensor.nbytes for tensor in sent.values())
        return up, up - saved
