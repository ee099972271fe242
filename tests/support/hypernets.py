"""Hypernetworks as modules, with the values of a server's entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pflcore.engine import Result
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import Server, Update, weights
from pflcore.methods import Method
from support.by_hand import SEED, State
from support.tiny import backbone, create, known, method


def start(entry: Method, net: Any, clients: int, seed: int = SEED) -> tuple[Tensors, Roles, Server]:
    """The initial state, the roles and the server before the first round."""
    model, groups = create(net, seed, entry)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    roles = entry.roles(groups)
    return initial, roles, entry.init_server(initial, roles, known(clients, seed, initial, roles))


class Hypernet(nn.Module):
    """Embedding, MLP and a linear head per tensor, with the values of a server's entries."""

    def __init__(self, server: Server, shapes: dict[str, torch.Size]) -> None:
        super().__init__()
        entries, self.shapes = strip_prefix("hyper/", server.extra), shapes
        self.embedding = nn.Embedding.from_pretrained(entries.pop("embedding").clone(), freeze=False)
        self.linears = linears(entries)

    def forward(self, client: int) -> Tensors:
        hidden = self.embedding(torch.tensor(client))
        for index in range(sum(name.startswith("mlp|") for name in self.linears)):
            hidden = self.linears[f"mlp|{index}"](hidden if index == 0 else hidden.relu())
        heads = {name: self.linears[f"heads.{name}".replace(".", "|")] for name in self.shapes}
        return {name: heads[name](hidden).view(shape) for name, shape in self.shapes.items()}

    def sent(self, client: int) -> State:
        return {name: tensor.detach() for name, tensor in self(client).items()}

    def values(self) -> State:
        return hyper(self.embedding.weight, self.linears)

    def backward(self, updates: list[Update]) -> None:
        """Gradients from the clients' changes, before − after, each by ``autograd.backward``."""
        for share, one in zip(weights(updates), updates, strict=True):
            made = self(one.client)
            torch.autograd.backward(list(made.values()), [share * (one.sent[n] - one.returned[n]) for n in made])


def server_entries(result: Result, *prefixes: str) -> State:
    return {n: one for n, one in strip_prefix("server.", result.weights).items() if n.startswith(prefixes)}


def fresh(name: str, clients: int = 5, net: str = "convnet", **options: Any) -> tuple[Any, Server, Roles]:
    entry = method(name, **options)
    _, roles, server = start(entry, backbone(net), clients)
    return entry, server, roles


def linears(entries: State) -> nn.ModuleDict:
    """Linear layers with the values of entries, by their names with | for the points."""
    made = nn.ModuleDict()
    for stem in (name.removesuffix(".weight") for name in entries if name.endswith(".weight")):
        weight, bias = entries[f"{stem}.weight"], entries[f"{stem}.bias"]
        layer = made[stem.replace(".", "|")] = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
    return made


def hyper(embedding: Tensor, layers: nn.ModuleDict) -> State:
    """Entries of a server."""
    values = {"hyper/embedding": embedding.detach()}
    for name, layer in layers.items():
        values |= add_prefix(f"hyper/{name.replace('|', '.')}.", layer.state_dict())
    return values
