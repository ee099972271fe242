"""Federated averaging with a proximal term."""

from __future__ import annotations

from torch import Tensor

from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView, Method
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class FedProx(Method):
    """FedAvg whose clients are held near the model they received: loss + μ/2 · ‖w − w_received‖².

    The gradient is that of the plain loss plus μ · (w − w_received); entries that stay on the client are free.
    """

    citation = "Li et al., MLSys 2020"
    ignores_unlabelled = True

    mu: float = option(0.01, ge=0, help="Weight μ of the proximal term; 0 is FedAvg.")

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        held = local.parameters & local.roles.shared
        distance = sum(((params[name] - local.received[name]) ** 2).sum() for name in params if name in held)
        return super().loss(local, params, batch) + 0.5 * self.mu * distance
