"""A second model on each client: near the global one (Ditto), its proximal point (pFedMe), or mixed with it (APFL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Method, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class Ditto(Method):
    """FedAvg, and on each client a second model v that minimises its loss + λ/2 · ‖v − w_received‖².

    For every batch the global model takes its step and the personal one takes one on the same batch, as in the authors'
    code. The personal model stays on the client, which is measured with it; it begins as the initial model, and has
    batch norm statistics of its own.
    """

    name = "ditto"
    citation = "Li et al., Ditto, ICML 2021, algorithm 1"
    keeps = ("a second model",)
    ignores_unlabelled = True

    lam: float = option(1.0, ge=0, help="Weight λ of the distance to the global model; 0 is training alone.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return initial

    def eval_state(self, state: Tensors) -> Tensors:
        return strip_prefix(OWN, state)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "own_opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        state, loss = super().step(local, state, batch)
        trained, buffers = split(strip_prefix(OWN, state["model"]), local.parameters)
        grads, _ = local.gradient(lambda params: self.loss(local, {**params, **buffers}, batch), trained)
        for name in grads.keys() & local.roles.shared:
            grads[name] = grads[name] + self.lam * (trained[name] - local.received[name])
        trained, opt_state = local.sgd(trained, grads, state["own_opt_state"])
        return {**state, "model": {**state["model"], **add_prefix(OWN, trained)}, "own_opt_state": opt_state}, loss


@METHODS.register
class PFedMe(Method):
    """Each client seeks θ = argmin loss(θ) + λ/2 · ‖θ − w‖², and moves w towards it.

    For every batch θ takes ``inner_steps`` gradient steps of that objective, then w ← w − lr · λ · (w − θ). θ begins a
    round as what was received; a client is measured with its last θ. Groups in `also_personal` are not pulled and are
    the same in both models. Both steps use the run's learning rate, without momentum.
    """

    name = "pfedme"
    citation = "T. Dinh, Tran and Nguyen, pFedMe, NeurIPS 2020, algorithm 1"
    keeps = ("a second model",)
    plain_sgd = True
    ignores_unlabelled = True

    lam: float = option(15.0, gt=0, help="Weight λ of the distance between personal and global model.")
    inner_steps: int = option(5, ge=1, help="Gradient steps towards the proximal point for every batch.")
    beta: float = option(1.0, gt=0, help="The server's step: w ← (1 − β) · w + β · average; FedTP uses 1.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return initial

    def eval_state(self, state: Tensors) -> Tensors:
        return strip_prefix(OWN, state)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        theta = {name: start[name].clone() for name in strip_prefix(OWN, start)}
        return super().begin(local, {**start, **add_prefix(OWN, theta)})

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        theta, buffers = split(strip_prefix(OWN, model), local.parameters)
        first = None
        for _ in range(self.inner_steps):
            grads, loss = local.gradient(lambda params: self.loss(local, {**params, **buffers}, batch), theta)
            first = loss if first is None else first
            for name in grads.keys() & local.roles.shared:
                grads[name] = grads[name] + self.lam * (theta[name] - model[name])
            theta, _ = local.sgd(theta, grads, {})
        assert first is not None  # inner_steps is at least 1
        back = {name: self.lam * (model[name] - theta[name]) for name in theta if name in local.roles.shared}
        moved, _ = local.sgd({name: model[name] for name in back}, back, {})
        # What is the client's alone has nothing to be near to: it is the same in both models.
        moved |= {name: tensor.clone() for name, tensor in theta.items() if name not in back}
        # The statistics of batch norm are those of the model that saw the batches.
        return {**state, "model": {**model, **add_prefix(OWN, theta), **moved, **buffers}}, first

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        mean = self.average(updates, roles.shared)
        if self.beta != 1.0:
            mean = {
                name: server.shared[name].lerp(tensor, self.beta) if tensor.is_floating_point() else tensor
                for name, tensor in mean.items()
            }
        return Server(mean, server.extra)


@METHODS.register
class Apfl(Method):
    """Clients predict with α · v + (1 − α) · w: a model v of their own mixed with the global one.

    As written, w takes its step of FedAvg on each batch, v a step on the loss of the mixture, and α a step on
    ⟨v − w, gradient of the mixture⟩ + 0.02 · α, clipped to 0..1. As released with FedPerfix (and PFLlib), v is trained
    on its own loss, α's step uses α · g_v + (1 − α) · g_w of the two models and v − w as they are after their steps,
    and at the end of a round v becomes the mixture, with which the client is measured. Buffers are those of v.
    """

    name = "apfl"
    citation = "Deng, Kamani and Mahdavi, APFL, arXiv 2003.13461, algorithm 1"
    keeps = ("a second model", "the weight of its mixture")
    plain_sgd = True
    ignores_unlabelled = True

    alpha: float = option(0.25, ge=0, le=1, help="Initial weight α of the personal model; 1 is training alone.")
    adaptive: bool = option(True, help="Whether α is learned, with a step after every batch.")
    variant: str = option("as_written", choices=("as_written", "as_released"), help="How v and α train; see above.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {**initial, "alpha": torch.tensor(self.alpha)}

    def eval_state(self, state: Tensors) -> Tensors:
        v, alpha = _own(state)
        return v if self.variant == "as_released" else mix(alpha, v, model_part(state))

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "own_opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        before = {name: tensor.clone() for name, tensor in state["model"].items() if name in local.parameters}
        own, alpha = _own(state["model"])
        v, buffers = split(own, local.parameters)

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
        along = sum((difference[name] * toward[name]).sum() for name in v) + 0.02 * alpha  # as in every released code
        if self.adaptive:
            moved, _ = local.sgd({"alpha": alpha}, {"alpha": torch.as_tensor(along)}, {})
            alpha = moved["alpha"].clamp(0, 1)
        model = {**state["model"], **add_prefix(OWN, {**v, "alpha": alpha})}
        return {**state, "model": model, "own_opt_state": opt_state}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        if self.variant == "as_written":
            return state
        v, alpha = _own(state["model"])
        mixed = mix(alpha, v, model_part(state["model"]))
        return {**state, "model": {**state["model"], **add_prefix(OWN, mixed)}}


def _own(state: Tensors) -> tuple[Tensors, Tensor]:
    """Return v and α."""
    entries = strip_prefix(OWN, state)
    return entries, entries.pop("alpha")


def mix(alpha: Tensor, v: Tensors, w: Tensors) -> Tensors:
    """Return α · v + (1 − α) · w for the entries of `v`; integers are those of `v`."""
    return {
        name: alpha * tensor + (1 - alpha) * w[name] if tensor.is_floating_point() else tensor
        for name, tensor in v.items()
    }
