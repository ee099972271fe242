"""Small networks for float arrays: logistic regression, a multilayer perceptron, convolutions along time."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.errors import UserError
from pflcore.options import option

Layers = dict[str, nn.Module]


def classifier(width: int, hidden: Sequence[int], classes: int) -> Layers:
    """Return hidden linear layers with ReLU, and a linear classifier, by name, for inputs that have `width` numbers."""
    layers: Layers = {"flatten": nn.Flatten()}
    for index, outputs in enumerate(hidden, 1):
        layers |= {f"fc{index}": nn.Linear(width, outputs), f"fc{index}_relu": nn.ReLU()}
        width = outputs
    return {**layers, "head": nn.Linear(width, classes)}


def check_positions(entry: Any, sides: Sequence[int], inputs: str, index: int) -> None:
    """Raise :class:`UserError` if the output of convolution `index`, with these `sides`, has no position; `entry` is a
    backbone with the options ``kernel`` and ``padding``, `inputs` describes its inputs."""
    if min(sides) < 1:
        problem = f"kernel {entry.kernel} with padding {entry.padding} leaves nothing of {inputs}"
        raise UserError(
            f"backbone {entry.name}: {problem} after convolution {index}; use a smaller one or more padding"
        )


@BACKBONES.register
class MLP(Backbone):
    """A multilayer perceptron with ReLU, on all numbers of an array or image.

    With its defaults it is the 2NN of FedAvg, with 199,210 parameters for 10 classes of 1×28×28 images.
    """

    name = "mlp"
    citation = "McMahan et al., AISTATS 2017, the 2NN"
    smoke: ClassVar[dict[str, Any]] = {"hidden": (16,)}
    groups: ClassVar[dict[str, str]] = {"fc": r"fc\d+\.", "head": r"head\."}
    takes = "images or arrays"
    hidden: tuple[int, ...] = option((200, 200), ge=1, help="Widths of the hidden layers.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(OrderedDict(classifier(math.prod(shape), self.hidden, classes)))


@BACKBONES.register
class Linear(Backbone):
    """Multinomial logistic regression, on all numbers of an array or image.

    It has 7,850 parameters for 10 classes of 1×28×28 images. The whole model is the group ``head``, so methods with a
    personal classifier share nothing.
    """

    name = "linear"
    citation = "Li et al., FedProx, MLSys 2020, its convex model"
    groups: ClassVar[dict[str, str]] = {"head": r"head\."}
    takes = "images or arrays"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(OrderedDict(classifier(math.prod(shape), (), classes)))


@BACKBONES.register
class ConvNet1d(Backbone):
    """Convolutions along time, ReLU and max pooling, then linear layers, for signals [channels, time].

    With its defaults it has 235,014 parameters for 6 classes of 9×128 signals; with ``hidden: [1024, 512]`` it is the
    CNN that PFLlib trains on human activities, with 2,253,958.
    """

    name = "convnet1d"
    citation = "the HARCNN of Zhang et al., PFLlib, 2023, with one smaller hidden layer"
    smoke: ClassVar[dict[str, Any]] = {"channels": (4, 6), "hidden": (12,)}
    groups: ClassVar[dict[str, str]] = {"conv": r"conv\d+\.", "fc": r"fc\d+\.", "head": r"head\."}
    takes = "arrays"
    channels: tuple[int, ...] = option((32, 64), ge=1, help="Output channels of each convolution.")
    hidden: tuple[int, ...] = option((128,), ge=1, help="Widths of the hidden linear layers.")
    kernel: int = option(9, ge=1, help="Times that a convolution spans.")
    padding: int = option(0, ge=0, help="Zero padding of the convolutions, in times.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 2:
            takes = f"takes arrays [channels, time], the dataset's are {list(shape)}"
            raise UserError(f"backbone {self.name} {takes}; use mlp or linear")
        width, length = shape
        layers: Layers = {}
        for index, channels in enumerate(self.channels, 1):
            layers[f"conv{index}"] = nn.Conv1d(width, channels, self.kernel, padding=self.padding)
            layers |= {f"conv{index}_relu": nn.ReLU(), f"conv{index}_pool": nn.MaxPool1d(2)}
            width, length = channels, (length + 2 * self.padding - self.kernel + 1) // 2
            check_positions(self, [length], f"{shape[1]} times", index)
        return nn.Sequential(OrderedDict(layers | classifier(width * length, self.hidden, classes)))
