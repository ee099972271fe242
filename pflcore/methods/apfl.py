"""A mixture of a personal and the global model, with an adaptive weight."""

from __future__ import annotations

import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Method, model_part
from pflcore.methods import METHODS
from pflcore.options import option

_ALPHA = "alpha"
_DECAY = 0.02  # of α in its step, in every released code


@METHODS.register
class Apfl(Method):
    """Clients predict with α · v + (1 − α) · w: a model v of their own mixed with the global one.

    As written, w takes its step of FedAvg on each batch, v a step on the loss of the mixture, and α a step on
    ⟨v − w, gradient of the mixture⟩ + 0.02 · α, clipped to 0..1. As released with FedPerfix (and PFLlib), v is trained
    on its own loss, α's step uses α · g_v + (1 − α) · g_w of the two models and v − w as they are after their steps,
    and at the end of a round v becomes the mixture, with which the client is measured. Model parameters are mixed;
    buffers are those of v.
    """

    citation = "Deng, Kamani and Mahdavi, APFL, arXiv 2003.13461, algorithm 1"
    keeps = ("a second model", "the weight of its mixture")
    plain_sgd = True
    ignores_unlabelled = True

    alpha: float = option(0.25, ge=0, le=1, help="Initial weight α of the personal model; 1 is training alone.")
    adaptive: bool = option(True, help="Whether α is learned, with a step after every batch.")
    variant: str = option(
        "as_written", help="How v and α are trained; see above.", choices=("as_written", "as_released")
    )

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {**initial, _ALPHA: torch.tensor(self.alpha)}

    def eval_state(self, state: Tensors) -> Tensors:
        entries = strip_prefix(OWN, state)
        alpha = entries.pop(_ALPHA)
        return entries if self.variant == "as_released" else mix(alpha, entries, model_part(state))

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "own_opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        before = {name: tensor.clone() for name, tensor in state["model"].items() if name in local.parameters}
        entries = strip_prefix(OWN, state["model"])
        alpha = entries.pop(_ALPHA)
        v, buffers = split(entries, local.parameters)

        def loss_of(params: Tensors) -> Tensor:
            return self.loss(local, {**params, **buffers}, batch)

        if self.variant == "as_released":
            grads, _ = local.gradient(loss_of, v)
            of_w, _ = local.gradient(loss_of, before)
            toward = {name: alpha * grads[name] + (1 - alpha) * of_w[name] for name in v}
        else:
            toward, _ = local.gradient(loss_of, mix(alpha, v, before))
            grads = {name: alpha * grad for name, grad in toward.items()}  # of v, by the chain rule
        difference = {name: tensor - before[name] for name, tensor in v.items()}
        state, loss = super().step(local, state, batch)
        v, opt_state = local.sgd(v, grads, state["own_opt_state"])
        if self.variant == "as_released":
            difference = {name: tensor - state["model"][name] for name, tensor in v.items()}
        along = sum((difference[name] * toward[name]).sum() for name in v) + _DECAY * alpha
        if self.adaptive:
            moved, _ = local.sgd({_ALPHA: alpha}, {_ALPHA: torch.as_tensor(along)}, {})
            alpha = moved[_ALPHA].clamp(0, 1)
        model = {**state["model"], **add_prefix(OWN, {**v, _ALPHA: alpha})}
        return {**state, "model": model, "own_opt_state": opt_state}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        if self.variant == "as_written":
            return state
        entries = strip_prefix(OWN, state["model"])
        mixed = mix(entries.pop(_ALPHA), entries, model_part(state["model"]))
        return {**state, "model": {**state["model"], **add_prefix(OWN, mixed)}}


def mix(alpha: Tensor, v: Tensors, w: Tensors) -> Tensors:
    """Return α · v + (1 − α) · w for the entries of `v`; integers are those of `v`."""
    return {
        name: alpha * tensor + (1 - alpha) * w[name] if tensor.is_floating_point() else tensor
        for name, tensor in v.items()
    }
