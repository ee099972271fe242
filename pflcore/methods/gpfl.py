"""Global and personal features by one valve, whose settings come from embeddings of the classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import COMMON, Batch, ClientView, Federation, LocalState, Method, cross_entropy, sgd_step
from pflcore.methods import METHODS
from pflcore.methods._features import need_classifier, normed_layer
from pflcore.options import option
from pflcore.seeds import generator

_EMBEDDINGS, _VALVE, _COUNTS = "common/embeddings/", "common/valve/", "data/class_counts"


@METHODS.register
class GPFL(Method):
    """FedPer whose features pass a valve, once for the personal classifier and once for global guidance.

    Clients share an embedding e_k of each class and a conditional valve: for a condition c it makes of features f the
    features relu((γ + 1) · f + β), γ and β each LayerNorm(relu(linear layer of c)). The global condition is the mean of
    the received e_k, a client's own their mean by its class counts. The loss is the cross-entropy of the personal
    classifier on the features under the own condition, plus, of those f_G under the global one, the cross-entropy of
    cos(f_G, e_k) and λ times |f_G − received e_y|, plus μ/2 times the squares of embeddings and valve.
    """

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
