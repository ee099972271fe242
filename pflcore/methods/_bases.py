"""Helpers that several methods share: checks of the backbone, class means, a server that stores all clients' models."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles, Tensors, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Server, Steps, Update, name_of


def check_classifier(method: Method, federation: Federation, initial: Tensors | None = None) -> None:
    """Raise :class:`UserError` if the backbone has no classifier, or if its classifier in `initial` is not linear."""
    if not federation.head:
        raise UserError(f"method {name_of(method)} needs a backbone with a classifier, a group 'head'")
    if initial and initial[federation.head[0]].ndim != 2:
        raise UserError(f"method {name_of(method)} needs a backbone whose group 'head' begins with a linear classifier")


def check_exchanged(method: Method, names: Collection[str]) -> None:
    """Raise :class:`UserError` if no parameters are exchanged; `names` are the exchanged ones."""
    if not names:
        raise UserError(f"method {name_of(method)}: all that it works on of the model is personal")


class OwnTuning(Method):
    """Base of methods with their own preparation of clients for a measurement; the options `finetune_*` are refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tunes:
            raise UserError(f"method {name_of(self)}: finetune_*: what clients do before they are measured is its own")


def class_mask(labels: Tensor, classes: int) -> Tensor:
    """Return a boolean mask (classes, samples): whether a sample has the class; `labels` has shape (samples,)."""
    return labels == torch.arange(classes, device=labels.device).unsqueeze(1)


def zero_sums(like: Tensor) -> Tensors:
    """Return sums and counts of zero for the classes and features of `like`, (classes, features)."""
    return {"sums": torch.zeros_like(like), "counts": torch.zeros_like(like[:, 0])}


def add_sums(seen: Tensors, features: Tensor, labels: Tensor) -> Tensors:
    """Return sums and counts per class with more samples added: features (samples, features), labels (samples,)."""
    mask = class_mask(labels, len(seen["counts"])).to(features.dtype)
    return {"sums": seen["sums"] + mask @ features, "counts": seen["counts"] + mask.sum(1)}


def class_means(seen: Tensors) -> Tensor:
    """Return the mean features of each class, (classes, features); zeros for a class without samples."""
    return seen["sums"] / seen["counts"].clamp_min(1).unsqueeze(1)


@dataclass(frozen=True)
class ClassSums(Steps):
    """Steps that sum up features per class and train nothing; running statistics do not change."""

    like: str  # name of an entry of the client's state, (classes, features)
    entries: Callable[[Tensors], Tensors]  # sums, counts and squares of features → new entries of the client's state

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        like = start[self.like]
        return {**super().begin(local, start), "seen": {**zero_sums(like), "squares": torch.zeros_like(like[0, 0])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        seen = state["seen"]
        with torch.no_grad():
            logits, features = local.features(local.frozen(state["model"]), batch.inputs)
            features = features.flatten(0, -2)
            squares = seen["squares"] + features.square().sum()
            seen = {**add_sums(seen, features, batch.labels.flatten()), "squares": squares}
            return {**state, "seen": seen}, local.cross_entropy(logits, batch.labels)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        return {**state, "model": {**state["model"], **self.entries(state["seen"])}}


class PerClientModels(Method):
    """Base of methods whose server stores clients' generated entries, stacked; clients receive rows, or :meth:`mix`."""

    generated = (ALL,)
    beyond_mean = "its server keeps and mixes what single clients return"
    stored: ClassVar[str] = "models/"  # prefix of the names of stored entries
    buffers: ClassVar[str] = "personal"  # role of buffers: "personal", "shared", or "generated" like the rest

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
        """Return the entries that some clients receive: name → (clients, …)."""
        return {name: stored[list(clients)] for name, stored in self.models(server).items()}

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        mixed = self.mix(server, clients)
        return [{name: tensor[row] for name, tensor in mixed.items()} for row in range(len(clients))]

    def store(self, server: Server, updates: Sequence[Update]) -> None:
        """Store the entries that clients returned, in place."""
        for name, stored in self.models(server).items():
            stored[[update.client for update in updates]] = torch.stack([update.returned[name] for update in updates])
