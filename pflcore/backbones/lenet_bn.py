"""The LeNet with batch norm that pFedLA-Att trains on digits."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from pflcore.backbones import BACKBONES
from pflcore.backbones.lenet import LeNet


@BACKBONES.register
class LeNetBN(LeNet):
    """LeNet-5 with batch norm after each convolution and hidden linear layer.

    On the 3×28×28 digits of pFedLA-Att it has 45,178 parameters for 10 classes; on 3×32×32 images 62,458 for 10 and
    70,108 for 100. The paper prints a padding of 1, with which the first linear layer would take 400 numbers; both its
    printed 256 and its count need the default of 0. With local attention the 45,178 become 45,318 (se), 45,184 (eca),
    45,798 (ca; the paper prints 45.54 K) and 45,950 (hybrid).
    """

    citation = "pFedLA-Att (local attention), its table of the LeNet with batch norm"
    groups: ClassVar[dict[str, str]] = {
        "conv": r"conv\d+\.",
        "norm": r"(conv|fc)\d+_norm\.",
        "fc": r"fc\d+\.",
        "head": r"head\.",
    }

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        model = nn.Sequential()
        for name, layer in super().build(shape, classes).named_children():
            model.add_module(name, layer)
            # Pooling lies between norm and ReLU, whose order with it does not matter.
            if isinstance(layer, nn.Conv2d):
                model.add_module(f"{name}_norm", nn.BatchNorm2d(layer.out_channels))
            elif isinstance(layer, nn.Linear) and name != "head":
                model.add_module(f"{name}_norm", nn.BatchNorm1d(layer.out_features))
        return model
