"""Networks that read text character by character: a stacked LSTM and FedTP's Transformer."""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.backbones._base import Backbone
from pflcore.errors import UserError
from pflcore.options import option


@BACKBONES.register
class LSTM(Backbone):
    """A stacked LSTM that predicts each next character of a text from the characters before it.

    It has an embedding, LSTM layers, whose state is zero at the beginning of each text, and a linear layer that all
    positions share. With its defaults and 100 characters it has 825,220 parameters, whatever the length.
    """

    name = "lstm"
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
        return cast(Tensor, self.head(self.lstm(self.embedding(texts))))


class _StackedLSTM(nn.Module):
    """``nn.LSTM(width, hidden, layers, batch_first=True)`` from plain operations, with the same state names.

    The operator of ``nn.LSTM`` cannot be vectorised over clients. The contribution of the inputs is one product per
    layer; only the recurrent products are computed step by step.
    """

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers
        shapes = {"weight_ih": (4 * hidden, width), "weight_hh": (4 * hidden, hidden), "bias_ih": (4 * hidden,)}
        for layer in range(layers):
            for name, shape in {**shapes, "bias_hh": (4 * hidden,)}.items():
                drawn = torch.empty(shape).uniform_(-(hidden**-0.5), hidden**-0.5)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(drawn))
            shapes["weight_ih"] = (4 * hidden, hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last layer's outputs, (batch, length, hidden), for inputs (batch, length, width)."""
        for layer in range(self.layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            inputs = self._run(inputs, *(getattr(self, f"{name}_l{layer}") for name in names))
        return inputs

    def _run(self, inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
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


@BACKBONES.register
class LanguageTransformer(Backbone):
    """A post-norm Transformer encoder that predicts the next character at every position of a text.

    Sinusoidal positions are added to embeddings. Each block has a norm after its attention, which has no biases, and a
    norm after its MLP. The logits of the bias-free head are divided by the square root of the width. All matrices begin
    Xavier uniform. With its defaults and 100 characters it has 683,008 parameters, of which FedTP generates 393,216.
    The released code has no attention mask, so every position but the last attends to its own target, and accuracy over
    all positions measures copying. ``causal`` hides later positions; with ``none`` only the last position is a real
    prediction. The paper's "inner hidden dimension" of 256 is the MLP's, as in the code; ``dim: 256`` is the other way
    to read it.
    """

    name = "language_transformer"
    citation = "Li et al., FedTP, TNNLS 2023, sizes of the released code; after Vaswani et al., NeurIPS 2017"
    smoke: ClassVar[dict[str, Any]] = {"dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 32}
    groups: ClassVar[dict[str, str]] = {
        "embedding": r"embedding\.",
        "norm": r"(norm|blocks\.\d+\.(attention|mlp)_norm)\.",
        "attention.qkv": r"blocks\.\d+\.attention\.[qkv]\.",
        "attention.out": r"blocks\.\d+\.attention\.out\.",
        "mlp": r"blocks\.\d+\.mlp\.",
        "head": r"head\.",
    }
    takes = "text"
    depth: int = option(2, ge=1, help="Number of Transformer blocks.")
    dim: int = option(128, ge=1, help="Width of a position.")
    heads: int = option(8, ge=1, help="Attention heads per block.")
    head_dim: int = option(64, ge=1, help="Width of one attention head.")
    mlp_dim: int = option(256, ge=1, help="Hidden width of the MLP in a block.")
    dropout: float = option(0.1, ge=0, lt=1, help="Dropout of embedding, attention probabilities, attention and MLP.")
    positions: int = option(200, ge=1, help="Length of the table of positions: the longest text that is taken.")
    attention_mask: str = option("causal", choices=("causal", "none"), help="Positions see earlier ones alone, or all.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if shape[0] > self.positions:
            problem = f"positions {self.positions} are too few for texts of {shape[0]} characters"
            raise UserError(f"backbone {self.name}: {problem}; use positions: {shape[0]} or shorter texts")
        return _Transformer(self, classes)


class _Transformer(nn.Module):
    positions: Tensor

    def __init__(self, options: LanguageTransformer, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, options.dim)
        # Not part of the state, because it is never trained and methods would average and send it.
        index = torch.arange(options.dim)
        angle = torch.arange(options.positions).double()[:, None] / 10_000 ** (2 * (index // 2) / options.dim)
        self.register_buffer(
            "positions", torch.where(index % 2 == 0, angle.sin(), angle.cos()).float(), persistent=False
        )
        self.dropout = nn.Dropout(options.dropout)
        self.norm = nn.LayerNorm(options.dim, eps=1e-6)
        self.blocks = nn.Sequential(*(_Block(options) for _ in range(options.depth)))
        self.head = nn.Linear(options.dim, classes, bias=False)
        self.scale = options.dim**-0.5
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, texts: Tensor) -> Tensor:
        tokens = self.norm(self.dropout(self.embedding(texts) + self.positions[: texts.shape[1]]))
        return cast(Tensor, self.head(self.blocks(tokens)) * self.scale)


class _Block(nn.Module):
    def __init__(self, options: LanguageTransformer) -> None:
        super().__init__()
        self.attention = _Attention(options)
        self.attention_norm = nn.LayerNorm(options.dim, eps=1e-6)
        wide, narrow = nn.Linear(options.dim, options.mlp_dim), nn.Linear(options.mlp_dim, options.dim)
        self.mlp = nn.Sequential(wide, nn.ReLU(), narrow, nn.Dropout(options.dropout))
        self.mlp_norm = nn.LayerNorm(options.dim, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.attention_norm(tokens + self.attention(tokens))
        return cast(Tensor, self.mlp_norm(tokens + self.mlp(tokens)))


class _Attention(nn.Module):
    def __init__(self, options: LanguageTransformer) -> None:
        super().__init__()
        inner = options.heads * options.head_dim
        self.heads = options.heads
        self.causal = options.attention_mask == "causal"
        self.scale = options.head_dim**-0.5
        self.q, self.k, self.v = (nn.Linear(options.dim, inner, bias=False) for _ in range(3))
        self.out = nn.Linear(inner, options.dim, bias=False)
        self.attention_dropout = nn.Dropout(options.dropout)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, _ = tokens.shape
        qkv = (project(tokens) for project in (self.q, self.k, self.v))
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in qkv)
        # Not F.scaled_dot_product_attention, because its dropout draws its own random numbers.
        scores = (q * self.scale) @ k.transpose(2, 3)
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        mixed = self.attention_dropout(F.softmax(scores, dim=-1)) @ v
        return cast(Tensor, self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, -1))))
