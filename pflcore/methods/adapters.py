"""Personal adapters behind the MLPs of a Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option
from pflcore.plugins import add_adapters


@METHODS.register
class Adapters(Method):
    """A personal bottleneck x + up(tanh(down(x))) after each MLP, before its output is added.

    It and the classifier stay on the client, the rest is averaged. In the code that was released with FedPerfix all
    blocks share one adapter whose two linear maps begin at zero. Then neither weight ever gets a gradient, and all that
    learns is one bias: ``form: literal``. The default has an adapter per block, its first map random and its second
    zero, which leaves the model as it is at first and does learn.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, Table 6; Houlsby et al., ICML 2019"
    personal = ("adapter", "head")
    smoke: ClassVar[dict[str, Any]] = {"width": 16}

    form: str = option(
        "corrected", choices=("corrected", "literal"), help="One adapter per block that learns, or the released one."
    )
    width: int = option(512, ge=1, help="Width of the bottleneck.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        return add_adapters(model, width=self.width, form=self.form)
