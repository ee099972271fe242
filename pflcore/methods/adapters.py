"""Personal adapters behind the MLPs of a Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.methods._blocks import Bottleneck, blocks, pattern
from pflcore.options import option


@METHODS.register
class Adapters(Method):
    """A personal bottleneck x + up(tanh(down(x))) after each MLP, before its output is added.

    It and the classifier stay on the client, the rest is averaged. With ``form: corrected`` each block has an adapter,
    its first map random and its second zero, which leaves the model as it is at first. ``form: literal`` is FedPerfix's
    released code: one adapter, begun with zeros, for all blocks, of which one bias is all that can learn.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, Table 6; Houlsby et al., ICML 2019"
    personal = ("adapter", "head")
    smoke: ClassVar[dict[str, Any]] = {"width": 16}

    form: str = option(
        "corrected", choices=("corrected", "literal"), help="One adapter per block that learns, or the released one."
    )
    width: int = option(512, ge=1, help="Width of the bottleneck.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        found = blocks(model, "adapter tuning")
        if self.form == "corrected":
            for block in found:
                adapter = _Adapter(block.dim, self.width)
                # Beside the MLP, not in it: what is in it belongs to a group of the backbone.
                block.module.add_module("adapter", adapter)
                block.mlp.register_forward_hook(adapter.after)
        else:
            dims = {block.dim for block in found}
            if len(dims) > 1:
                raise UserError(
                    f"one adapter cannot be shared by blocks of widths {', '.join(map(str, sorted(dims)))}; "
                    "use the form corrected"
                )
            shared = _Adapter(dims.pop(), self.width)
            nn.init.zeros_(shared.down.weight)
            nn.init.zeros_(shared.down.bias)
            # In one place, so that its entries are in the state once.
            model.add_module("adapter", shared)
            for block in found:
                block.mlp.register_forward_hook(shared.after)
        return {"adapter": pattern("adapter")}


class _Adapter(Bottleneck):
    """Begins as the identity."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__(dim, width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def after(self, mlp: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Adapt an MLP's output as its forward hook; a bound method is copied and pickled together with the model."""
        adapted: Tensor = output + self(output)
        return adapted
