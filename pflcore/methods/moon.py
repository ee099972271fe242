"""A contrastive term between features of the local, the global and the previous local model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Method, model_part
from pflcore.methods import METHODS
from pflcore.methods._features import need_classifier
from pflcore.options import option


@METHODS.register
class Moon(Method):
    """FedAvg whose clients keep features near the global model's, away from their last own model's.

    The loss is the cross-entropy plus μ times the mean over samples of
    −log(e^(s(z, z_g) / τ) / (e^(s(z, z_g) / τ) + e^(s(z, z_p) / τ))), s the cosine similarity, z features of the model
    in training, z_g of the model as received, z_p of the one with which the client ended its last round, before that of
    the initial one. Features are the input of the classifier; in paper and authors' code the 256 outputs of a
    projection of two linear layers with ReLU between them: `projection: 256`, a group of that name.
    """

    citation = "Li, He and Song, MOON, CVPR 2021"
    keeps = ("its previous model",)

    mu: float = option(1.0, ge=0, help="Weight μ; the authors take 5 on CIFAR-10, 1 on CIFAR-100; 0 is FedAvg.")
    tau: float = option(0.5, gt=0, help="Temperature τ: cosine similarities are divided by it.")
    projection: int | None = option(None, ge=1, later=True, help="Width of a projection before it; paper: 256.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        return {} if self.projection is None else add_projection(model, self.projection)

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation)
        if self.projection is not None and federation.features != self.projection:
            raise UserError("method moon: projection: the backbone's last linear layer is not its classifier")
        return initial

    def eval_state(self, state: Tensors) -> Tensors:
        return model_part(state)

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        logits, z = local.features(params, batch.inputs)
        towards, away = (
            F.cosine_similarity(z, local.features(local.frozen(model), batch.inputs)[1], dim=-1)
            for model in (local.received, strip_prefix(OWN, params))
        )
        contrast = F.softplus((away - towards) / self.tau).mean()  # the negative logarithm above, without overflow
        return local.cross_entropy(logits, batch.labels) + self.mu * contrast

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        return {**state, "model": {**state["model"], **add_prefix(OWN, model_part(state["model"]))}}


class _Projection(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, inputs)
        self.out = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(F.relu(self.hidden(x)))
        return out

    def before(self, classifier: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (self(inputs[0]),)


def add_projection(model: nn.Module, width: int) -> dict[str, str]:
    """Put a projection before the classifier, now one as narrow; return the pattern of the group ``projection``."""
    *_, (name, last) = model.named_modules()
    if not isinstance(last, nn.Linear):
        raise UserError(f"method moon: projection: the backbone ends with {type(last).__name__}, not a linear layer")
    parent, _, child = name.rpartition(".")
    classifier = nn.Linear(width, last.out_features, bias=last.bias is not None)
    projection = _Projection(last.in_features, width)
    if isinstance(model, nn.Sequential):
        delattr(model, name)
        model.add_module("projection", projection)
        model.add_module(name, classifier)
    else:
        # What looks at the classifier's input is registered after this, so that it sees what the projection gives.
        classifier.register_forward_pre_hook(projection.before)
        setattr(model.get_submodule(parent), child, classifier)
        model.add_module("projection", projection)
    return {"projection": r"projection\."}
