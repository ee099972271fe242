"""Personal prefixes in the attention of a Transformer, made from its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.methods._blocks import Bottleneck, blocks, pattern
from pflcore.options import option


@METHODS.register
class FedPerfix(Method):
    """Personal prefixes, made from a block's input, join keys and values of every attention.

    They and the classifier stay on the client. Beside each attention a small net P = up(tanh(down(x))) reads the
    block's normed input x. The paper appends its two halves to keys and values (``mode: concat``); the released code
    adds them, k + s · P_k and v + s · P_v, and that is the default, since the published numbers are its. Attention
    itself and the rest are averaged. ViT-S has 3,551,232 numbers in its prefixes, 295,936 per block.

    On CIFAR-100 the released configuration also keeps the last block on the client: ``also_personal: [blocks.-1]``.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, equations 3 to 5"
    personal = ("adapter", "head")
    smoke: ClassVar[dict[str, Any]] = {"width": 16}

    mode: str = option(
        "add", choices=("add", "concat"), help="Whether prefixes are added to keys and values or appended to them."
    )
    width: int = option(256, ge=1, help="Width of the net that makes the prefixes.")
    scale: float = option(1.5, ge=0, help="Factor s of the prefixes; with 0 and add it is FedPer.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        for block in blocks(model, "FedPerfix"):
            adapter = Bottleneck(block.dim, self.width, 2 * block.inner)
            block.add_prefixes("adapter", adapter, scale=self.scale, concat=self.mode == "concat")
        return {"adapter": pattern("adapter")}
