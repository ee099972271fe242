"""Tuning of what a client is measured with, whatever the method predicts by."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pflcore.groups import Tensors
from pflcore.method import OWN, Batch, ClientView, LocalState, Method, Steps, sgd_step


@dataclass(frozen=True)
class FineTuning(Steps):
    """Steps on the cross-entropy of the predictions that clients of a method are measured by.

    They train the parameters that the trainer names, and second ones of the same names that a client keeps, like
    FedRoD's classifier.

    Attributes:
        host: The method that predicts.
        moving: Buffers that follow the batches; all others stay as they are.
    """

    ignores_unlabelled = True

    host: Method
    moving: frozenset[str]

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        trained = {name for name in model if name.removeprefix(OWN) in local.parameters}
        still = {name: tensor.clone() for name, tensor in model.items() if name not in trained | self.moving}

        def loss(params: Tensors) -> Tensor:
            return local.cross_entropy(self.host.predict(local, {**params, **still}, batch.inputs), batch.labels)

        return sgd_step(local, state, loss, trained)
