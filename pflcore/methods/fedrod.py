"""Two classifiers on one body: a generic one for balanced classes, a personal one for the client's own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors
from pflcore.method import DATA, Batch, ClientView, Federation, LocalState, Method, cross_entropy, own, own_part, split
from pflcore.methods import METHODS
from pflcore.options import option

_COUNTS = f"{DATA}class_counts"
_NEVER = -1e9  # in place of log 0: e to it is 0, and unlike an infinity it leaves every sum a number


@METHODS.register
class FedRoD(Method):
    """FedAvg with balanced softmax, and on each client a second classifier that corrects the first.

    Body and generic classifier are the model; they are trained with the cross-entropy of logits + log n, n the client's
    number of training samples of each class (characters of text), and averaged. A class that the client lacks drops out
    of its softmax. The personal classifier is one linear layer on the same features, in tiny_vit on the class token
    before the LayerNorm that the generic one has in front, as in FedTP's code; it is trained with the cross-entropy of
    generic logits + its own, through which nothing reaches the rest, and stays on the client. The sum of both logits is
    what a client is measured with. This is the linear variant; the other, in which a hypernetwork
    makes personal classifiers from class counts, is not there.

    The personal classifier begins as a copy of the generic one, as in PFLlib; in FedTP's code it is drawn anew for each
    client. Its SGD has the run's momentum and decay, in FedTP's code none. A scaling that a backbone applies after its
    classifier is not applied to the personal logits. FL-bench lets the personal loss train the body and measures the
    personal classifier alone, which is another method.
    """

    citation = "Chen and Chao, FedRoD, ICLR 2022, linear variant"
    keeps = ("a second classifier",)
    facts = ("class_counts",)
    sees = "memory"
    weighs_classes = False
    ignores_unlabelled = True

    balanced: bool = option(True, help="Whether the generic loss is the balanced one; false is plain cross-entropy.")

    def companions(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        head = {name: initial[name] for name in federation.head}
        weight = _parts(head).get("weight")
        if weight is None or weight.ndim != 2:
            raise UserError("method fedrod needs a backbone whose group 'head' begins with a linear classifier")
        return {**super().companions(initial, roles, federation), **head}

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "own_momenta": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        generic, rest = split(model, local.parameters)
        personal, rest = split(rest, own(own_part(rest)))
        counts = rest[_COUNTS] if self.balanced else torch.ones_like(rest[_COUNTS])
        prior = torch.where(counts > 0, counts.clamp_min(1).log(), _NEVER)

        def loss(params: Tensors) -> Tensor:
            logits, features = local.features({**rest, **params}, batch.inputs)
            corrected = logits.detach() + personal_logits(params, features.detach())
            return cross_entropy(logits + prior, batch.labels) + cross_entropy(corrected, batch.labels)

        # Neither loss depends on what the other trains, so the gradients of their sum are those of each.
        gradients, value = local.gradient(loss, {**generic, **personal})
        generic, momenta = local.sgd(generic, {name: gradients[name] for name in generic}, state["momenta"])
        slopes = {name: gradients[name] for name in personal}
        personal, own_momenta = local.sgd(personal, slopes, state["own_momenta"])
        after = {**state, "model": {**model, **generic, **personal}, "momenta": momenta, "own_momenta": own_momenta}
        return after, value

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        logits, features = local.features(state, inputs)
        return logits + personal_logits(state, features)


def personal_logits(state: Tensors, features: Tensor) -> Tensor:
    """(…, classes) of the personal classifier in a client's state, for (…, features)."""
    parts = _parts(own_part(state))
    return F.linear(features, parts["weight"], parts.get("bias"))


def _parts(head: Tensors) -> Tensors:
    """A classifier's weight and bias under these names, whatever it is called in the model."""
    return {name.rpartition(".")[2]: tensor for name, tensor in head.items()}
