"""A map of the clients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pflcore.analyses import ANALYSES
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.errors import UserError
from pflcore.method import name_of
from pflcore.seeds import sequence

_EMBEDDING = "hyper/embedding"
_PERPLEXITY = 8.0  # neighbours that t-SNE looks at: of the paper's 100 clients, five are of a kind
_FEWEST = 4


@ANALYSES.register
class Embeddings(Analysis):
    """Whether a hypernetwork finds out which clients are alike: their embeddings on a plane.

    They are placed by t-SNE, for which the paper gives no perplexity. Needs a method with embeddings of clients.
    """

    citation = "Li et al., FedTP, TNNLS 2023, section IV-E and figure 9"
    title = "Client embeddings"

    def check(self, subject: Subject) -> None:
        clients = len(subject.members())
        if _EMBEDDING not in subject.server.extra:
            needs = f"a method with a hypernetwork, such as fedtp or pfedhn; method {name_of(subject.trainer.method)}"
            raise UserError(f"analyses: 'embeddings' needs {needs} has no embeddings of clients")
        if clients < _FEWEST:
            needs = f"{_FEWEST} or more clients that take part in training"
            raise UserError(f"analyses: 'embeddings' needs {needs}, not {clients}")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """A place on the plane, items ``x`` and ``y``, and the ``group`` of every client that took part in training."""
        members, data = subject.members(), subject.trainer.data
        table = subject.server.extra[_EMBEDDING].detach().cpu().double().numpy()[members]
        seed = sequence(subject.trainer.seed, "t-SNE").generate_state(1)[0]
        for client, (x, y) in zip(members, plane(table, int(seed)), strict=True):
            yield Finding.one(client, "x", x)
            yield Finding.one(client, "y", y)
            group = subject.kinds[client] if subject.kinds is not None else int(data.class_counts(client).argmax())
            yield Finding.one(client, "group", group)


def plane(points: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Place points (n, d) in two dimensions by t-SNE: (n, 2).

    The exact algorithm on one thread: the faster one adds in an order that differs from run to run.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = max(1.0, min(_PERPLEXITY, (len(points) - 1) / 3))
    start = "pca" if points.shape[1] > 1 else "random"
    with threadpool_limits(1):
        tsne = TSNE(2, perplexity=perplexity, init=start, learning_rate="auto", method="exact", random_state=seed)
        placed: NDArray[np.float64] = tsne.fit_transform(points).astype(np.float64)
    return placed
