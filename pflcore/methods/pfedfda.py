"""pFedFDA: a client's classes are Gaussians in feature space, mixtures of its own and the global ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.client_view import CLASS_WEIGHTS
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, OwnSamples, Phase, Steps, sgd_step
from pflcore.methods import METHODS
from pflcore.methods._bases import OwnTuning, check_classifier
from pflcore.operators.gaussian_classifier import Estimates, Gaussians, Interpolation, Moments
from pflcore.options import option
from pflcore.seeds import generator

_MEANS, _COVARIANCE, _COUNTS = "common/means", "common/covariance", "data/class_counts"


@METHODS.register
class PFedFDA(OwnTuning):
    """A shared body with Gaussian classifiers, which each client mixes from its own and the global one.

    Besides the body, the mean features of each class and one covariance are exchanged. Logits are log p(class) + log
    p(features | class); p(class) is the client's share of the class plus 0.0001. A client trains the body under the
    global Gaussians, then estimates its own, with global means for classes that it lacks and the identity added to the
    covariance. It returns β times its own plus 1 − β times the global ones, which are averaged by samples, and is
    measured with such a mixture made anew. β is the value of a grid with the least cross-entropy on its training
    samples, each left out of the client's own Gaussians.
    """

    citation = "McLaughlin and Su, pFedFDA, NeurIPS 2024, algorithm 1"
    personal = ("head",)
    keeps = ("means and covariance of its features",)
    exchanges = ("means of the classes", "a covariance of features")
    facts = ("class_counts",)
    remembers = True
    untrained = ("head",)
    grid: int = option(11, ge=2, help="Number of shares β, from 0 to 1, that a client chooses from.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        width, shifts = federation.features, torch.zeros(federation.classes, federation.features)
        return {"counts": shifts[:, 0].clone(), "shifts": shifts, "spread": torch.zeros(width, width)}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation)
        means = generator(federation.seed, "pfedfda means").random((federation.classes, federation.features))
        return {"means": torch.from_numpy(means).float(), "covariance": torch.eye(federation.features)}

    def eval_state(self, state: Tensors) -> Tensors:
        return {name: tensor for name, tensor in state.items() if not name.startswith(OWN)}

    def phases(self) -> tuple[Phase, ...]:
        return Phase(), Phase(Estimate(), extra=True), Phase(Interpolate(self.grid), extra=True)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        weight, bias = gaussians(start).classifier(log_priors(start))
        return {**super().begin(local, start), "classifier": {"weight": weight, "bias": bias}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        def loss(params: Tensors) -> Tensor:
            features = local.features(params, batch.inputs)[1]
            return local.cross_entropy(F.linear(features, **state["classifier"]), batch.labels)

        return sgd_step(local, state, loss, local.parameters)

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        return F.linear(local.features(state, inputs)[1], *gaussians(state).classifier(log_priors(state)))

    def predictor(self, local: ClientView, state: Tensors, samples: OwnSamples) -> Callable[[Tensor], Tensor]:
        received, priors = gaussians(state), log_priors(state)
        moments, batches = Moments.zeros(received), []
        for batch in samples.batches():
            features = local.features(state, batch.inputs)[1].flatten(0, -2)
            labels = batch.labels.flatten()
            moments = moments.plus(features, labels, received)
            batches.append((features, labels))
        shares = torch.linspace(0, 1, self.grid, device=priors.device)
        fit = Interpolation.create(moments.estimates(), received, shares, priors)
        best = fit.best(torch.stack([fit.losses(features, labels) for features, labels in batches]).sum(0))
        return super().predictor(local, {**state, _MEANS: best.means, _COVARIANCE: best.covariance}, samples)


class Estimate(Steps):  # steps that train nothing; they end with estimates of the client's own Gaussians
    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "seen": vars(Moments.zeros(gaussians(start))).copy()}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        features = features_of(local, state, batch)
        seen = Moments(**state["seen"]).plus(features, batch.labels.flatten(), gaussians(state["model"]))
        return {**state, "seen": vars(seen).copy()}, features.square().mean()

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        estimates = vars(Moments(**state["seen"]).estimates())
        return {**state, "model": {**state["model"], **add_prefix(OWN, estimates)}}


@dataclass(frozen=True)
class Interpolate(Steps):
    """Steps that train nothing; they end with the best mixture of the client's own and the global Gaussians."""

    grid: int

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        received = gaussians(start)
        shares = torch.linspace(0, 1, self.grid, device=received.means.device)
        fit = Interpolation.create(Estimates(**strip_prefix(OWN, start)), received, shares, log_priors(start))
        tensors = {"shares": shares, "inverses": fit.inverses, "losses": torch.zeros_like(shares)}
        return {**super().begin(local, start), "fit": tensors}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        losses = self.fit(state).losses(features_of(local, state, batch), batch.labels.flatten())
        after = {**state["fit"], "losses": state["fit"]["losses"] + losses}
        return {**state, "fit": after}, losses.min() / batch.labels.numel()

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        mixed = self.fit(state).best(state["fit"]["losses"])
        return {**state, "model": {**state["model"], _MEANS: mixed.means, _COVARIANCE: mixed.covariance}}

    def fit(self, state: LocalState) -> Interpolation:
        model, fit = state["model"], state["fit"]
        estimates = Estimates(**strip_prefix(OWN, model))
        return Interpolation(estimates, gaussians(model), fit["shares"], log_priors(model), fit["inverses"])


def gaussians(state: Mapping[str, Tensor]) -> Gaussians:
    return Gaussians(state[_MEANS], state[_COVARIANCE])


def log_priors(state: Mapping[str, Tensor]) -> Tensor:
    """Return log priors (classes,) from the client's class counts, up to a constant that all classes share."""
    return (state[_COUNTS] / state[_COUNTS].sum() + 1e-4).log()


def features_of(local: ClientView, state: LocalState, batch: Batch) -> Tensor:
    """Return the features of a batch, (samples, features); running statistics do not change."""
    local.used.add(CLASS_WEIGHTS)  # class weights are not refused: estimates do not depend on them
    with torch.no_grad():
        return local.features(local.frozen(state["model"]), batch.inputs)[1].flatten(0, -2)
