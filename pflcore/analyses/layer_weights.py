"""What layer-wise mixtures of clients' models have become."""

from __future__ import annotations

from collections.abc import Iterator

from pflcore.analyses import ANALYSES
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.errors import UserError
from pflcore.method import Federation
from pflcore.methods.pfedla_layerwise import PFedLALayerwise


@ANALYSES.register
class LayerWeights(Analysis):
    """How far layer-wise mixtures have moved, and how much of its own each client has in them.

    Needs method pfedla_layerwise. Its mixtures begin near the plain mean, in which each of N clients has the weight
    1/N; where they have hardly moved, the method is in effect FedAvg.
    """

    citation = "Ma et al., pFedLA, CVPR 2022, figure of the weights"
    title = "How layers are mixed"

    def check(self, subject: Subject) -> None:
        """Raise :class:`UserError` for any other method."""
        _mixing(subject)

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Of every client that takes part in training, for each layer, with weights from 0 to 1:

        ``<layer>.own`` is the weight of the client's own model, ``<layer>.moved`` half the sum of the absolute changes
        of all weights since before the first round.
        """
        method, members = _mixing(subject), subject.members()
        clients = subject.trainer.data.clients
        first = Federation(clients, subject.trainer.seed)
        begun = method.init_server(subject.state(0), subject.trainer.roles, first)
        before, after = (method.weights_of(server, members) for server in (begun, subject.server))
        for row, client in enumerate(members):
            for layer, weights in after.items():
                yield Finding.one(client, f"{layer}.own", float(weights[row, client]))
                moved = 0.5 * (weights[row] - before[layer][row]).abs().sum()
                yield Finding.one(client, f"{layer}.moved", float(moved))


def _mixing(subject: Subject) -> PFedLALayerwise:
    method = subject.trainer.method
    if not isinstance(method, PFedLALayerwise):
        name = getattr(method, "name", type(method).__name__)
        raise UserError(f"analyses: 'layer_weights' needs method pfedla_layerwise; method {name} mixes no layers")
    return method
