"""Class prototypes instead of weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import ALL, Roles, Tensors, split
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Server, Update
from pflcore.methods import METHODS
from pflcore.methods._features import add_sums, class_means, need_classifier, no_sums
from pflcore.options import option

_PROTOTYPES, _PRESENT, _EPOCH = "common/prototypes", "common/present", "data/epoch_steps"
_FARTHER = 100.0  # than the farthest prototype is a class without one


@METHODS.register
class FedProto(Method):
    """Clients keep their models and exchange the mean features of each class, towards which they train.

    The loss is the cross-entropy plus λ times the mean squared difference between a sample's features and the global
    prototype of its class, if there is one. A client returns, of each class, the mean of the features that it saw in
    the last epoch of its round, on the way and in training mode. The server takes the plain mean over the clients that
    have the class. A client predicts the class of the nearest global prototype: logits are minus the mean squared
    distance. A class without prototype cannot be predicted.
    """

    citation = "Tan et al., FedProto, AAAI 2022, algorithm 1"
    exchanges = ("prototypes of the classes",)
    personal = (ALL,)
    facts = ("epoch_steps",)
    own_averaging = None

    lam: float = option(1.0, ge=0, help="Weight λ of the distance to prototypes; 0.1 in FedTP's code.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetune_groups == ("head",):
            raise UserError("fedproto.finetune_groups: its predictions read no classifier, so there is nothing to tune")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation)
        classes = federation.classes
        prototypes = torch.zeros(classes, federation.features)
        return {"prototypes": prototypes, "present": torch.zeros(classes, dtype=torch.bool)}

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        seen = {"steps": torch.zeros_like(start[_EPOCH]), **no_sums(start[_PROTOTYPES])}
        return {**super().begin(local, start), "seen": seen}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, seen, labels = state["model"], state["seen"], batch.labels.flatten()
        moving, rest = split(model, local.parameters)
        known, targets = rest[_PRESENT][labels].unsqueeze(1), rest[_PROTOTYPES][labels]

        def loss(params: Tensors) -> tuple[Tensor, Tensors]:
            logits, features = local.features({**rest, **params}, batch.inputs)
            features = features.flatten(0, -2)
            away = torch.where(known, features - targets, 0.0).square().mean()
            return local.cross_entropy(logits, batch.labels) + self.lam * away, {"features": features.detach()}

        grads, value, aside = local.differentiate(loss, moving)
        moving, opt_state = local.sgd(moving, grads, state["opt_state"])
        first = seen["steps"] % rest[_EPOCH] == 0
        before = {name: torch.where(first, 0.0, seen[name]) for name in ("sums", "counts")}
        seen = {"steps": seen["steps"] + 1, **add_sums(before, aside["features"], labels)}
        return {**state, "model": {**model, **moving}, "opt_state": opt_state, "seen": seen}, value

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        found = {_PROTOTYPES: class_means(state["seen"]), _PRESENT: state["seen"]["counts"] > 0}
        return {**state, "model": {**state["model"], **found}}

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        features = local.features(state, inputs)[1]
        prototypes, present = state[_PROTOTYPES], state[_PRESENT]
        # One class after the other: all differences at once would take memory for each of them.
        distances = torch.stack([(features - one).square().mean(-1) for one in prototypes.unbind()], -1)
        farthest = torch.where(present, distances, 0.0).amax(-1, keepdim=True)
        return -torch.where(present, distances, 2 * farthest + _FARTHER)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        prototypes, present = server.shared[_PROTOTYPES], server.shared[_PRESENT]
        total, holders = torch.zeros_like(prototypes), torch.zeros_like(prototypes[:, 0])
        for one in updates:  # of a class that a client lacks it returns zeros
            total += one.returned[_PROTOTYPES]
            holders += one.returned[_PRESENT]
        found = holders > 0
        means = torch.where(found.unsqueeze(1), total / holders.clamp_min(1).unsqueeze(1), prototypes)
        return Server({_PROTOTYPES: means, _PRESENT: present | found}, server.extra)

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return the bytes of the prototypes that there are, and of a bit per class that says which."""
        parts = ((part[_PROTOTYPES], part[_PRESENT]) for part in (update.returned, update.sent))
        sent, received = (prototypes[present].nbytes + -(-len(present) // 8) for prototypes, present in parts)
        return sent, received
