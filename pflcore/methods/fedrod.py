"""Two classifiers on one body: a generic one for balanced classes, a personal one for the client's own."""

from __future__ import annotations

import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Method, cross_entropy
from pflcore.methods import METHODS
from pflcore.methods._features import need_classifier
from pflcore.options import option

_COUNTS = "data/class_counts"
_NEVER = -1e9  # in place of log 0: e to it is 0, and unlike an infinity it leaves every sum a number


@METHODS.register
class FedRoD(Method):
    """FedAvg with balanced softmax, and on each client a second classifier that corrects the first.

    Body and generic classifier are trained with the cross-entropy of logits + log n, n the client's number of training
    samples of each class, and averaged. The personal classifier is one linear layer on the same features, in tiny_vit
    on the class token before the last LayerNorm; it begins as a copy of the generic one, is trained with the
    cross-entropy of generic logits + its own, through which nothing reaches the rest, and stays on the client. The sum
    of both logits is what a client is measured with.
    """

    citation = "Chen and Chao, FedRoD, ICLR 2022, linear variant"
    keeps = ("a second classifier",)
    facts = ("class_counts",)
    feature_layer = "memory"
    weighs_classes = False
    ignores_unlabelled = True

    balanced: bool = option(True, help="Whether the generic loss is the balanced one; false is plain cross-entropy.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation, initial)
        return {name: initial[name] for name in federation.head}

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "own_opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, own = state["model"], [name for name in state["model"] if name.startswith(OWN)]
        counts = model[_COUNTS] if self.balanced else torch.ones_like(model[_COUNTS])
        prior = torch.where(counts > 0, counts.clamp_min(1).log(), _NEVER)

        def loss(params: Tensors) -> Tensor:
            params = {**model, **params}
            logits, features = local.features(params, batch.inputs)
            corrected = logits.detach() + local.classify(strip_prefix(OWN, params), features.detach())
            return cross_entropy(logits + prior, batch.labels) + cross_entropy(corrected, batch.labels)

        # Neither loss depends on what the other trains, so the gradients of their sum are those of each.
        trained = [[name for name in model if name in local.parameters], own]
        grads, value = local.gradient(loss, {name: model[name] for part in trained for name in part})
        after = {**state}
        for names, optimiser in zip(trained, ("opt_state", "own_opt_state"), strict=True):
            given, slopes = ({name: tensors[name] for name in names} for tensors in (model, grads))
            moved, after[optimiser] = local.sgd(given, slopes, state[optimiser])
            after["model"] = {**after["model"], **moved}
        return after, value

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        logits, features = local.features(state, inputs)
        return logits + local.classify(strip_prefix(OWN, state), features)
