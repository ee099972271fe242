"""The LeNet of pFedLA-Att without its batch norm, which is LeNet-5 with ReLU and max pooling."""

from __future__ import annotations

from pflcore.backbones import BACKBONES
from pflcore.backbones.convnet import ConvNet
from pflcore.options import option


@BACKBONES.register
class LeNet(ConvNet):
    """LeNet-5 with ReLU and max pooling: two convolutions, three linear layers.

    With its defaults on 3×32×32 images it has 62,006 parameters for 10 classes and 69,656 for 100; on the 3×28×28
    digits of pFedLA-Att 44,726 for 10. The first linear layer takes what the image size leaves (256 numbers of 28×28
    pixels). Smaller images need a smaller kernel or padding: 8×8 digits take ``kernel: 3, padding: 1``.
    """

    citation = "LeCun et al., Proc. IEEE 1998; sizes of pFedLA-Att's LeNet, without batch norm"

    channels: tuple[int, ...] = option((6, 16), ge=1, help="Output channels of each convolution.")
