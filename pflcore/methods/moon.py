"""A contrastive term between features of the local, the global and the previous local model."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, model_part, own, own_part
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class Moon(Method):
    """FedAvg whose clients keep features near the global model's, away from their last own model's.

    The loss is the cross-entropy plus μ times the mean over samples (positions of text) of
    −log(e^(s(z, z_g) / τ) / (e^(s(z, z_g) / τ) + e^(s(z, z_p) / τ))), s the cosine similarity, z features of the model
    in training. z_g are those of the model that the client received, z_p those of the model with which it ended the
    last round that it took part in, before that of the initial model. This previous model is all that stays on a
    client. Clients are measured with the global model, and what is sent is as in FedAvg.

    The features z are the input of the classifier, as in PFLlib and FL-bench. The authors' code puts a projection of
    two layers in front of the classifier and compares its 256 outputs: another model, with more parameters. Here all
    three models see a batch in training mode: the two that do not train have dropout too, and batch norm takes the
    batch's statistics in them, without keeping any. In the authors' code these two are in evaluation mode.
    """

    citation = "Li, He and Song, MOON, CVPR 2021"
    keeps = ("its previous model",)

    mu: float = option(
        1.0, ge=0, help="Weight μ of the contrastive term; the authors take 5 on CIFAR-10, 1 on CIFAR-100. 0: FedAvg."
    )
    tau: float = option(0.5, gt=0, help="Temperature τ: cosine similarities are divided by it.")

    def companions(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        if not federation.head:
            raise UserError("method moon needs a backbone with a classifier, a group 'head'")
        return initial

    def personalised(self, state: Tensors) -> Tensors:
        return model_part(state)

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        logits, z = local.features(params, batch.inputs)
        towards, away = (
            F.cosine_similarity(z, local.features(local.frozen(model), batch.inputs)[1], dim=-1)
            for model in (local.received, own_part(params))
        )
        contrast = F.softplus((away - towards) / self.tau).mean()  # the negative logarithm above, without overflow
        return local.cross_entropy(logits, batch.labels) + self.mu * contrast

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        return {**state, "model": {**state["model"], **own(model_part(state["model"]))}}
