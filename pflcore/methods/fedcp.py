"""Global and personal features: divided by a policy (FedCP), or told apart by one valve (GPFL)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import COMMON, Batch, ClientView, Federation, LocalState, Method, cross_entropy, sgd_step
from pflcore.methods import METHODS
from pflcore.methods._features import need_classifier
from pflcore.options import option
from pflcore.seeds import generator

_HEAD, _POLICY = "common/head/", "common/policy/"
_EMBEDDINGS, _VALVE, _COUNTS = "common/embeddings/", "common/valve/", "data/class_counts"
# Of the kernels exp(−d² / 2b) that the discrepancy is summed over.
_BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


@METHODS.register
class FedCP(Method):
    """FedPer with a second, global classifier; a policy shares out each sample's features.

    A shared policy network makes of features f the shares r and s, r + s = 1 for each feature: a softmax between the
    two halves of relu(LayerNorm(linear layer of f · v)), v the sum of the personal classifier's rows as received, at
    length 1. Logits are those of the personal classifier on r · f plus those of the global one on s · f. The loss is
    the cross-entropy plus λ times the squared maximum mean discrepancy of the batch's features and those of the
    received body. A client returns body, policy, and for the global classifier the mean of the received one and its
    own.
    """

    name = "fedcp"
    citation = "Zhang et al., FedCP, KDD 2023"
    personal = ("head",)
    exchanges = ("a global classifier", "a policy network")

    lam: float = option(5.0, ge=0, help="Weight λ of the discrepancy between trained and received features.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation, initial)
        width = federation.features
        head = {name: initial[name] for name in federation.head}
        policy = normed_layer(width, 2 * width, federation.seed, "fedcp policy")
        return {**add_prefix("head/", head), **add_prefix("policy/", policy)}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        policy = frozenset(name for name in state["model"] if name.startswith(_POLICY))
        return sgd_step(local, state, lambda params: self.loss(local, params, batch), local.parameters | policy)

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        features = local.features(params, batch.inputs)[1]
        received = local.features(local.frozen(local.received), batch.inputs)[1]
        away = discrepancy(features.flatten(0, -2), received.flatten(0, -2))
        logits = self.divided(local, params, features, local.received)
        return local.cross_entropy(logits, batch.labels) + self.lam * away

    def divided(self, local: ClientView, state: Tensors, features: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        """Return the logits (…, classes) of both classifiers, each on its shares of features (…, features).

        The personal classifier in `given` is what the policy knows of the client.
        """
        v = F.normalize(given[local.head[0]].sum(0), dim=0)
        policy = strip_prefix(_POLICY, state)
        hidden = F.linear(features * v, policy["weight"], policy["bias"])
        hidden = F.relu(F.layer_norm(hidden, hidden.shape[-1:], policy["norm.weight"], policy["norm.bias"]))
        share = torch.stack(hidden.chunk(2, -1)).softmax(0)
        shared = local.classify(strip_prefix(_HEAD, state), share[1] * features)
        return local.classify(state, share[0] * features) + shared

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        mixed = {name: 0.5 * (model[name] + received) for name, received in strip_prefix(_HEAD, local.received).items()}
        return {**state, "model": {**model, **add_prefix(_HEAD, mixed)}}

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        return self.divided(local, state, local.features(state, inputs)[1], state)


def discrepancy(ones: Tensor, others: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of samples, (count, features) each, by a sum of Gaussian kernels."""
    points, count = torch.cat([ones, others]), len(ones)
    points = points - points.mean(0)  # distances are differences of what is then smaller
    squares = points.square().sum(1)
    distances = squares + squares.unsqueeze(1) - 2 * points @ points.T
    kernels = torch.stack([torch.exp(-0.5 * distances / width) for width in _BANDWIDTHS]).sum(0)
    return kernels[:count, :count].mean() + kernels[count:, count:].mean() - 2 * kernels[:count, count:].mean()


@METHODS.register
class GPFL(Method):
    """FedPer whose features pass a valve, once for the personal classifier and once for global guidance.

    Clients share an embedding e_k of each class and a conditional valve: for a condition c it makes of features f the
    features relu((γ + 1) · f + β), γ and β each LayerNorm(relu(linear layer of c)). The global condition is the mean of
    the received e_k, a client's own their mean by its class counts. The loss is the cross-entropy of the personal
    classifier on the features under the own condition, plus, of those f_G under the global one, the cross-entropy of
    cos(f_G, e_k) and λ times |f_G − received e_y|, plus μ/2 times the squares of embeddings and valve.
    """

    name = "gpfl"
    citation = "Zhang et al., GPFL, ICCV 2023"
    personal = ("head",)
    exchanges = ("embeddings of the classes", "a conditional valve")
    facts = ("class_counts",)

    lam: float = option(0.01, ge=0, help="Weight λ of the distance to embeddings (guidance in magnitude).")
    mu: float = option(0.1, ge=0, help="Decay μ of embeddings and valve.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation, initial)
        width, seed = federation.features, federation.seed
        drawn = generator(seed, "gpfl embeddings").standard_normal((federation.classes, width))
        made = {f"embeddings/{federation.head[0]}": torch.from_numpy(drawn).float()}
        for part in ("gamma", "beta"):
            made |= add_prefix(f"valve/{part}.", normed_layer(width, width, seed, f"gpfl {part}"))
        return made

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        beside = frozenset(name for name in state["model"] if name.startswith(COMMON))
        return sgd_step(local, state, lambda params: self.loss(local, params, batch), local.parameters | beside)

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        features = local.features(params, batch.inputs)[1]
        embeddings, received = (state[_EMBEDDINGS + local.head[0]] for state in (params, local.received))
        personal = valve(params, features, condition(received, local.received[_COUNTS]))
        value = local.cross_entropy(local.classify(params, personal), batch.labels)
        guided = valve(params, features, received.mean(0))
        angles = F.linear(F.normalize(guided, dim=-1), F.normalize(embeddings, dim=-1))
        away: Tensor = torch.linalg.vector_norm((guided - received[batch.labels]).flatten())
        squares = torch.stack([one.square().sum() for one in strip_prefix(COMMON, params).values()])
        return value + cross_entropy(angles, batch.labels) + self.lam * away + 0.5 * self.mu * squares.sum()

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        features = local.features(state, inputs)[1]
        given = condition(state[_EMBEDDINGS + local.head[0]], state[_COUNTS])
        return local.classify(state, valve(state, features, given))


def condition(embeddings: Tensor, counts: Tensor) -> Tensor:
    """Return a client's own condition: the mean of embeddings (classes, features) by its class counts."""
    return ((counts / counts.sum()).unsqueeze(1) * embeddings).sum(0)


def valve(state: Tensors, features: Tensor, given: Tensor) -> Tensor:
    """Return features (…, features) under a condition (features,)."""

    def scale(part: str) -> Tensor:
        one = strip_prefix(f"{_VALVE}{part}.", state)
        hidden = F.relu(F.linear(given.unsqueeze(0), one["weight"], one["bias"]))
        return F.layer_norm(hidden, given.shape, one["norm.weight"], one["norm.bias"])

    return F.relu((scale("gamma") + 1) * features + scale("beta"))


def normed_layer(inputs: int, outputs: int, seed: int, purpose: str) -> Tensors:
    """Return a linear layer and a LayerNorm behind it, drawn as PyTorch's are, from a stream of their own."""
    drawn, most = generator(seed, purpose), inputs**-0.5
    weight, bias = (drawn.uniform(-most, most, shape) for shape in ((outputs, inputs), (outputs,)))
    layer = {"weight": torch.from_numpy(weight).float(), "bias": torch.from_numpy(bias).float()}
    return {**layer, "norm.weight": torch.ones(outputs), "norm.bias": torch.zeros(outputs)}
