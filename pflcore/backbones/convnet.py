"""The small ConvNet that FedTP, pFedHN, pFedGP and FedOFA share, and pFedLA-Att's LeNet, with batch norm or without."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._local_attention import REDUCTION, AttentiveBackbone
from pflcore.errors import UserError
from pflcore.options import option


@BACKBONES.register
class ConvNet(AttentiveBackbone):
    """Two convolutions with max pooling, then three linear layers.

    With its defaults on 3×32×32 images it has 121,182 parameters for 10 classes and 128,832 for 100. Smaller images
    need a smaller kernel or padding: 8×8 digits take ``kernel: 3, padding: 1``.
    """

    name = "convnet"
    citation = "Li et al., FedTP, TNNLS 2023, section IV-A; the same net as Shamsian et al., ICML 2021"
    groups: ClassVar[dict[str, str]] = {"conv": r"conv\d+\.", "fc": r"fc\d+\.", "head": r"head\."}
    channels: tuple[int, ...] = option((16, 32), ge=1, help="Output channels of each convolution.")
    hidden: tuple[int, ...] = option((120, 84), ge=1, help="Widths of the hidden linear layers.")
    kernel: int = option(5, ge=1, help="Side of the square convolution kernels, in pixels.")
    padding: int = option(0, ge=0, help="Zero padding of the convolutions, in pixels; 0 is a valid convolution.")
    attention_reduction: int = option(4, ge=1, help=REDUCTION)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        width, height, breadth = shape
        layers: dict[str, nn.Module] = {"layout": _ChannelsLast()}
        for index, channels in enumerate(self.channels, 1):
            layers[f"conv{index}"] = nn.Conv2d(width, channels, self.kernel, padding=self.padding)
            # The order of these two does not matter to values or gradients; after pooling there is less to do.
            layers[f"conv{index}_pool"] = nn.MaxPool2d(2)
            layers[f"conv{index}_relu"] = nn.ReLU()
            width = channels
            height, breadth = ((side + 2 * self.padding - self.kernel + 1) // 2 for side in (height, breadth))
            if min(height, breadth) < 1:
                raise UserError(
                    f"backbone {self.name}: kernel {self.kernel} with padding {self.padding} leaves nothing of "
                    f"{shape[1]}×{shape[2]} images after convolution {index}; use a smaller kernel or more padding"
                )
        layers["flatten"] = nn.Flatten()
        width *= height * breadth
        for index, hidden in enumerate(self.hidden, 1):
            layers[f"fc{index}"] = nn.Linear(width, hidden)
            layers[f"fc{index}_relu"] = nn.ReLU()
            width = hidden
        layers["head"] = nn.Linear(width, classes)
        return self.assemble(layers, {f"conv{index}_relu": each for index, each in enumerate(self.channels, 1)})


@BACKBONES.register
class LeNet(ConvNet):
    """LeNet-5 with ReLU and max pooling: two convolutions, three linear layers.

    On 3×32×32 images it has 62,006 parameters for 10 classes and 69,656 for 100; on the 3×28×28 digits of pFedLA-Att
    44,726 for 10. Smaller images take ``kernel: 3, padding: 1``.
    """

    name = "lenet"
    citation = "LeCun et al., Proc. IEEE 1998; sizes of pFedLA-Att's LeNet, without batch norm"
    channels: tuple[int, ...] = option((6, 16), ge=1, help="Output channels of each convolution.")


@BACKBONES.register
class LeNetBN(LeNet):
    """LeNet-5 with batch norm after each convolution and hidden linear layer.

    On the 3×28×28 digits of pFedLA-Att it has 45,178 parameters for 10 classes; on 3×32×32 images 62,458 for 10 and
    70,108 for 100. The paper prints a padding of 1; its count needs the default of 0. With local attention the 45,178
    become 45,318 (se), 45,184 (eca), 45,798 (ca; the paper prints 45.54 K) and 45,950 (hybrid).
    """

    name = "lenet_bn"
    citation = "pFedLA-Att (local attention), its table of the LeNet with batch norm"
    groups: ClassVar[dict[str, str]] = {**ConvNet.groups, "norm": r"(conv|fc)\d+_norm\."}

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


class _ChannelsLast(nn.Module):
    """Lays images out pixel by pixel, in which pooling on a CPU is several times faster; the values are the same.

    Elsewhere it would be nothing but a copy.
    """

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return images
        # By permutations, since vectorised execution knows no memory formats.
        return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
