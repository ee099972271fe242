"""A hypernetwork as pure functions over named tensors: client embedding → MLP → one linear head per target tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.groups import Tensors
from pflcore.seeds import torch_seed


@dataclass(frozen=True)
class HyperNetwork:
    """Sizes of a hypernetwork. Its parameters live in a dict of tensors that the functions take and return.

    Attributes:
        clients: Rows of the embedding table.
        embedding: Width of a client's embedding.
        hidden: Width of the MLP.
        layers: Linear layers of the MLP; a ReLU between two, none after the last.
        targets: Shapes of the tensors to generate, by name.
    """

    clients: int
    embedding: int
    hidden: int
    layers: int
    targets: Mapping[str, tuple[int, ...]]

    def init(self, seed: int) -> Tensors:
        """Parameters as PyTorch initialises embeddings and linear layers, from a stream of their own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "hypernetwork"))
            params = {"embedding": nn.Embedding(self.clients, self.embedding).weight.detach()}
            width = self.embedding
            for index in range(self.layers):
                _add_linear(params, f"mlp.{index}", width, self.hidden)
                width = self.hidden
            for name, shape in self.targets.items():
                _add_linear(params, f"heads.{name}", width, prod(shape))
        return params

    def __call__(self, params: Mapping[str, Tensor], clients: Sequence[int]) -> Tensors:
        """Generated tensors for some clients, each of shape (clients, \\*target shape)."""
        embedding = params["embedding"]
        hidden = embedding[torch.as_tensor(list(clients), device=embedding.device)]
        for index in range(self.layers):
            hidden = F.relu(hidden) if index else hidden
            hidden = _linear(params, f"mlp.{index}", hidden)
        return {
            name: _linear(params, f"heads.{name}", hidden).view(len(clients), *shape)
            for name, shape in self.targets.items()
        }

    def gradient(
        self, params: Mapping[str, Tensor], clients: Sequence[int], upstream: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Back-propagate gradients of the generated tensors (as returned by a call) into the parameters."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        made = self(leaves, clients)
        inner = torch.stack([(made[name] * upstream[name]).sum() for name in self.targets]).sum()
        return dict(zip(leaves, torch.autograd.grad(inner, list(leaves.values())), strict=True))


def _add_linear(params: Tensors, name: str, inputs: int, outputs: int) -> None:
    layer = nn.Linear(inputs, outputs)
    params[f"{name}.weight"] = layer.weight.detach()
    params[f"{name}.bias"] = layer.bias.detach()


def _linear(params: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    return F.linear(inputs, params[f"{name}.weight"], params[f"{name}.bias"])
