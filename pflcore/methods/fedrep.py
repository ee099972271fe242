"""A shared body under classifiers that train apart from it (FedRep), or only before clients are measured (FedBABU)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Phase, Server, Steps, model_part, sgd_step
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class FedRep(Method):
    """The last linear layer is personal and trained first, then the shared body under it.

    The first `head_epochs` epochs of a round train the classifier, with the body as received, the others the body, with
    the classifier as it has become; each part begins without momentum. What is not being trained keeps its values to
    the bit. An epoch is as many steps as a pass over the client's samples takes, also under `training.local_steps`; the
    head's phase is rounded down to whole steps. Clients count alike in the average.
    """

    name = "fedrep"
    citation = "Collins et al., FedRep, ICML 2021, algorithm 1"
    personal = ("head",)
    own_averaging = "uniform"
    plain_sgd = True
    smoke: ClassVar[dict[str, Any]] = {"head_epochs": 0.5}  # smoke runs have a single local epoch

    schedule: str = option("alternating", choices=("alternating", "joint"), help="Head, then body; or both together.")
    head_epochs: float = option(4.0, gt=0, help="Epochs of the head, fewer than local epochs; 0.5 is half a pass.")
    finetune_epochs: int = option(0, ge=0, help="Epochs of tuning the head before a client is measured; not kept.")

    def tuning(self) -> Phase | None:
        tuning = super().tuning()
        return tuning if tuning is None or tuning.groups else replace(tuning, steps=PersonalPart())

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        epochs = federation.local_epochs
        if self.schedule == "alternating" and epochs is not None and self.head_epochs >= epochs:
            raise UserError(
                f"fedrep: method.head_epochs = {self.head_epochs:g} of training.local_epochs = {epochs} leaves no "
                "local step to the shared part; set it lower, or schedule: joint"
            )
        return super().init_server(initial, roles, federation)

    def phases(self) -> tuple[Phase, ...]:
        if self.schedule == "joint":
            return super().phases()
        return Phase(epochs=self.head_epochs, roles=("personal",)), Phase(roles=("shared",))


class PersonalPart(Steps):
    """Steps that train what is personal and nothing else; running statistics of the rest stay as they are."""

    ignores_unlabelled = True

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        trained, model = local.parameters & local.roles.personal, model_part(state["model"])
        owned = local.parameters | local.roles.personal
        still = {name: tensor.clone() for name, tensor in model.items() if name not in owned}
        return sgd_step(local, state, lambda params: self.loss(local, {**params, **still}, batch), trained)


@METHODS.register
class FedBabu(Method):
    """Rounds train and average the body alone; clients tune a copy of the model before they are measured.

    The classifier is that of the initial model in all rounds, neither trained nor sent. A client is measured with the
    averaged body and this classifier after tuning on its own training samples, by SGD without momentum or decay, which
    is forgotten. `finetune_groups` takes the place of `finetune_parts`. Clients count alike in the average.
    """

    name = "fedbabu"
    citation = "Oh, Kim and Yun, FedBABU, ICLR 2022, algorithm 1"
    personal = ("head",)
    own_averaging = "uniform"
    untrained = ("head",)
    ignores_unlabelled = True
    smoke: ClassVar[dict[str, Any]] = {"finetune_steps": 1}

    finetune_parts: str = option("all", choices=("head", "all"), help="What is tuned: the personal part alone, or all.")
    finetune_steps: int | None = option(None, ge=1, help="Steps of the tuning, on batches drawn anew; null: epochs.")
    finetune_epochs: int = option(5, ge=1, help="Passes of the tuning over a client's samples, without finetune_steps.")
    finetune_lr: float | None = option(None, gt=0, help="Learning rate of the tuning; null is that of the rounds.")

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        trained = local.parameters & local.roles.shared
        return sgd_step(local, state, lambda params: self.loss(local, params, batch), trained)

    def tuning(self) -> Phase | None:
        tuning = super().tuning()
        if tuning is None or tuning.groups:
            return tuning
        return replace(tuning, steps=Steps() if self.finetune_parts == "all" else PersonalPart())
