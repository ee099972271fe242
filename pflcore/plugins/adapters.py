"""Adapters: a bottleneck after the MLP of every block of a Transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.plugins._blocks import blocks, check_choice, pattern


def add_adapters(model: nn.Module, *, width: int = 512, form: str = "corrected") -> dict[str, str]:
    """After the MLP of each block, before it is added to the tokens: x + tanh(x · W_down) · W_up, with biases.

    ``corrected``: an adapter per block, W_down begun at random and W_up with zeros. On ViT-S with width 512 they are
    394,112 parameters per block and 4,729,344 in all.

    ``literal`` is the released code of FedPerfix: one adapter that all blocks share, everything in it begun with zeros.
    Then the gradients of W_down and its bias are zero because W_up is, that of W_up is zero because its input is, and
    this stays so: it can only learn the output bias, i.e. one vector that is added after every MLP.

    Either form changes nothing before it is trained.

    Source: Sun et al., FedPerfix, ICCV 2023, section 5.3, Table 6, and its released code; after Pfeiffer et al.,
    AdapterHub, EMNLP 2020.

    Args:
        model: A freshly built Transformer.
        width: Hidden width of an adapter.
        form: ``corrected`` or ``literal``.

    Returns:
        The pattern of the group ``adapter``.

    Raises:
        UserError: `form` is neither, the model has no attention of a known kind, or one adapter is to be shared by
            blocks of several widths.
    """
    check_choice("form", form, ("corrected", "literal"))
    found = blocks(model, "adapter tuning")
    if form == "corrected":
        for block in found:
            adapter = _Adapter(block.dim, width)
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
        shared = _Adapter(dims.pop(), width)
        nn.init.zeros_(shared.down.weight)
        nn.init.zeros_(shared.down.bias)
        # In one place, so that its entries are in the state once.
        model.add_module("adapter", shared)
        for block in found:
            block.mlp.register_forward_hook(shared.after)
    return {"adapter": pattern("adapter")}


class Bottleneck(nn.Module):
    """tanh(x · W_down) · W_up with biases: (…, inputs) → (…, outputs); begun as PyTorch's linear layers."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, width)
        self.up = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(torch.tanh(self.down(x)))
        return out


class _Adapter(Bottleneck):
    """Begins as the identity."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__(dim, width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def after(self, mlp: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """A forward hook of an MLP; as a bound method it is copied and pickled together with the model."""
        adapted: Tensor = output + self(output)
        return adapted
