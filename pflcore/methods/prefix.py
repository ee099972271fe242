"""Personal prefixes in the attention of a Transformer that are parameters or a linear map."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option
from pflcore.plugins import add_prefix


@METHODS.register
class Prefix(Method):
    """Plain prefix tuning as FedPerfix's comparison: Prefix-Z begins at zero, Prefix-R at random.

    Prefixes and classifier stay on the client, the rest is averaged. The paper describes learned tokens that are
    appended to keys and values (``kind: tokens``); the released code has one linear map of the block's input instead,
    whose output is added to them (``kind: linear``, the default, 3,548,160 numbers in ViT-S). A linear prefix of zeros
    leaves the model as it is at first; zero tokens take their share of the attention.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, Table 6; Li and Liang, Prefix-Tuning, ACL 2021"
    personal = ("prefix", "head")

    init: str = option("zero", choices=("zero", "random"), help="zero is Prefix-Z, random is Prefix-R.")
    kind: str = option(
        "linear", choices=("linear", "tokens"), help="A linear map of the input that is added, or appended tokens."
    )
    tokens: int = option(10, ge=1, help="Number of tokens, where `kind` is tokens.")
    scale: float = option(1.5, ge=0, help="Factor of the prefixes.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        return add_prefix(model, zero=self.init == "zero", kind=self.kind, tokens=self.tokens, scale=self.scale)
