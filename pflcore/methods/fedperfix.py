"""Personal prefixes in the attention of a Transformer, made from its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option
from pflcore.plugins import add_perfix


@METHODS.register
class FedPerfix(Method):
    """Personal prefixes, made from a block's input, join keys and values of every attention.

    They and the classifier stay on the client. Beside each attention a small net P = up(tanh(down(x))) reads the
    block's normed input x. The paper appends its two halves to keys and values (``mode: concat``), which then mixes
    global attention with attention over the prefixes. The released code adds them, k + s · P_k and v + s · P_v, and
    that is the default here, since the published numbers are its. Its defaults are s = 1.5 and a width of 256.
    Attention itself and the rest are averaged.

    On CIFAR-100 the released configuration also keeps the last block on the client, which the paper does not say and
    its communication figure does not include: ``also_personal: [blocks.-1]``. ViT-S has 3,551,232
    numbers in its prefixes, 295,936 per block. Personal parts begin as the common initial ones.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, equations 3 and 4"
    personal = ("adapter", "head")
    smoke: ClassVar[dict[str, Any]] = {"width": 16}

    mode: str = option(
        "add", choices=("add", "concat"), help="Whether prefixes are added to keys and values or appended to them."
    )
    width: int = option(256, ge=1, help="Width of the net that makes the prefixes.")
    scale: float = option(1.5, ge=0, help="Factor s of the prefixes; with 0 and add it is FedPer.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        return add_perfix(model, width=self.width, scale=self.scale, mode=self.mode)
