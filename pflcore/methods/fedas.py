"""A shared body that is aligned with a client's own features before it trains, and counts by Fisher information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcore.client_view import CLASS_WEIGHTS
from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import (
    COMMON,
    OWN,
    Batch,
    ClientView,
    Federation,
    LocalState,
    Method,
    Phase,
    Steps,
    Update,
    model_part,
    weights,
)
from pflcore.methods import METHODS
from pflcore.methods._features import ClassSums, add_sums, class_mask, class_means, need_classifier
from pflcore.options import option

_BODY = f"{OWN}body/"
_PROTOTYPES, _PRESENT, _TRACE = f"{OWN}prototypes", f"{OWN}present", f"{COMMON}trace"


@METHODS.register
class FedAS(Method):
    """FedPer whose clients align the received body with their prototypes, and count by Fisher traces.

    A client's prototypes are the mean features of its classes, the input of the classifier, under the model with which
    it ended its last round; a client that has not trained has none. At the beginning of a round it trains the received
    body on them, by plain SGD in passes of their own: a batch's loss is the sum over its classes of the mean squared
    difference between their samples' features and the class's prototype. Then body and head train as in FedPer. At last
    one more pass over the client's samples gives the new prototypes and the trace of the Fisher information: the sum
    over batches of |∇ loss|², by all parameters, so that clients of more batches count for more. The server averages
    bodies in the shares of these traces. A client is measured with the model with which it ended its last round, before
    that with the initial one. Running statistics rest outside of training. Positions of text count as samples.
    """

    citation = "Yang et al., FedAS, CVPR 2024"
    personal = ("head",)
    keeps = ("its last body", "prototypes of its classes")
    exchanges = ("the trace of the Fisher information",)
    own_averaging = None

    align_lr: float = option(0.01, ge=0, help="Learning rate of the alignment; 0: the body begins as received.")
    align_epochs: int = option(1, ge=1, help="Passes of the alignment over a client's samples.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation)
        body = {name: tensor for name, tensor in initial.items() if name in roles.shared}
        like = next(iter(initial.values()))
        return {
            **add_prefix("body/", body),
            "prototypes": like.new_zeros(federation.classes, federation.features),
            "present": like.new_zeros(federation.classes, dtype=torch.bool),
        }

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {"trace": torch.zeros(())}

    def eval_state(self, state: Tensors) -> Tensors:
        return {**model_part(state), **strip_prefix(_BODY, state)}

    def phases(self) -> tuple[Phase, ...]:
        align = Phase(Alignment(self.align_lr), epochs=self.align_epochs, extra=True, roles=("shared",))
        return align, Phase(), Phase(Summary(_PROTOTYPES), extra=True)

    def shares(self, updates: Sequence[Update]) -> list[float]:
        traces = [float(update.returned[_TRACE]) for update in updates]
        # All are zero where no loss has a gradient that float32 can hold.
        return [trace / sum(traces) for trace in traces] if sum(traces) else weights(updates)


@dataclass(frozen=True)
class Alignment(Steps):
    """Steps that draw features of the shared body to the client's prototypes."""

    lr: float

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, labels = state["model"], batch.labels.flatten()
        moving, rest = split(local.frozen(model), local.parameters)
        mask = class_mask(labels, len(model[_PRESENT]))
        # A sample counts by one over the batch's samples of its class, which makes sums of these means of classes.
        counts = torch.where(model[_PRESENT], 1 / mask.sum(1).clamp_min(1), 0.0)[labels]
        local.used.add(CLASS_WEIGHTS)  # classes count alike whatever their weights

        def loss(params: Tensors) -> Tensor:
            features = local.features({**rest, **params}, batch.inputs)[1].flatten(0, -2)
            return (counts * (features - model[_PROTOTYPES][labels]).square().mean(1)).sum()

        grads, value = local.gradient(loss, moving)
        moved = {name: tensor - self.lr * grads[name] for name, tensor in moving.items()}
        return {**state, "model": {**model, **moved}}, value


class Summary(ClassSums):
    """Steps that train nothing; at their end a client keeps its body, and has its prototypes and its trace."""

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "fisher": {"trace": torch.zeros_like(start[_TRACE])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        moving, rest = split(local.frozen(state["model"]), local.parameters)

        def loss(params: Tensors) -> tuple[Tensor, Tensors]:
            logits, features = local.features({**rest, **params}, batch.inputs)
            return local.cross_entropy(logits, batch.labels), {"features": features.flatten(0, -2).detach()}

        grads, value, aside = local.differentiate(loss, moving)
        trace = state["fisher"]["trace"] + torch.stack([grad.square().sum() for grad in grads.values()]).sum()
        seen = {**state["seen"], **add_sums(state["seen"], aside["features"], batch.labels.flatten())}
        return {**state, "seen": seen, "fisher": {"trace": trace}}, value

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model, seen = state["model"], state["seen"]
        summary = {
            **add_prefix(_BODY, {name: model[name] for name in strip_prefix(_BODY, model)}),
            _PROTOTYPES: class_means(seen),
            _PRESENT: seen["counts"] > 0,
            _TRACE: state["fisher"]["trace"],
        }
        return {**state, "model": {**model, **summary}}
