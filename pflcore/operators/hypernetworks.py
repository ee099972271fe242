"""A hypernetwork as pure functions over named tensors: client embedding → MLP → one linear head per target tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.groups import Tensors
from pflcore.seeds import torch_seed

# Rows of a head that are updated together on a CPU: with their momenta they fit into a core's cache.
_ROWS = 512


@dataclass(frozen=True)
class HyperNetwork:
    """Sizes of a hypernetwork. Its parameters are a dict of tensors that the functions take and return."""

    clients: int  # rows of the embedding table
    embedding: int  # width of a client's embedding
    hidden: int  # width of the MLP
    layers: int  # linear layers of the MLP; a ReLU between two, none after the last
    targets: Mapping[str, tuple[int, ...]]  # shapes of the tensors to generate, by name

    def init(self, seed: int) -> Tensors:
        """Return initial parameters, as of PyTorch's embeddings and linear layers, from their own random stream."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "hypernetwork"))
            params = {"embedding": nn.Embedding(self.clients, self.embedding).weight.detach()}
            widths = [self.embedding, *[self.hidden] * self.layers]
            linears = {f"mlp.{index}": (width, self.hidden) for index, width in enumerate(widths[:-1])}
            linears |= {f"heads.{name}": (widths[-1], prod(shape)) for name, shape in self.targets.items()}
            for name, sizes in linears.items():
                layer = nn.Linear(*sizes)
                params |= {f"{name}.weight": layer.weight.detach(), f"{name}.bias": layer.bias.detach()}
        return params

    def __call__(self, params: Mapping[str, Tensor], clients: Sequence[int]) -> Tensors:
        """Return generated tensors for some clients, each (clients, \\*target shape)."""
        hidden = self._hidden(params, clients)
        generated = {}
        for name, shape in self.targets.items():
            generated[name] = _linear(params, f"heads.{name}", hidden).view(len(clients), *shape)
        return generated

    def sgd_step(
        self, params: Tensors, momenta: Tensors, clients: Sequence[int], upstream: Tensors, **rates: float
    ) -> None:
        r"""Take one step of SGD as PyTorch does, in place; `upstream` has the gradients of generated tensors.

        `upstream` is target name → (clients, \*target shape); `momenta` begin as zeros. Nearly all parameters are in
        the heads, and a head's gradient, a sum of one outer product per client, is as large as the head. So it is never
        formed: rows of a head and of its momentum are updated, and their share of the gradient for the layers below is
        added up, while they are in the processor's cache.
        """
        lr, momentum, weight_decay = rates["lr"], rates["momentum"], rates["weight_decay"]
        leaves, hidden = self._trace(params, clients)
        inner = hidden.detach()
        inner_grad = torch.zeros_like(inner)

        def step(param: Tensor, buffer: Tensor) -> None:
            buffer.add_(param, alpha=weight_decay)
            param.add_(buffer, alpha=-lr)

        with torch.no_grad():
            for name in self.targets:
                grads = upstream[name].reshape(len(clients), -1)
                weights = params[f"heads.{name}.weight"]
                rows = len(weights) if weights.is_cuda else _ROWS
                tensors = weights, momenta[f"heads.{name}.weight"], grads.t()
                for weight, buffer, grad in zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True):
                    inner_grad.addmm_(grad.t(), weight)
                    buffer.addmm_(grad, inner, beta=momentum)
                    step(weight, buffer)
                buffer = momenta[f"heads.{name}.bias"].mul_(momentum).add_(grads.sum(0))
                step(params[f"heads.{name}.bias"], buffer)
        gradients = torch.autograd.grad(hidden, list(leaves.values()), inner_grad)
        with torch.no_grad():
            for name, gradient in zip(leaves, gradients, strict=True):
                step(params[name], momenta[name].mul_(momentum).add_(gradient))

    def squared_norm(self, params: Tensors, clients: Sequence[int], upstream: Mapping[str, Tensor]) -> Tensor:
        """Return the squared norm of the gradient that :meth:`sgd_step` uses, without decay. The gradient is not
        formed: that of a head, Σ sᵢ·hᵢᵀ over clients, has the squared norm Σᵢⱼ (sᵢ·sⱼ)(hᵢ·hⱼ)."""
        leaves, hidden = self._trace(params, clients)
        inner = hidden.detach()
        inner_grad = torch.zeros_like(inner)
        products = inner @ inner.t() + 1  # the 1 is for biases
        square = inner.new_zeros(())
        with torch.no_grad():
            for name in self.targets:
                grads = upstream[name].reshape(len(clients), -1)
                inner_grad.addmm_(grads, params[f"heads.{name}.weight"])
                square += (grads @ grads.t() * products).sum()
        gradients = torch.autograd.grad(hidden, list(leaves.values()), inner_grad)
        return (square + sum(gradient.square().sum() for gradient in gradients)).clamp(min=0)

    def _trace(self, params: Tensors, clients: Sequence[int]) -> tuple[Tensors, Tensor]:
        """Return the parameters below the heads as leaves of a graph, and the heads' input."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items() if "heads." not in name}
        return leaves, self._hidden(leaves, clients)

    def _hidden(self, params: Mapping[str, Tensor], clients: Sequence[int]) -> Tensor:
        embedding = params["embedding"]
        hidden = embedding[torch.as_tensor(list(clients), device=embedding.device)]
        for index in range(self.layers):
            hidden = _linear(params, f"mlp.{index}", F.relu(hidden) if index else hidden)
        return hidden


def _linear(params: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    return F.linear(inputs, params[f"{name}.weight"], params[f"{name}.bias"])
