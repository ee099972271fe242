"""The stacked LSTM that reads text character by character: the usual model for Shakespeare."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.options import option


@BACKBONES.register
class LSTM(Backbone):
    """A stacked LSTM that predicts the next character at every position of a text, from those up to it.

    An embedding, two LSTM layers, whose state is zero at the beginning of each text, and a linear layer that all
    positions share. With its defaults and 100 characters it has 825,220 parameters, whatever the length.
    """

    citation = "McMahan et al., AISTATS 2017; the baselines of FedTP's Shakespeare table, as released"
    smoke: ClassVar[dict[str, Any]] = {"embedding": 4, "hidden": 16}
    groups: ClassVar[dict[str, str]] = {"embedding": r"embedding\.", "lstm": r"lstm\.", "head": r"head\."}
    takes = "text"
    embedding: int = option(8, ge=1, help="Width of a character's embedding.")
    hidden: int = option(256, ge=1, help="Width of each LSTM layer.")
    layers: int = option(2, ge=1, help="Number of LSTM layers.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return _NextCharacter(self, classes)


class _NextCharacter(nn.Module):
    def __init__(self, options: LSTM, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, options.embedding)
        self.lstm = _StackedLSTM(options.embedding, options.hidden, options.layers)
        self.head = nn.Linear(options.hidden, classes)

    def forward(self, texts: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(texts)))
        return logits


class _StackedLSTM(nn.Module):
    """``nn.LSTM(width, hidden, layers, batch_first=True)`` from plain operations, its state under the same names.

    The operator behind ``nn.LSTM`` cannot be vectorised over clients. This is nearly as fast: what the inputs
    contribute is one product per layer, only the recurrent products go step by step.
    """

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers
        for layer in range(layers):
            shapes = {
                "weight_ih": (4 * hidden, hidden if layer else width),
                "weight_hh": (4 * hidden, hidden),
                "bias_ih": (4 * hidden,),
                "bias_hh": (4 * hidden,),
            }
            for name, shape in shapes.items():
                bound = hidden**-0.5
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (batch, length, width) → the last layer's outputs, (batch, length, hidden)."""
        for layer in range(self.layers):
            inputs = self._run(layer, inputs)
        return inputs

    def _run(self, layer: int, inputs: Tensor) -> Tensor:
        weight_ih, weight_hh, bias_ih, bias_hh = (
            getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        projected = F.linear(inputs, weight_ih, bias_ih + bias_hh)
        recurrent = weight_hh.t()
        output = cell = inputs.new_zeros(inputs.shape[0], self.hidden)
        outputs = []
        for gates in projected.unbind(1):
            write, keep, value, show = torch.addmm(gates, output, recurrent).chunk(4, dim=1)
            cell = keep.sigmoid() * cell + write.sigmoid() * value.tanh()
            output = show.sigmoid() * cell.tanh()
            outputs.append(output)
        return torch.stack(outputs, dim=1)
