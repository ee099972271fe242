"""FedTP: a hypernetwork on the server generates the attention of clients' Transformers; and FedTP+FedRoD."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar

from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles
from pflcore.methods import METHODS
from pflcore.methods.classifiers import FedRoD
from pflcore.methods.hypernetworks import HypernetworkMethod
from pflcore.options import option

_QKV = "attention.qkv"
# Choices of `generated_part` and their groups; except for the projections, only entries in Transformer blocks.
_PARTS = {_QKV: _QKV, "mlp": "mlp", "norm": "norm", "encoder": ALL}
_IN_BLOCK = re.compile(r"(.+\.)?blocks\.\d+\.")


@METHODS.register
class FedTP(HypernetworkMethod):
    """Attention projections are generated per client from a learned embedding; the rest is averaged.

    A client trains the shared part ξ and W_i = h(z_i; φ) jointly and is measured with the new ξ and W_i. Embeddings of
    clients that were not sampled still move through momentum and decay, as in the code. ``also_personal: [head]`` is
    FedTP+FedPer, ``knn: 0.6`` FedTP+KNN; ``generated_part`` is the paper's ablation.
    """

    name = "fedtp"
    citation = "Li et al., FedTP, TNNLS 2023 (arXiv 2211.01572), section III"
    generated = (_QKV,)
    smoke: ClassVar[dict[str, Any]] = {"hidden": 16}
    generated_part: str = option(_QKV, choices=tuple(_PARTS), help="What is generated of blocks; encoder is all.")
    embedding: int = option(32, ge=1, help="Width of a client's embedding.")
    hidden: int = option(150, ge=1, help="Width of the hypernetwork's hidden layers.")
    server_clip: float | None = option(None, gt=0, help="Largest norm of the hypernetwork's gradient; null: any.")

    def roles(self, groups: Groups) -> Roles:
        if self.generated_part == _QKV:
            return super().roles(groups)
        roles = Roles.split(groups, (*self.personal, *self.also_personal), (_PARTS[self.generated_part],))
        made = frozenset(name for name in roles.generated if _IN_BLOCK.match(name))
        if not made:
            what = f"{self.name}: generated_part {self.generated_part!r} lies in the blocks of a Transformer"
            raise UserError(
                f"{what}, and this backbone has none, or it is all personal; use tiny_vit, vit or language_transformer"
            )
        return replace(roles, shared=roles.shared | (roles.generated - made), generated=made)


@METHODS.register
class FedTPFedRoD(FedRoD, FedTP):
    """Attention projections are generated as in FedTP; clients have a second classifier as in FedRoD.

    This classifier reads the class token before the last LayerNorm. A client is measured with the sum of both logits.
    """

    name = "fedtp_fedrod"
    citation = "Li et al., FedTP, TNNLS 2023, extensions; Chen and Chao, FedRoD, ICLR 2022"
