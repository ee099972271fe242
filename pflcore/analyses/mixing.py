"""What a mixture of attentions has become."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from pflcore.analyses import ANALYSES
from pflcore.backbones._local_attention import Hybrid
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.errors import UserError

KINDS = ("se", "eca", "ca")
"""In the order of a hybrid's logits."""


@ANALYSES.register
class Mixing(Analysis):
    """Which kind of local attention clients learned to rely on.

    The weights of a hybrid, position by position. Needs a backbone with ``attention: hybrid``.
    """

    citation = "Liang et al., Personalized Federated Learning with Local Attention, Table 5"
    title = "How local attention is mixed"

    def check(self, subject: Subject) -> None:
        """Raise :class:`UserError` when the model has no hybrid attention."""
        if not positions(subject.trainer.model):
            raise UserError(
                "analyses: 'mixing' needs a backbone with hybrid local attention; set its option attention: hybrid, or "
                "leave the analysis out"
            )

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the softmax of each hybrid's logits, for every client that takes part in training.

        Items are ``<position>.<kind>``, say ``conv1_attention.se``; those of a position sum to 1.
        """
        places = positions(subject.trainer.model)
        for client in subject.members():
            state = subject.measured(client)
            for place in places:
                weights = state[f"{place}.logits"].double().softmax(0).tolist()
                for kind, weight in zip(KINDS, weights, strict=True):
                    yield Finding.one(client, f"{place}.{kind}", weight)


def positions(model: nn.Module) -> list[str]:
    """Return names of the hybrids in a model, from the first to the last."""
    return [name for name, module in model.named_modules() if isinstance(module, Hybrid)]
