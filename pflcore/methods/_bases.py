"""What several methods share: what they need of a backbone, class means, models of all clients at the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles, Tensors, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Server, Steps, Update, name_of


def need_classifier(method: Method, federation: Federation, initial: Tensors | None = None) -> None:
    """Raise :class:`UserError` for a backbone without a classifier, or whose classifier in `initial` is not linear."""
    if not federation.head:
        raise UserError(f"method {name_of(method)} needs a backbone with a classifier, a group 'head'")
    if initial and initial[federation.head[0]].ndim != 2:
        raise UserError(f"method {name_of(method)} needs a backbone whose group 'head' begins with a linear classifier")


def need_exchanged(method: Method, names: Collection[str]) -> None:
    """Raise :class:`UserError` where no parameters are exchanged, by the names of those that are."""
    if not names:
        raise UserError(f"method {name_of(method)}: all that it works on of the model is personal")


class OwnTuning(Method):
    """The base of methods whose clients do something of their own before they are measured; `finetune_*` is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tunes:
            raise UserError(f"method {name_of(self)}: finetune_*: what clients do before they are measured is its own")


def class_mask(labels: Tensor, classes: int) -> Tensor:
    """Return which samples are of which class: (classes, samples) of labels (samples,)."""
    return labels == torch.arange(classes, device=labels.device).unsqueeze(1)


def no_sums(like: Tensor) -> Tensors:
    """Return sums over no samples, of classes and features as of `like`, (classes, features)."""
    return {"sums": torch.zeros_like(like), "counts": torch.zeros_like(like[:, 0])}


def add_sums(seen: Tensors, features: Tensor, labels: Tensor) -> Tensors:
    """Return sums and counts of each class with further samples: features (samples, features), labels (samples,)."""
    mask = class_mask(labels, len(seen["counts"])).to(features.dtype)
    return {"sums": seen["sums"] + mask @ features, "counts": seen["counts"] + mask.sum(1)}


def class_means(seen: Tensors) -> Tensor:
    """Return the mean features of each class, zero of classes without samples: (classes, features)."""
    return seen["sums"] / seen["counts"].clamp_min(1).unsqueeze(1)


@dataclass(frozen=True)
class ClassSums(Steps):
    """Steps that train nothing, and note what sums, counts and summed squares of features say; statistics rest."""

    like: str  # an entry of the client's state that is (classes, features)
    note: Callable[[Tensors], Tensors]  # of these sums, the entries with which the client's state ends

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        like = start[self.like]
        return {**super().begin(local, start), "seen": {**no_sums(like), "squares": torch.zeros_like(like[0, 0])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        seen = state["seen"]
        with torch.no_grad():
            logits, features = local.features(local.frozen(state["model"]), batch.inputs)
            features = features.flatten(0, -2)
            squares = seen["squares"] + features.square().sum()
            seen = {**add_sums(seen, features, batch.labels.flatten()), "squares": squares}
            return {**state, "seen": seen}, local.cross_entropy(logits, batch.labels)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        return {**state, "model": {**state["model"], **self.note(state["seen"])}}


class PerClientModels(Method):
    """The server stores all clients' generated entries, stacked; a client is sent its row, or their :meth:`mix`."""

    generated = (ALL,)
    beyond_mean = "its server keeps and mixes what single clients return"
    stored: ClassVar[str] = "models/"  # what the names of stored entries begin with
    buffers: ClassVar[str] = "personal"  # who owns what no gradient trains: or "shared", or "generated" as the rest

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
