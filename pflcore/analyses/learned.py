"""Analyses of what methods learn about clients: embeddings, mixtures of attention, layer-wise mixtures of models."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pflcore.analyses import ANALYSES
from pflcore.backbones._local_attention import Hybrid
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.errors import UserError
from pflcore.method import name_of
from pflcore.methods.pfedla_layerwise import PFedLALayerwise
from pflcore.seeds import sequence

KINDS = ("se", "eca", "ca")  # in the order of a hybrid's logits
_EMBEDDING = "hyper/embedding"
_PERPLEXITY = 8.0  # of t-SNE, about the number of neighbours; the paper's 100 clients come in groups of five
_MIN_CLIENTS = 4


@ANALYSES.register
class Embeddings(Analysis):
    """Client embeddings on a plane, which show whether a hypernetwork finds similar clients.

    t-SNE computes the positions; the paper gives no perplexity. Needs a method with embeddings of clients.
    """

    name = "embeddings"
    citation = "Li et al., FedTP, TNNLS 2023, section IV-E and figure 9"
    title = "Client embeddings"

    def check(self, subject: Subject) -> None:
        clients = len(subject.members())
        if _EMBEDDING not in subject.server.extra:
            needs = f"a method with a hypernetwork, such as fedtp or pfedhn; method {name_of(subject.trainer.method)}"
            raise UserError(f"analyses: 'embeddings' needs {needs} has no embeddings of clients")
        if clients < _MIN_CLIENTS:
            needs = f"{_MIN_CLIENTS} or more clients that take part in training"
            raise UserError(f"analyses: 'embeddings' needs {needs}, not {clients}")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the position, items ``x`` and ``y``, and the ``group`` of each client that takes part in training."""
        members, data = subject.members(), subject.trainer.data
        table = subject.server.extra[_EMBEDDING].detach().cpu().double().numpy()[members]
        seed = sequence(subject.trainer.seed, "t-SNE").generate_state(1)[0]
        for client, (x, y) in zip(members, plane(table, int(seed)), strict=True):
            yield Finding.one(client, "x", x)
            yield Finding.one(client, "y", y)
            group = subject.kinds[client] if subject.kinds is not None else int(data.class_counts(client).argmax())
            yield Finding.one(client, "group", group)


def plane(points: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return positions (n, 2) of points (n, d) by t-SNE. It uses the exact algorithm on one thread, as the faster one
    adds in an order that differs between runs."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = max(1.0, min(_PERPLEXITY, (len(points) - 1) / 3))
    start = "pca" if points.shape[1] > 1 else "random"
    with threadpool_limits(1):
        tsne = TSNE(2, perplexity=perplexity, init=start, learning_rate="auto", method="exact", random_state=seed)
        placed: NDArray[np.float64] = tsne.fit_transform(points).astype(np.float64)
    return placed


@ANALYSES.register
class Mixing(Analysis):
    """The weights that clients learned for the kinds of local attention.

    There is one weight per kind for each hybrid in the model. Needs a backbone with ``attention: hybrid``.
    """

    name = "mixing"
    citation = "Liang et al., Personalized Federated Learning with Local Attention, Table 5"
    title = "How local attention is mixed"

    def check(self, subject: Subject) -> None:
        if not _positions(subject.trainer.model):
            needs = "a backbone with hybrid local attention; set its option attention: hybrid"
            raise UserError(f"analyses: 'mixing' needs {needs}, or leave the analysis out")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the softmax of each hybrid's logits, for every client that takes part in training. Items are
        ``<position>.<kind>``, such as ``conv1_attention.se``. The values of a position sum to 1."""
        for client in subject.members():
            state = subject.measured(client)
            for position in _positions(subject.trainer.model):
                weights = state[f"{position}.logits"].double().softmax(0).tolist()
                for kind, weight in zip(KINDS, weights, strict=True):
                    yield Finding.one(client, f"{position}.{kind}", weight)


def _positions(model: nn.Module) -> list[str]:
    """Return the names of the hybrids in a model, from the first to the last."""
    return [name for name, module in model.named_modules() if isinstance(module, Hybrid)]


@ANALYSES.register
class LayerWeights(Analysis):
    """The change of layer-wise mixing weights in training, and each client's weight of its own model.

    Needs method pfedla_layerwise. Its mixtures begin near the plain mean, in which each of N clients has the weight
    1/N. Where they hardly change, the method is in effect FedAvg.
    """

    name = "layer_weights"
    citation = "Ma et al., pFedLA, CVPR 2022, figure of the weights"
    title = "How layers are mixed"

    def check(self, subject: Subject) -> None:
        method = subject.trainer.method
        if not isinstance(method, PFedLALayerwise):
            needs = f"method pfedla_layerwise; method {name_of(method)} mixes no layers"
            raise UserError(f"analyses: 'layer_weights' needs {needs}")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield two numbers, from 0 to 1, for every client that takes part in training and each layer.

        ``<layer>.own`` is the weight of the client's own model. ``<layer>.moved`` is half the sum of the absolute
        changes of all weights since before the first round.
        """
        method, members = subject.trainer.method, subject.members()
        assert isinstance(method, PFedLALayerwise)
        initial = method.init_server(subject.state(0), subject.trainer.roles, subject.server.federation)
        before, after = (method.weights_of(server, members) for server in (initial, subject.server))
        for row, client in enumerate(members):
            for layer, weights in after.items():
                yield Finding.one(client, f"{layer}.own", float(weights[row, client]))
                moved = 0.5 * (weights[row] - before[layer][row]).abs().sum()
                yield Finding.one(client, f"{layer}.moved", float(moved))
