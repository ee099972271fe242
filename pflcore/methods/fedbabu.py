"""A shared body under one fixed random classifier, tuned by each client at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from pflcore.method import Batch, ClientView, LocalState, Method, Phase, Steps, sgd_step
from pflcore.methods import METHODS
from pflcore.methods.fedrep import PersonalPart
from pflcore.options import option


@METHODS.register
class FedBabu(Method):
    """Rounds train and average the body alone; clients tune a copy of the model before they are measured.

    The last linear layer is that of the common initial model for all clients and all rounds. No round trains it, so it
    is never sent, and momentum and weight decay do not move it. The same holds of groups in `also_personal`. What a
    client is measured with has been tuned on its own training samples from the averaged body and the initial
    classifier, by SGD without momentum or decay, and is then forgotten. The paper tunes the whole model for 5 epochs,
    which are the defaults. With `finetune_groups` these are tuned instead of what `finetune_parts` says.

    Clients count alike in the average, as in the authors' code.
    """

    citation = "Oh, Kim and Yun, FedBABU, ICLR 2022, algorithm 1"
    personal = ("head",)
    own_averaging = "uniform"
    untrained = ("head",)
    ignores_unlabelled = True
    smoke: ClassVar[dict[str, Any]] = {"finetune_steps": 1}

    finetune_parts: str = option(
        "all",
        choices=("head", "all"),
        help="Whether tuning trains the personal part alone or the whole model.",
    )
    finetune_steps: int | None = option(
        None, ge=1, help="Steps of the tuning, each on a batch drawn anew; null is whole epochs."
    )
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
