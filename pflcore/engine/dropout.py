"""Dropout with randomness as an input: masks depend on (seed, round, client, step, pass) only.

A model's dropout layers take their masks, in order, from one block of random numbers that the executor draws for a
forward pass. So a client gets the same masks alone, in a worker, or stacked with others, and a recorded step contains
no generator. A 16-bit number per element is also cheaper than a Bernoulli variable.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.seeds import sequence, torch_seed

_LEVELS = 1 << 16


class DropoutBits:
    """The random numbers of all dropout layers of one model: `per_sample` numbers for a sample in a forward pass.
    `by_sample` is true if samples are the first dimension of every layer's input. With `free`, layers draw by
    themselves, like PyTorch's."""

    free = False

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        """Replace the ``nn.Dropout`` layers of `model` by layers that use this block; `example` is a batch of one."""
        self.device = example.device
        self.bits = torch.empty(0, dtype=torch.int16, device=self.device)
        self.by_sample = True
        self._layers: list[int] = []  # numbers per sample of each layer, in the order of use
        self._position = 0
        if layers := [layer for layer in _replace(model, self) if layer.p]:
            # In evaluation mode, a layer's output has the size of its input, which is the number of elements to drop.
            hooks = [layer.register_forward_hook(self._count) for layer in layers]
            with torch.no_grad():
                model.eval()(example)
            for hook in hooks:
                hook.remove()
        self.per_sample = sum(self._layers)

    def _count(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._layers.append(output.numel())
        self.by_sample &= len(output) == 1

    def load(self, bits: Tensor) -> None:
        """Use `bits` in the next forward pass."""
        self.bits, self._position = bits, 0

    def take(self, shape: torch.Size) -> Tensor:
        """Return the next numbers of the block, in the given shape."""
        start, self._position = self._position, self._position + shape.numel()
        bits = self.bits[start : self._position].view(shape)
        if self._position == len(self.bits):  # the backward pass needs the memory
            self.load(self.bits[:0].clone())
        return bits

    def fill(self, bits: Tensor, samples: int, size: int) -> Tensor:
        """Pad the numbers of a batch of `samples` samples to `size` samples; the first samples keep their numbers."""
        if samples == size:
            return bits
        layers = torch.split(bits, [samples * width for width in self._layers])
        pairs = zip(layers, self._layers, strict=True)
        return torch.cat([F.pad(layer, (0, (size - samples) * width)) for layer, width in pairs])

    def draw(self, samples: int, seed: int, *ids: int) -> Tensor:
        """Draw the numbers of one forward pass over a batch, from the stream of `ids`: round, client, step, pass."""
        words = -(-self.per_sample * samples // 4)
        if not words:
            return torch.empty(0, dtype=torch.int16, device=self.device)
        if self.device.type == "cpu":  # twice as fast as a PyTorch generator
            numbers = torch.from_numpy(
                np.random.SFC64(sequence(seed, "dropout", *ids)).random_raw(words).view(np.int64)
            )
        else:
            generator = torch.Generator(self.device)
            generator.manual_seed(torch_seed(seed, "dropout", *ids))
            numbers = torch.empty(words, dtype=torch.int64, device=self.device)
            numbers.random_(torch.iinfo(torch.int64).min, None, generator=generator)  # so that all 64 bits are random
        return numbers.view(torch.int16)[: self.per_sample * samples]


class Dropout(nn.Module):
    """Sets elements to 0 with probability `p`, rounded to 1/65,536, and scales the others so that the mean stays."""

    def __init__(self, p: float, noise: DropoutBits) -> None:
        super().__init__()
        self.p, self.noise = p, noise

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.noise.free:
            return F.dropout(x, self.p)
        dropped = min(round(self.p * _LEVELS), _LEVELS - 1)
        # A byte per element until the backward pass, and one copy of `x`.
        mask = (self.noise.take(x.shape) >= dropped - _LEVELS // 2).to(torch.int8)
        return (x * mask).mul_(torch.tensor(_LEVELS / (_LEVELS - dropped), dtype=x.dtype))


def _replace(module: nn.Module, noise: DropoutBits) -> list[Dropout]:
    """Replace the dropout layers below `module`; return the new ones."""
    layers = []
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            layers.append(Dropout(child.p, noise))
            setattr(module, name, layers[-1])
        else:
            layers += _replace(child, noise)
    return layers
