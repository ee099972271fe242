"""A shared body and personal classifiers, trained one after the other."""

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

    A client spends the first `head_epochs` epochs of a round on its classifier, with the body as received, and the
    others on the body, with the classifier as it has become. The body is sent and averaged, the classifier stays; a
    client is measured with the averaged body and its last classifier. What is not being trained keeps its values to
    the bit, whatever momentum and weight decay are, and so do its batch norm statistics; each part starts its phase
    without momentum. Groups in `also_personal` train with the classifier.

    An epoch is as many steps as a pass over the client's samples takes, also where `training.local_steps` says how
    many steps there are; the head's phase is rounded down to whole steps. `training.local_epochs` must be larger than
    `head_epochs`. Clients count alike in the average. The authors tune heads for 10 epochs in the last round:
    `finetune_epochs`, and other groups with `finetune_groups`.
    """

    citation = "Collins et al., FedRep, ICML 2021, algorithm 1"
    personal = ("head",)
    own_averaging = "uniform"
    plain_sgd = True
    smoke: ClassVar[dict[str, Any]] = {"head_epochs": 0.5}  # smoke runs have a single local epoch

    schedule: str = option(
        "alternating",
        choices=("alternating", "joint"),
        help="Whether head and body train one after the other or, as in FedPerfix's code, together.",
    )
    head_epochs: float = option(
        4.0,
        gt=0,
        help="Epochs at the beginning of a round that train the head; fewer than the local epochs, 0.5 is half a pass.",
    )
    finetune_epochs: int = option(
        0,
        ge=0,
        help="Epochs in which a client tunes its head on the averaged body before it is measured; not kept.",
    )

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
        personal = local.roles.personal
        still = {
            name: tensor.clone()
            for name, tensor in model_part(state["model"]).items()
            if name not in local.parameters | personal
        }
        return sgd_step(
            local, state, lambda params: self.loss(local, {**params, **still}, batch), local.parameters & personal
        )
