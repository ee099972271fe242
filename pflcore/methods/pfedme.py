"""Personal models as proximal points of the global one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Method, Server, Update
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class PFedMe(Method):
    """Each client seeks θ = argmin loss(θ) + λ/2 · ‖θ − w‖², and moves w towards it.

    For every batch θ takes ``inner_steps`` gradient steps of that objective, then w ← w − lr · λ · (w − θ). θ starts
    the round at what was received and is what a client is measured with, however long ago it was last sampled. Groups
    in `also_personal` are not pulled: they follow the gradient alone and are the same in both models. Both steps use
    the run's learning rate, without momentum, as FedTP's code does.
    """

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
