"""A shared body that is aligned with a client's own features before it trains, and counts by Fisher information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcore.client_view import CLASS_WEIGHTS
from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Phase, Steps, Update, model_part, weights
from pflcore.methods import METHODS
from pflcore.methods._features import ClassSums, add_sums, class_mask, class_means, need_classifier
from pflcore.options import option

_BODY, _PROTOTYPES, _PRESENT, _TRACE = "own/body/", "own/prototypes", "own/present", "common/trace"


@METHODS.register
class FedAS(Method):
    """FedPer whose clients align the received body with their prototypes, and count by Fisher traces.

    A client's prototypes are the mean features of its classes under the model with which it ended its last round, which
    it is also measured with. A round begins by training the received body on them, by plain SGD in passes of their own:
    a batch's loss is the sum over its classes of the mean squared difference between features and prototype. Then body
    and head train. One more pass gives new prototypes and the trace of the Fisher information, the sum over batches of
    |∇ loss|² by all parameters. The server averages bodies in the shares of these traces.
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
        like, classes = next(iter(initial.values())), federation.classes
        body = {name: tensor for name, tensor in initial.items() if name in roles.shared}
        prototypes = like.new_zeros(classes, federation.features)
        present = like.new_zeros(classes, dtype=torch.bool)
        return {**add_prefix("body/", body), "prototypes": prototypes, "present": present}

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
        model, seen, trace = state["model"], state["seen"], state["fisher"]["trace"]
        body = {name: model[name] for name in strip_prefix(_BODY, model)}
        noted = {_PROTOTYPES: class_means(seen), _PRESENT: seen["counts"] > 0, _TRACE: trace}
        return {**state, "model": {**model, **add_prefix(_BODY, body), **noted}}
