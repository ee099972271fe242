"""Methods with global and personal classifiers or features: FedRoD, FedCP, GPFL, FedDBE."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.client_view import COMMON, OWN
from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Phase, Server, Update, sgd_step
from pflcore.methods import METHODS
from pflcore.methods._bases import check_classifier
from pflcore.options import option
from pflcore.seeds import generator
from pflcore.task import cross_entropy

_COUNTS = "data/class_counts"
_NEVER = -1e9  # in place of log 0: its exponential is 0, and unlike −∞ it makes no sum NaN


@METHODS.register
class FedRoD(Method):
    """FedAvg with balanced softmax, and on each client a second classifier that corrects the first.

    Body and generic classifier minimise the cross-entropy of logits + log n, n the client's training samples of each
    class, and are averaged. The personal classifier is a linear layer on the same features, in tiny_vit on the class
    token before the last LayerNorm. It begins as a copy of the generic one and minimises the cross-entropy of generic
    logits + its own, whose gradients do not reach the rest. A client is measured with the sum of both logits.
    """

    name = "fedrod"
    citation = "Chen and Chao, FedRoD, ICLR 2022, linear variant"
    keeps = ("a second classifier",)
    facts = ("class_counts",)
    feature_layer = "memory"
    weighs_classes = False
    ignores_unlabelled = True
    balanced: bool = option(True, help="Whether the generic loss is the balanced one; false is plain cross-entropy.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation, initial)
        return {name: initial[name] for name in federation.head}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        counts = model[_COUNTS] if self.balanced else torch.ones_like(model[_COUNTS])
        prior = torch.where(counts > 0, counts.clamp_min(1).log(), _NEVER)

        def loss(params: Tensors) -> Tensor:
            params = {**model, **params}
            logits, features = local.features(params, batch.inputs)
            corrected = logits.detach() + local.classify(strip_prefix(OWN, params), features.detach())
            return cross_entropy(logits + prior, batch.labels) + cross_entropy(corrected, batch.labels)

        # Neither loss depends on parameters that the other one trains, so their sum has the gradients of each.
        shared, _ = split(model, local.parameters)
        personal = {name: tensor for name, tensor in model.items() if name.startswith(OWN)}
        grads, value = local.gradient(loss, {**shared, **personal})
        shared_grads, personal_grads = split(grads, shared)
        shared, opt_state = local.sgd(shared, shared_grads, state["opt_state"])
        personal, personal_opt_state = local.sgd(personal, personal_grads, state.get("own_opt_state", {}))
        trained = {**model, **shared, **personal}
        return {**state, "model": trained, "opt_state": opt_state, "own_opt_state": personal_opt_state}, value

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        logits, features = local.features(state, inputs)
        return logits + local.classify(strip_prefix(OWN, state), features)


_HEAD, _POLICY = "common/head/", "common/policy/"
_EMBEDDINGS, _VALVE = "common/embeddings/", "common/valve/"
# Bandwidths b of the kernels exp(−d² / 2b) that the discrepancy sums.
_BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


@METHODS.register
class FedCP(Method):
    """FedPer with a second, global classifier; a policy network divides each sample's features.

    The shared policy network computes shares r + s = 1 of features f: a softmax between the two halves of
    relu(LayerNorm(linear layer of f · v)), where v is the sum of the rows of the received personal classifier, scaled
    to length 1. Logits are those of the personal classifier on r · f plus those of the global one on s · f. The loss is
    the cross-entropy plus λ times the squared maximum mean discrepancy between features and those of the received body.
    A client returns body, policy, and the mean of the received global classifier and its personal one.
    """

    name = "fedcp"
    citation = "Zhang et al., FedCP, KDD 2023"
    personal = ("head",)
    exchanges = ("a global classifier", "a policy network")
    lam: float = option(5.0, ge=0, help="Weight λ of the discrepancy between trained and received features.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation, initial)
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
        distance = mean_discrepancy(features.flatten(0, -2), received.flatten(0, -2))
        logits = self.logits(local, params, features, local.received)
        return local.cross_entropy(logits, batch.labels) + self.lam * distance

    def logits(self, local: ClientView, state: Tensors, features: Tensor, received: Mapping[str, Tensor]) -> Tensor:
        """Return the summed logits (…, classes) of both classifiers, each on its share of features (…, features). The
        policy network reads the personal classifier in `received`."""
        v = F.normalize(received[local.head[0]].sum(0), dim=0)
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
        return self.logits(local, state, local.features(state, inputs)[1], state)


def mean_discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of two sets, (count, features) each, by a sum of Gaussian kernels."""
    points, count = torch.cat([first, second]), len(first)
    points = points - points.mean(0)  # centred: distances are then differences of smaller numbers
    squares = points.square().sum(1)
    distances = squares + squares.unsqueeze(1) - 2 * points @ points.T
    kernels = torch.stack([torch.exp(-0.5 * distances / width) for width in _BANDWIDTHS]).sum(0)
    return kernels[:count, :count].mean() + kernels[count:, count:].mean() - 2 * kernels[:count, count:].mean()


@METHODS.register
class GPFL(Method):
    """FedPer whose features pass a valve, once for the personal classifier and once for global guidance.

    Clients share class embeddings e_k and a valve, which under a condition c maps features f to relu((γ + 1) · f + β),
    with γ and β each LayerNorm(relu(linear layer of c)). The global condition is the mean of the received e_k, the
    personal one their mean by class counts. The loss is the cross-entropy of the personal classifier under the personal
    condition, plus, for features f_G under the global condition, the cross-entropy of cos(f_G, e_k) and λ · |f_G −
    received e_y|, plus μ/2 · squares of embeddings and valve.
    """

    name = "gpfl"
    citation = "Zhang et al., GPFL, ICCV 2023"
    personal = ("head",)
    exchanges = ("embeddings of the classes", "a conditional valve")
    facts = ("class_counts",)
    lam: float = option(0.01, ge=0, help="Weight λ of the distance to embeddings (guidance in magnitude).")
    mu: float = option(0.1, ge=0, help="Decay μ of embeddings and valve.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation, initial)
        width, seed = federation.features, federation.seed
        drawn = generator(seed, "gpfl embeddings").standard_normal((federation.classes, width))
        entries = {f"embeddings/{federation.head[0]}": torch.from_numpy(drawn).float()}
        for part in ("gamma", "beta"):
            entries |= add_prefix(f"valve/{part}.", normed_layer(width, width, seed, f"gpfl {part}"))
        return entries

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        exchanged = frozenset(name for name in state["model"] if name.startswith(COMMON))
        return sgd_step(local, state, lambda params: self.loss(local, params, batch), local.parameters | exchanged)

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        features = local.features(params, batch.inputs)[1]
        name = _EMBEDDINGS + local.head[0]
        embeddings, received = params[name], local.received[name]
        personal = valve(params, features, personal_condition(received, local.received[_COUNTS]))
        value = local.cross_entropy(local.classify(params, personal), batch.labels)
        guided = valve(params, features, received.mean(0))
        angles = F.linear(F.normalize(guided, dim=-1), F.normalize(embeddings, dim=-1))
        distance: Tensor = torch.linalg.vector_norm((guided - received[batch.labels]).flatten())
        squares = torch.stack([tensor.square().sum() for tensor in strip_prefix(COMMON, params).values()])
        return value + cross_entropy(angles, batch.labels) + self.lam * distance + 0.5 * self.mu * squares.sum()

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        features = local.features(state, inputs)[1]
        condition = personal_condition(state[_EMBEDDINGS + local.head[0]], state[_COUNTS])
        return local.classify(state, valve(state, features, condition))


def personal_condition(embeddings: Tensor, counts: Tensor) -> Tensor:
    """Return a client's personal condition: the mean of embeddings (classes, features) by its class counts."""
    return ((counts / counts.sum()).unsqueeze(1) * embeddings).sum(0)


def valve(state: Tensors, features: Tensor, condition: Tensor) -> Tensor:
    """Return the valve's output for features (…, features) under a condition (features,)."""

    def scale(part: str) -> Tensor:
        layer = strip_prefix(f"{_VALVE}{part}.", state)
        hidden = F.relu(F.linear(condition.unsqueeze(0), layer["weight"], layer["bias"]))
        return F.layer_norm(hidden, condition.shape, layer["norm.weight"], layer["norm.bias"])

    return F.relu((scale("gamma") + 1) * features + scale("beta"))


def normed_layer(inputs: int, outputs: int, seed: int, purpose: str) -> Tensors:
    """Return a linear layer and the LayerNorm after it, initialised as in PyTorch, from their own random stream."""
    random, bound = generator(seed, purpose), inputs**-0.5
    weight, bias = random.uniform(-bound, bound, (outputs, inputs)), random.uniform(-bound, bound, outputs)
    layer = {"weight": torch.from_numpy(weight).float(), "bias": torch.from_numpy(bias).float()}
    return {**layer, "norm.weight": torch.ones(outputs), "norm.bias": torch.zeros(outputs)}


_SHIFT, _MEAN = "own/shift/", "common/mean"


@METHODS.register
class FedDBE(Method):
    """FedAvg with a personal shift of features; the loss keeps their mean near the global mean.

    A client adds a personal vector, zero at first, to the features before the classifier. The loss is the cross-entropy
    plus κ · mean over features of ½ (m − g)². m is a moving mean of features without the shift, zero when a round
    begins: (1 − μ) · m + μ · the batch's mean; gradients pass only through the latter. g is the mean of all clients' m
    after a pass before the first round, of which nothing else is kept. ``also_personal: [head]`` makes it FedPer with
    DBE.
    """

    name = "feddbe"
    citation = "Zhang et al., Eliminating Domain Bias (DBE), NeurIPS 2023"
    keeps = ("a shift of its features",)
    exchanges = ("the global mean of features, before the first round",)
    kappa: float = option(50.0, ge=0, help="Weight κ of the distance of a client's mean from the global one.")
    mu: float = option(1.0, gt=0, le=1, help="Momentum μ: the share of the latest batch in a client's moving mean.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation, initial)
        return {f"shift/{federation.head[0]}": initial[federation.head[0]].new_zeros(federation.features)}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {"mean": torch.zeros(federation.features)}

    def warmup(self) -> Phase:
        return Phase(FirstMeans(mu=self.mu))

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "moving": {"mean": torch.zeros_like(start[_MEAN])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        return self.train_step(local, state, batch, self.kappa, local.parameters | {_SHIFT + local.head[0]})

    def train_step(
        self, local: ClientView, state: LocalState, batch: Batch, kappa: float, trained: frozenset[str]
    ) -> tuple[LocalState, Tensor]:
        """Take a step that trains the entries in `trained` and updates the moving mean, without effect at `kappa` 0."""
        moving, rest = split(state["model"], trained)

        def loss(params: Tensors) -> tuple[Tensor, Tensors]:
            model = {**rest, **params}
            logits, features = local.features(model, batch.inputs)
            mean = torch.lerp(state["moving"]["mean"], features.flatten(0, -2).mean(0), self.mu)
            distance = 0.5 * (mean - rest[_MEAN]).square().mean()
            shifted = logits + model[local.head[0]] @ model[_SHIFT + local.head[0]]
            value = local.cross_entropy(shifted, batch.labels) + kappa * distance
            return value, {"mean": mean.detach()}

        grads, value, aside = local.differentiate(loss, moving)
        moving, opt_state = local.sgd(moving, grads, state["opt_state"])
        return {**state, "model": {**state["model"], **moving}, "opt_state": opt_state, "moving": aside}, value

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        return local.forward(state, inputs) + state[local.head[0]] @ state[_SHIFT + local.head[0]]

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        after = super().update_server(server, roles, updates)
        return Server({**after.shared, _MEAN: server.shared[_MEAN]}, after.extra)

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return bytes without the global mean: it does not change, so it need not be sent in rounds."""
        sent, received = super().traffic(update)
        mean = update.sent[_MEAN].nbytes
        return sent - mean, received - mean


class FirstMeans(FedDBE):  # steps on the cross-entropy, of which only the client's moving mean stays
    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        return self.train_step(local, state, batch, 0.0, local.parameters)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        return {**state, "model": {**local.received, _MEAN: state["moving"]["mean"]}}
