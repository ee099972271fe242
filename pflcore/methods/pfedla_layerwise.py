"""Layer-wise mixtures of all clients' models, with weights that a hypernetwork per client learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.groups import Roles, Tensors, strip_prefix
from pflcore.method import Federation, Server, Update
from pflcore.methods import METHODS
from pflcore.methods._per_client_models import PerClientModels
from pflcore.options import option
from pflcore.seeds import torch_seed

_HYPER, _LAYER = "hyper/", "layers."
_LINEARS = 3  # below the layers' outputs


@METHODS.register
class PFedLALayerwise(PerClientModels):
    """A client's model is, layer by layer, a learned mixture of all clients' models.

    The server stores the latest model θ_j of every client and, for every client i, a hypernetwork: an embedding, three
    linear layers with ReLU, then for each layer l of the model a linear layer with ReLU to N outputs, which, divided by
    their sum, are the weights α_i^l. The client receives Σ_j α_i^{l,j} · θ_j^l, trains it and returns it. Its
    hypernetwork and embedding take a step of plain SGD along before − after through the mixture of the models as they
    were, then the server stores what was returned. Everyone is measured with the new mixture of the new models.

    A layer is a module that has parameters of its own, say a convolution with its bias. Output layers begin uniform in
    0..1 without bias, since their ReLUs could otherwise all be zero; the mixtures begin near the plain mean. Where all
    outputs are zero nevertheless, the client gets its own layer. Buffers are averaged as in FedAvg.

    All clients should take part in each round: of others stale models are mixed. The analysis `layer_weights` tells how
    far the weights moved. The variant that keeps some layers on the client is `heurpfedla`. This is not the method of
    local attention with the same short name.
    """

    citation = "Ma et al., Layer-wised Model Aggregation for Personalized FL (pFedLA), CVPR 2022"
    buffers = "shared"
    smoke: ClassVar[dict[str, Any]] = {"embedding": 8, "hidden": 16}

    embedding: int = option(100, ge=1, help="Width of a client's embedding.")
    hidden: int = option(100, ge=1, help="Width of the hypernetworks' hidden layers.")
    server_lr: float = option(
        20.0, gt=0, help="Learning rate of the hypernetworks' SGD; at 0.005, as others take it, it is in effect FedAvg."
    )

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server, clients = super().init_server(initial, roles, federation), federation.clients
        stream = torch.Generator().manual_seed(torch_seed(federation.seed, "layer mixtures"))
        params = {"embedding": torch.randn(clients, self.embedding, generator=stream)}
        for index in range(_LINEARS):
            width = self.hidden if index else self.embedding
            for part, shape in (("weight", (self.hidden, width)), ("bias", (self.hidden,))):  # as PyTorch begins them
                drawn = torch.rand(clients, *shape, generator=stream)
                params[f"mlp.{index}.{part}"] = (2 * drawn - 1) * width**-0.5
        for layer in self.layers(server):
            params[f"{_LAYER}{layer}.weight"] = torch.rand(clients, clients, self.hidden, generator=stream)
            params[f"{_LAYER}{layer}.bias"] = torch.zeros(clients, clients)
        device = next(iter(initial.values())).device
        server.extra.update({f"{_HYPER}{name}": tensor.to(device) for name, tensor in params.items()})
        return server

    def layers(self, server: Server) -> dict[str, list[str]]:
        """Return the parameters of each layer, by its name; a parameter of the model itself is a layer."""
        layers: dict[str, list[str]] = {}
        # Sorted, for a checkpoint does not keep the order of entries, and sums are rounded in order.
        for name in sorted(self.models(server)):
            layers.setdefault(layer_of(name), []).append(name)
        return layers

    def mix(self, server: Server, clients: Sequence[int]) -> Tensors:
        models, weights = self.models(server), self.weights_of(server, clients)
        return {
            name: (weights[layer] @ models[name].flatten(1)).view(len(clients), *models[name].shape[1:])
            for layer, names in self.layers(server).items()
            for name in names
        }

    @torch.no_grad()
    def weights_of(self, server: Server, clients: Sequence[int]) -> Tensors:
        """Return the weights α of some clients as the server has them now: layer → (clients, all clients)."""
        index = list(clients)
        params = {name: tensor[index] for name, tensor in strip_prefix(_HYPER, server.extra).items()}
        return self.mixtures(params, index, list(self.layers(server)))

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        index, models, layers = [update.client for update in updates], self.models(server), self.layers(server)
        stored = strip_prefix(_HYPER, server.extra)
        params = {name: tensor[index].requires_grad_() for name, tensor in stored.items()}
        weights = self.mixtures(params, index, list(layers))
        terms = []
        for layer, names in layers.items():
            for name in names:
                change = torch.stack([update.sent[name] - update.returned[name] for update in updates]).flatten(1)
                # ⟨Σ_j α_j · θ_j, change⟩ for every client; a step of one does not touch another's parameters.
                terms.append((weights[layer] * (change @ models[name].flatten(1).t())).sum())
        grads = torch.autograd.grad(torch.stack(terms).sum(), list(params.values()))
        with torch.no_grad():
            for (name, tensor), grad in zip(params.items(), grads, strict=True):
                stored[name][index] = tensor - self.server_lr * grad
            self.store(server, updates)
        return Server(self.average(updates, roles.shared), server.extra)

    def mixtures(self, params: Tensors, clients: Sequence[int], layers: Sequence[str]) -> Tensors:
        """Return the weights α of some clients: layer → (clients, all clients), rows that sum to 1.

        Args:
            params: Their hypernetworks' parameters, stacked.
            clients: Their numbers.
            layers: Names of the layers.
        """
        hidden = params["embedding"]
        for index in range(_LINEARS):
            hidden = F.relu(_linear(params, f"mlp.{index}", hidden))
        mixtures = {}
        for layer in layers:
            outputs = F.relu(_linear(params, f"{_LAYER}{layer}", hidden))
            total = outputs.sum(1, keepdim=True)
            own = F.one_hot(torch.tensor(clients, device=outputs.device), outputs.shape[1]).to(outputs.dtype)
            # The inner choice keeps a division by zero out of the gradient.
            mixtures[layer] = torch.where(total > 0, outputs / torch.where(total > 0, total, 1.0), own)
        return mixtures


def layer_of(name: str) -> str:
    """Return the layer that an entry belongs to; a parameter of the model itself is one."""
    return name.rpartition(".")[0] or name


def _linear(params: Tensors, name: str, inputs: Tensor) -> Tensor:
    """Map each row through the linear layer of its own: (clients, inputs) → (clients, outputs)."""
    return torch.einsum("coi,ci->co", params[f"{name}.weight"], inputs) + params[f"{name}.bias"]
