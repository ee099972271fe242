"""Convolutional networks: the small ConvNet of FedTP, pFedHN, pFedGP and FedOFA, LeNets, and FedBN's AlexNet."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._local_attention import REDUCTION, AttentiveBackbone
from pflcore.backbones.plain import Layers, check_positions, classifier
from pflcore.options import option


@BACKBONES.register
class ConvNet(AttentiveBackbone):
    """Two convolutions with max pooling, then three linear layers.

    With its defaults on 3×32×32 images it has 121,182 parameters for 10 classes and 128,832 for 100. 8×8 digits need
    ``kernel: 3, padding: 1``.
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
        width, *sides = shape
        layers: Layers = {"layout": _ChannelsLast()}
        for index, channels in enumerate(self.channels, 1):
            layers[f"conv{index}"] = nn.Conv2d(width, channels, self.kernel, padding=self.padding)
            # ReLU before pooling would give the same values and gradients, but more work.
            layers |= {f"conv{index}_pool": nn.MaxPool2d(2), f"conv{index}_relu": nn.ReLU()}
            width, sides = channels, [(side + 2 * self.padding - self.kernel + 1) // 2 for side in sides]
            check_positions(self, sides, f"{shape[1]}×{shape[2]} images", index)
        layers |= classifier(width * sides[0] * sides[1], self.hidden, classes)
        return self.assemble(layers, {f"conv{index}_relu": width for index, width in enumerate(self.channels, 1)})


@BACKBONES.register
class LeNet(ConvNet):
    """LeNet-5 with ReLU and max pooling: two convolutions, three linear layers.

    On 3×32×32 images it has 62,006 parameters for 10 classes and 69,656 for 100; on the 3×28×28 digits of pFedLA-Att
    44,726 for 10. Smaller images need ``kernel: 3, padding: 1``.
    """

    name = "lenet"
    citation = "LeCun et al., Proc. IEEE 1998; sizes of pFedLA-Att's LeNet, without batch norm"
    channels: tuple[int, ...] = option((6, 16), ge=1, help="Output channels of each convolution.")


@BACKBONES.register
class LeNetBN(LeNet):
    """LeNet-5 with batch norm after each convolution and hidden linear layer.

    On the 3×28×28 digits of pFedLA-Att it has 45,178 parameters for 10 classes; on 3×32×32 images 62,458 for 10 and
    70,108 for 100. The paper prints a padding of 1, but its count needs the default of 0. With local attention the
    45,178 become 45,318 (se), 45,184 (eca), 45,798 (ca; the paper prints 45.54 K) and 45,950 (hybrid).
    """

    name = "lenet_bn"
    citation = "pFedLA-Att (local attention), its table of the LeNet with batch norm"
    groups: ClassVar[dict[str, str]] = {**ConvNet.groups, "norm": r"(conv|fc)\d+_norm\."}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        model = nn.Sequential()
        for name, layer in super().build(shape, classes).named_children():
            model.add_module(name, layer)
            if isinstance(layer, nn.Conv2d):  # pooling is between norm and ReLU; after ReLU it would give the same
                model.add_module(f"{name}_norm", nn.BatchNorm2d(layer.out_channels))
            elif isinstance(layer, nn.Linear) and name != "head":
                model.add_module(f"{name}_norm", nn.BatchNorm1d(layer.out_features))
        return model


class _ChannelsLast(nn.Module):
    """A layer that stores images with channels last, where pooling on a CPU is several times faster; same values."""

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return images
        # By permutations, because vectorised execution does not support memory formats.
        return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


_FACTORS = (1, 3, 6, 4, 4)  # channels of AlexNet's convolutions, as multiples of the first one's
_KERNELS = (5, 3, 3, 3)  # of the convolutions after the first
_POOLED = (1, 2, 5)  # convolutions with pooling


@BACKBONES.register
class AlexNetBN(AttentiveBackbone):
    """AlexNet with batch norm after each convolution and hidden linear layer.

    With three input channels and any image size it has 57,063,498 parameters for 10 classes, 57,149,535 for 31,
    57,288,833 for 65 and 57,432,228 for 100. pFedLA-Att's local attention comes after each convolution's pooling, or
    after its ReLU if it has no pooling; then it has for 31 classes 57,189,471 (se), 57,149,550 (eca), 57,184,227 (ca)
    and 57,224,193 (hybrid). The paper's table has a stray third row, conv(64, 128, 5×5), which fits neither neighbour;
    without it the table is FedBN's net. Images of 16 to 62 pixels need ``kernel: 3, stride: 1, padding: 1``, 8×8 digits
    also ``pool_padding: 1``.
    """

    name = "alexnet_bn"
    citation = "Li et al., FedBN, ICLR 2021, released AlexNet; pFedLA-Att's table 8, read as that"
    smoke: ClassVar[dict[str, Any]] = {"width": 4, "hidden": 32, "grid": 1, "kernel": 3, "stride": 1, "padding": 1}
    groups: ClassVar[dict[str, str]] = LeNetBN.groups
    width: int = option(64, ge=1, help="Output channels of the first convolution; the others have 3, 6, 4, 4 times it.")
    hidden: int = option(4096, ge=1, help="Width of both hidden linear layers.")
    kernel: int = option(11, ge=1, help="Side of the first convolution's kernel, in pixels.")
    stride: int = option(4, ge=1, help="Step of the first convolution, in pixels.")
    padding: int = option(2, ge=0, help="Zero padding of the first convolution, in pixels.")
    pool_padding: int = option(0, ge=0, le=1, help="Padding of the three max poolings, in pixels; 1 for tiny images.")
    grid: int = option(6, ge=1, help="Side of the grid of averages that the first linear layer takes.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers, stages = Layers(), dict[str, int]()
        width, *sides = shape
        sizes = (self.kernel, self.stride, self.padding), *((kernel, 1, kernel // 2) for kernel in _KERNELS)
        for index, (factor, (kernel, stride, padding)) in enumerate(zip(_FACTORS, sizes, strict=True), 1):
            conv, width = nn.Conv2d(width, factor * self.width, kernel, stride, padding), factor * self.width
            layers |= {f"conv{index}": conv, f"conv{index}_norm": nn.BatchNorm2d(width), f"conv{index}_relu": nn.ReLU()}
            sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
            if index in _POOLED:
                layers[f"conv{index}_pool"] = nn.MaxPool2d(3, 2, self.pool_padding)
                sides = [(side + 2 * self.pool_padding - 3) // 2 + 1 for side in sides]
            stages[list(layers)[-1]] = width
            check_positions(self, sides, f"{shape[1]}×{shape[2]} images", index)
        layers |= {"average": _Grid(self.grid), "flatten": nn.Flatten()}
        width *= self.grid**2
        for index in (1, 2):
            layers |= {f"fc{index}": nn.Linear(width, self.hidden), f"fc{index}_norm": nn.BatchNorm1d(self.hidden)}
            layers[f"fc{index}_relu"] = nn.ReLU()
            width = self.hidden
        layers["head"] = nn.Linear(width, classes)
        return self.assemble(layers, stages)


class _Grid(nn.Module):
    """Means over a grid of windows, as ``nn.AdaptiveAvgPool2d``, whose gradient on CUDA is not deterministic."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        for axis in (-2, -1):
            if (length := images.shape[axis]) != self.side:
                # The first position of each window and the one after its last; windows can overlap.
                windows = [(i * length // self.side, -(-(i + 1) * length // self.side)) for i in range(self.side)]
                means = [images.narrow(axis, start, stop - start).mean(axis) for start, stop in windows]
                images = torch.stack(means, axis)
        return images
