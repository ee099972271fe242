"""Features drawn to the classes' global centroids, and classifiers combined for each client anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors
from pflcore.method import COMMON, Batch, ClientView, Federation, LocalState, Phase, Server, Update
from pflcore.methods import METHODS
from pflcore.methods._features import ClassSums, class_means, need_classifier, need_exchanged
from pflcore.methods._per_client_models import PerClientModels
from pflcore.options import option

_CENTROIDS, _KNOWN = "common/centroids", "common/known"
_COUNTS, _MEANS, _VARIANCE = _UP = "common/counts", "common/means", "common/variance"  # which only clients send
_MIN_WEIGHT = 1e-3  # in a combination


@METHODS.register
class FedPAC(PerClientModels):
    """A shared body aligned with class centroids; each client gets its own mixture of classifiers.

    A client notes h, whose row k is the share p_k of class k among its n samples times the mean features of that class,
    and V = (mean |features|² − |h|²) / n. It trains its classifier, with the body at rest; then the body, with the
    classifier at rest, by the cross-entropy plus λ times the mean squared difference between a sample's features and
    the global centroid of its class. Then it notes the centroids of its classes, their mean features. Bodies are
    averaged by samples, centroids by samples of their class. A client of the round receives Σ_j α_j w_j of its
    classifiers, α the weights ≥ 0 with sum 1 of least Σ_j α_j² V_j + |h_i − Σ_j α_j h_j|², those below 0.001 dropped.
    """

    citation = "Xu, Tong and Huang, FedPAC, ICLR 2023, algorithm 1"
    generated = ("head",)
    stored = "heads/"
    buffers = "shared"
    exchanges = ("centroids of the classes", "first and second moments of features")

    lam: float = option(1.0, ge=0, help="Weight λ of the distance to centroids.")
    head_epochs: int = option(1, ge=1, help="Passes that train the classifier, before the run's that train the body.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation)
        classes, shape = federation.classes, (federation.classes, federation.features)
        down = {"centroids": torch.zeros(shape), "known": torch.zeros(classes, dtype=torch.bool)}
        return {**down, "counts": torch.zeros(classes), "means": torch.zeros(shape), "variance": torch.zeros(())}

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        need_exchanged(self, roles.shared & federation.parameters)
        return super().init_server(initial, roles, federation)

    def phases(self) -> tuple[Phase, ...]:
        head = Phase(epochs=self.head_epochs, extra=True, roles=("generated", "personal"))
        body = Phase(roles=("shared",))
        return Phase(Moments(_CENTROIDS), extra=True), head, body, Phase(Centroids(_CENTROIDS), extra=True)

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        logits, features = local.features(params, batch.inputs)
        labels = batch.labels.flatten()
        known = local.received[_KNOWN][labels].unsqueeze(1)
        away = torch.where(known, features.flatten(0, -2) - local.received[_CENTROIDS][labels], 0.0)
        return local.cross_entropy(logits, batch.labels) + self.lam * away.square().mean()

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        body = self.average(updates, frozenset(name for name in roles.shared if not name.startswith(COMMON)))
        sent = {name: torch.stack([update.returned[name] for update in updates]) for name in (_CENTROIDS, *_UP)}
        counts = sent[_COUNTS].sum(0)
        centroids = (sent[_COUNTS].unsqueeze(2) * sent[_CENTROIDS]).sum(0) / counts.clamp_min(1).unsqueeze(1)
        found = counts > 0
        after = {
            **server.shared,
            **body,
            _CENTROIDS: torch.where(found.unsqueeze(1), centroids, server.shared[_CENTROIDS]),
            _KNOWN: server.shared[_KNOWN] | found,
        }
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


class Moments(ClassSums):
    """Steps that train nothing; at their end a client has what combinations are made of, h and V."""

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        seen = state["seen"]
        samples = seen["counts"].sum()
        means = seen["sums"] / samples
        variance = (seen["squares"] / samples - means.square().sum()).clamp_min(0) / samples
        return {**state, "model": {**state["model"], _MEANS: means, _VARIANCE: variance}}


class Centroids(ClassSums):
    """Steps that train nothing; at their end a client has the mean features of its classes, and their samples."""

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        seen = state["seen"]
        return {**state, "model": {**state["model"], _CENTROIDS: class_means(seen), _COUNTS: seen["counts"]}}


def combinations(means: Tensor, variances: Tensor) -> Tensor:
    """Return the weights α of clients' combinations, in rows, from all h (clients, classes, features) and V (clients,).

    A client keeps its own classifier where its form is zero or not finite.
    """
    # Only needed here, and slow to import.
    from scipy.optimize import nnls

    flat = means.flatten(1).double().cpu().numpy()
    products, own, clients = flat @ flat.T, np.diag(variances.double().cpu().numpy()), len(flat)
    shares = np.eye(clients)
    for client, row in enumerate(products):
        form = own + products - row - row[:, None] + row[client]
        scale = float(np.trace(form))
        if not 0 < scale < np.inf:
            continue
        values, vectors = np.linalg.eigh(form / scale)
        root = np.sqrt(values.clip(0))[:, None] * vectors.T
        # x ≥ 0 of least |root · x|² + (Σ x − 1)² has the conditions of optimality of α but for its sum.
        found, _ = nnls(np.vstack([root, np.ones(clients)]), np.eye(clients + 1)[-1], maxiter=100 * clients)
        found /= found.sum()
        found[found < _MIN_WEIGHT] = 0
        shares[client] = found / found.sum()
    return torch.from_numpy(shares).to(means)
