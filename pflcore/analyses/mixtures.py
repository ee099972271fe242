"""What mixtures have become that are learned: of attentions within a model, and of clients' models layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from pflcore.analyses import ANALYSES
from pflcore.backbones._local_attention import Hybrid
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.errors import UserError
from pflcore.method import Federation, name_of
from pflcore.methods.pfedla_layerwise import PFedLALayerwise

KINDS = ("se", "eca", "ca")  # in the order of a hybrid's logits


@ANALYSES.register
class Mixing(Analysis):
    """Which kind of local attention clients learned to rely on.

    The weights of a hybrid, position by position. Needs a backbone with ``attention: hybrid``.
    """

    name = "mixing"
    citation = "Liang et al., Personalized Federated Learning with Local Attention, Table 5"
    title = "How local attention is mixed"

    def check(self, subject: Subject) -> None:
        if not _positions(subject.trainer.model):
            needs = "a backbone with hybrid local attention; set its option attention: hybrid"
            raise UserError(f"analyses: 'mixing' needs {needs}, or leave the analysis out")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the softmax of each hybrid's logits, for every client that takes part in training.

        Items are ``<position>.<kind>``, say ``conv1_attention.se``; those of a position sum to 1.
        """
        for client in subject.members():
            state = subject.measured(client)
            for place in _positions(subject.trainer.model):
                weights = state[f"{place}.logits"].double().softmax(0).tolist()
                for kind, weight in zip(KINDS, weights, strict=True):
                    yield Finding.one(client, f"{place}.{kind}", weight)


def _positions(model: nn.Module) -> list[str]:
    """Return names of the hybrids in a model, from the first to the last."""
    return [name for name, module in model.named_modules() if isinstance(module, Hybrid)]


@ANALYSES.register
class LayerWeights(Analysis):
    """How far layer-wise mixtures have moved, and how much of its own each client has in them.

    Needs method pfedla_layerwise. Its mixtures begin near the plain mean, in which each of N clients has the weight
    1/N; where they have hardly moved, the method is in effect FedAvg.
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
        """Of every client that takes part in training, for each layer, with weights from 0 to 1:

        ``<layer>.own`` is the weight of the client's own model, ``<layer>.moved`` half the sum of the absolute changes
        of all weights since before the first round.
        """
        method, members = subject.trainer.method, subject.members()
        assert isinstance(method, PFedLALayerwise)
        first = Federation(subject.trainer.data.clients, subject.trainer.seed)
        begun = method.init_server(subject.state(0), subject.trainer.roles, first)
        before, after = (method.weights_of(server, members) for server in (begun, subject.server))
        for row, client in enumerate(members):
            for layer, weights in after.items():
                yield Finding.one(client, f"{layer}.own", float(weights[row, client]))
                moved = 0.5 * (weights[row] - before[layer][row]).abs().sum()
                yield Finding.one(client, f"{layer}.moved", float(moved))
