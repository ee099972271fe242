"""Methods that train features towards the mean features of classes: FedProto, FedAS, FedPAC."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pflcore.client_view import CLASS_WEIGHTS, COMMON, model_part
from pflcore.errors import UserError
from pflcore.groups import ALL, Roles, Tensors, add_prefix, pick, split, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Phase, Server, Steps, Update, weights
from pflcore.methods import METHODS
from pflcore.methods._bases import (
    ClassSums,
    PerClientModels,
    add_sums,
    check_classifier,
    check_exchanged,
    class_mask,
    class_means,
    zero_sums,
)
from pflcore.options import option

_PROTOTYPES, _PRESENT, _EPOCH = "common/prototypes", "common/present", "data/epoch_steps"
_FARTHER = 100.0  # how much farther than any prototype a class without one is, at least


@METHODS.register
class FedProto(Method):
    """Clients keep their models, exchange the mean features of each class and train towards them.

    The loss is the cross-entropy plus λ times the mean squared difference between features and the global prototype of
    their class, if there is one. A client returns for each class the mean of the features that it saw in the last epoch
    of the round, in training mode; the server takes the plain mean over the clients that have the class. Logits are
    minus the mean squared distance to global prototypes; a class without a prototype cannot be predicted.
    """

    name = "fedproto"
    citation = "Tan et al., FedProto, AAAI 2022, algorithm 1"
    exchanges = ("prototypes of the classes",)
    personal = (ALL,)
    facts = ("epoch_steps",)
    own_averaging = None
    lam: float = option(1.0, ge=0, help="Weight λ of the distance to prototypes; 0.1 in FedTP's code.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetune_groups == ("head",):
            raise UserError("fedproto.finetune_groups: its predictions read no classifier, so there is nothing to tune")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation)
        prototypes = torch.zeros(federation.classes, federation.features)
        return {"prototypes": prototypes, "present": torch.zeros(federation.classes, dtype=torch.bool)}

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        seen = {"steps": torch.zeros_like(start[_EPOCH]), **zero_sums(start[_PROTOTYPES])}
        return {**super().begin(local, start), "seen": seen}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, seen, labels = state["model"], state["seen"], batch.labels.flatten()
        trained, rest = split(model, local.parameters)
        present, targets = rest[_PRESENT][labels].unsqueeze(1), rest[_PROTOTYPES][labels]

        def loss(params: Tensors) -> tuple[Tensor, Tensors]:
            logits, features = local.features({**rest, **params}, batch.inputs)
            features = features.flatten(0, -2)
            distance = torch.where(present, features - targets, 0.0).square().mean()
            return local.cross_entropy(logits, batch.labels) + self.lam * distance, {"features": features.detach()}

        grads, value, aside = local.differentiate(loss, trained)
        trained, opt_state = local.sgd(trained, grads, state["opt_state"])
        first = seen["steps"] % rest[_EPOCH] == 0
        earlier = {name: torch.where(first, 0.0, seen[name]) for name in ("sums", "counts")}
        seen = {"steps": seen["steps"] + 1, **add_sums(earlier, aside["features"], labels)}
        return {**state, "model": {**model, **trained}, "opt_state": opt_state, "seen": seen}, value

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        prototypes = {_PROTOTYPES: class_means(state["seen"]), _PRESENT: state["seen"]["counts"] > 0}
        return {**state, "model": {**state["model"], **prototypes}}

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        features = local.features(state, inputs)[1]
        prototypes, present = state[_PROTOTYPES], state[_PRESENT]
        # Class by class: all differences at once would take as much memory as features times classes.
        distances = torch.stack([(features - mean).square().mean(-1) for mean in prototypes.unbind()], -1)
        farthest = torch.where(present, distances, 0.0).amax(-1, keepdim=True)
        return -torch.where(present, distances, 2 * farthest + _FARTHER)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        prototypes, present = server.shared[_PROTOTYPES], server.shared[_PRESENT]
        total = sum(update.returned[_PROTOTYPES] for update in updates)  # zeros for a class that a client lacks
        counts = torch.stack([update.returned[_PRESENT] for update in updates]).sum(0)
        means = torch.where(counts.unsqueeze(1) > 0, total / counts.clamp_min(1).unsqueeze(1), prototypes)
        return Server({_PROTOTYPES: means, _PRESENT: present | (counts > 0)}, server.extra)

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return the bytes of the existing prototypes, and of one bit per class that marks them."""
        mask = -(-len(update.sent[_PRESENT]) // 8)
        sent, received = (part[_PROTOTYPES][part[_PRESENT]].nbytes for part in (update.returned, update.sent))
        return sent + mask, received + mask


_BODY, _MEMORY, _OWN_PRESENT, _TRACE = "own/body/", "own/prototypes", "own/present", "common/trace"


@METHODS.register
class FedAS(Method):
    """FedPer whose clients align the received body with prototypes and are weighted by Fisher traces.

    A client's prototypes are the mean features of its classes under its model at the end of its last round, with which
    it is also measured. A round begins with extra passes that train the received body on the prototypes by plain SGD: a
    batch's loss is the sum over its classes of the mean squared difference between features and prototype. Then body
    and head train. One more pass computes new prototypes and the Fisher trace, the sum over batches of |∇ loss|².
    Bodies are averaged with weights in proportion to the traces.
    """

    name = "fedas"
    citation = "Yang et al., FedAS, CVPR 2024"
    personal = ("head",)
    keeps = ("its last body", "prototypes of its classes")
    exchanges = ("the trace of the Fisher information",)
    own_averaging = None
    align_lr: float = option(0.01, ge=0, help="Learning rate of the alignment; 0: the body begins as received.")
    align_epochs: int = option(1, ge=1, help="Passes of the alignment over a client's samples.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation)
        like, classes = next(iter(initial.values())), federation.classes
        body = add_prefix("body/", pick(initial, roles.shared))
        prototypes = like.new_zeros(classes, federation.features)
        return {**body, "prototypes": prototypes, "present": like.new_zeros(classes).bool()}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {"trace": torch.zeros(())}

    def eval_state(self, state: Tensors) -> Tensors:
        return {**model_part(state), **strip_prefix(_BODY, state)}

    def phases(self) -> tuple[Phase, ...]:
        align = Phase(Alignment(self.align_lr), epochs=self.align_epochs, extra=True, roles=("shared",))
        return align, Phase(), Phase(Summary(_MEMORY, own_prototypes), extra=True)

    def shares(self, updates: Sequence[Update]) -> list[float]:
        traces = [float(update.returned[_TRACE]) for update in updates]
        # All traces are zero if the gradients are too small for float32.
        return [trace / sum(traces) for trace in traces] if sum(traces) else weights(updates)


@dataclass(frozen=True)
class Alignment(Steps):  # steps that train features of the shared body towards the client's prototypes
    lr: float

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, labels = state["model"], batch.labels.flatten()
        trained, rest = split(local.frozen(model), local.parameters)
        mask = class_mask(labels, len(model[_OWN_PRESENT]))
        # A sample's weight is one over the batch's samples of its class, so weighted sums are class means.
        sample_weights = torch.where(model[_OWN_PRESENT], 1 / mask.sum(1).clamp_min(1), 0.0)[labels]
        local.used.add(CLASS_WEIGHTS)  # not refused: the alignment weights classes equally in any case

        def loss(params: Tensors) -> Tensor:
            features = local.features({**rest, **params}, batch.inputs)[1].flatten(0, -2)
            return (sample_weights * (features - model[_MEMORY][labels]).square().mean(1)).sum()

        grads, value = local.gradient(loss, trained)
        aligned = {name: tensor - self.lr * grads[name] for name, tensor in trained.items()}
        return {**state, "model": {**model, **aligned}}, value


class Summary(ClassSums):
    """Steps that train nothing; they end with the client's prototypes, its Fisher trace and a copy of its body."""

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        return {**super().begin(local, start), "fisher": {"trace": torch.zeros_like(start[_TRACE])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        trained, rest = split(local.frozen(state["model"]), local.parameters)

        def loss(params: Tensors) -> tuple[Tensor, Tensors]:
            logits, features = local.features({**rest, **params}, batch.inputs)
            return local.cross_entropy(logits, batch.labels), {"features": features.flatten(0, -2).detach()}

        grads, value, aside = local.differentiate(loss, trained)
        trace = state["fisher"]["trace"] + torch.stack([grad.square().sum() for grad in grads.values()]).sum()
        seen = {**state["seen"], **add_sums(state["seen"], aside["features"], batch.labels.flatten())}
        return {**state, "seen": seen, "fisher": {"trace": trace}}, value

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = super().end(local, state)["model"]
        body = add_prefix(_BODY, pick(model, strip_prefix(_BODY, model)))
        return {**state, "model": {**model, **body, _TRACE: state["fisher"]["trace"]}}


def own_prototypes(seen: Tensors) -> Tensors:
    """Return a client's prototypes and a mask of the classes that have one."""
    return {_MEMORY: class_means(seen), _OWN_PRESENT: seen["counts"] > 0}


_CENTROIDS, _KNOWN = "common/centroids", "common/known"
_COUNTS, _MEANS, _VARIANCE = "common/counts", "common/means", "common/variance"
_UP = (_COUNTS, _MEANS, _VARIANCE)  # sent by clients only
_MIN_WEIGHT = 1e-3  # smaller weights of a combination are dropped


@METHODS.register
class FedPAC(PerClientModels):
    """A shared body aligned with class centroids; each client gets its own mixture of classifiers.

    A client computes h, whose row k is the share of class k among its n samples times the mean features of that class,
    and V = (mean |features|² − |h|²) / n. It trains only its classifier, then only the body, with the cross-entropy
    plus λ times the mean squared difference between features and the global centroid of their class. Bodies are
    averaged by samples, centroids by samples of their class. A client of the round receives Σ_j α_j w_j of the round's
    classifiers; α ≥ 0 has sum 1 and minimises Σ_j α_j² V_j + |h_i − Σ_j α_j h_j|², and weights below 0.001 are dropped.
    """

    name = "fedpac"
    citation = "Xu, Tong and Huang, FedPAC, ICLR 2023, algorithm 1"
    generated = ("head",)
    stored = "heads/"
    buffers = "shared"
    exchanges = ("centroids of the classes", "first and second moments of features")
    lam: float = option(1.0, ge=0, help="Weight λ of the distance to centroids.")
    head_epochs: int = option(1, ge=1, help="Passes that train the classifier, before the run's that train the body.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation)
        centroids = torch.zeros(federation.classes, federation.features)
        counts = torch.zeros(federation.classes)
        moments = {"counts": counts, "means": centroids, "variance": torch.zeros(())}
        return {"centroids": centroids, "known": counts.bool(), **moments}

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        check_exchanged(self, roles.shared & federation.parameters)
        return super().init_server(initial, roles, federation)

    def phases(self) -> tuple[Phase, ...]:
        head = Phase(epochs=self.head_epochs, extra=True, roles=("generated", "personal"))
        before = Phase(ClassSums(_CENTROIDS, moments), extra=True)
        after = Phase(ClassSums(_CENTROIDS, centroids), extra=True)
        return before, head, Phase(roles=("shared",)), after

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        logits, features = local.features(params, batch.inputs)
        labels = batch.labels.flatten()
        present = local.received[_KNOWN][labels].unsqueeze(1)
        differences = torch.where(present, features.flatten(0, -2) - local.received[_CENTROIDS][labels], 0.0)
        return local.cross_entropy(logits, batch.labels) + self.lam * differences.square().mean()

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        body = self.average(updates, frozenset(name for name in roles.shared if not name.startswith(COMMON)))
        sent = {name: torch.stack([update.returned[name] for update in updates]) for name in (_CENTROIDS, *_UP)}
        counts = sent[_COUNTS].sum(0)
        means = (sent[_COUNTS].unsqueeze(2) * sent[_CENTROIDS]).sum(0) / counts.clamp_min(1).unsqueeze(1)
        means = torch.where(counts.unsqueeze(1) > 0, means, server.shared[_CENTROIDS])
        after = {**server.shared, **body, _CENTROIDS: means, _KNOWN: server.shared[_KNOWN] | (counts > 0)}
        if heads := self.models(server):
            index = [update.client for update in updates]
            shares = combinations(sent[_MEANS], sent[_VARIANCE])
            for name, stored in heads.items():
                trained = torch.stack([update.returned[name] for update in updates])
                stored[index] = (shares @ trained.flatten(1)).view_as(trained)
        return Server(after, server.extra)

    def traffic(self, update: Update) -> tuple[int, int]:
        sent, received = super().traffic(update)
        return sent - update.sent[_KNOWN].nbytes, received - sum(update.sent[name].nbytes for name in _UP)


def moments(seen: Tensors) -> Tensors:
    """Return h and V of a client, from which the server computes combinations."""
    samples = seen["counts"].sum()
    means = seen["sums"] / samples
    return {_MEANS: means, _VARIANCE: (seen["squares"] / samples - means.square().sum()).clamp_min(0) / samples}


def centroids(seen: Tensors) -> Tensors:
    """Return the mean features of each class of a client, and its number of samples of each class."""
    return {_CENTROIDS: class_means(seen), _COUNTS: seen["counts"]}


def combinations(means: Tensor, variances: Tensor) -> Tensor:
    """Return the weights α, a row per client, from all h (clients, classes, features) and V (clients,). A client keeps
    its own classifier if its quadratic form is zero or not finite."""
    # Only needed here, and slow to import.
    from scipy.optimize import nnls

    flat = means.flatten(1).double().cpu().numpy()
    products = flat @ flat.T
    variance = np.diag(variances.double().cpu().numpy())
    clients = len(flat)
    shares = np.eye(clients)
    for client, row in enumerate(products):
        form = variance + products - row - row[:, None] + row[client]
        scale = float(np.trace(form))
        if not 0 < scale < np.inf:
            continue
        values, vectors = np.linalg.eigh(form / scale)
        root = np.sqrt(values.clip(0))[:, None] * vectors.T
        # The x ≥ 0 of least |root · x|² + (Σ x − 1)² has α's conditions of optimality, except for its sum.
        solution, _ = nnls(np.vstack([root, np.ones(clients)]), np.eye(clients + 1)[-1], maxiter=100 * clients)
        solution /= solution.sum()
        solution[solution < _MIN_WEIGHT] = 0
        shares[client] = solution / solution.sum()
    return torch.from_numpy(shares).to(means)
