"""Personal prompts in every block of a Transformer."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option
from pflcore.plugins import add_prompts


@METHODS.register
class Prompts(Method):
    """Learned tokens join the sequence before each block and leave it after it.

    They and the classifier stay on the client. Deep prompts as FedPerfix compares with: 10 per block, with dropout 0.1,
    begun uniformly. The rest is averaged. The released class does not run as it is, since it lacks attributes; this
    follows what it says it does.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, Table 6; Jia et al., Visual Prompt Tuning, ECCV 2022"
    personal = ("prompt", "head")

    count: int = option(10, ge=1, help="Prompts per block.")
    dropout: float = option(0.1, ge=0, lt=1, help="Dropout of the prompts.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        return add_prompts(model, count=self.count, dropout=self.dropout)
