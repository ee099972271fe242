"""FedOFA's attention over generated convolutions, as pure functions over named tensors; and its orthogonality term."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.seeds import torch_seed

KINDS = ("none", "intra", "inter", "tfa")
_CONV = 4  # axes of a convolution's weights: filters, input channels, height, width
_ROLES = ("query", "key", "value")


@dataclass(frozen=True)
class FilterAttention:
    """Recalibrates generated convolutions on the server; clients do not notice (FedOFA, section 3.2).

    A convolution of n filters with d = channels · height · width numbers each is embedded three times, as query, key
    and value. A stream lifts each to `heads` copies, lets the heads attend to one another (a map of heads × heads), and
    adds a combination of the heads to the weights:

    - ``intra``: each filter for itself, as vectors of d numbers; every filter has projections of its own.
    - ``inter``: the layer as one vector of n·d numbers, with one set of projections.
    - ``tfa``: ``mix`` · intra + (1 − ``mix``) · inter. Queries and keys are separate; the value heads are those of
      inter, cut into filters. Both streams take the same embedding.
    - ``none``: nothing; there are no parameters.

    The embedding acts on each number alone, with a weight per layer and role, so what a stream adds to a filter is a
    multiple of it; with `dense` it is a matrix of d × d. Biases stay as they are.

    Attributes:
        heads: Heads of both streams; with one head the attention is constant, and queries and keys learn nothing.
        mix: Share of ``intra`` in ``tfa``, 0..1.
        scale: Divide scores by the root of the vectors' length, as Transformers do. The paper does not write it.
        targets: Shapes of all generated tensors, by name; those with four axes are convolutions.
        bias: Whether maps have biases. One is added to all numbers of a filter or layer; runs tend to diverge.
    """

    kind: str
    heads: int
    mix: float
    scale: bool
    targets: Mapping[str, tuple[int, ...]]
    bias: bool = True
    dense: bool = False

    def __post_init__(self) -> None:
        if self.kind != "none" and not self._layers():
            raise UserError(
                f"filter attention: kind {self.kind!r} needs a convolution among the generated tensors and there is "
                "none; use a backbone with convolutions, or kind 'none'"
            )

    def init(self, seed: int) -> Tensors:
        """Return parameters: weights as PyTorch draws those of a linear layer of their size, biases zero.

        Biases of −1..1, as a linear layer of one input has them, would saturate the softmax. Each tensor has a stream
        of its own, so kinds begin alike in what they have in common.
        """
        params: Tensors = {}

        def add(name: str, *shape: int, inputs: int, outputs: tuple[int, ...]) -> None:
            stream = torch.Generator().manual_seed(torch_seed(seed, f"filter attention {name}"))
            bound = inputs**-0.5
            params[f"{name}.weight"] = torch.empty(shape).uniform_(-bound, bound, generator=stream)
            if self.bias:
                params[f"{name}.bias"] = torch.zeros(outputs)

        for layer in self._layers():
            filters, *each = self.targets[layer]
            side = (math.prod(each),) if self.dense else ()
            add(f"{layer}.embedding", len(_ROLES), *side, *side, inputs=math.prod(side), outputs=(len(_ROLES), *side))
            for stream, vectors in (("inter", 1), ("intra", filters)):
                if self.kind not in (stream, "tfa"):
                    continue
                shared = stream == "intra" and self.kind == "tfa"
                for role in _ROLES[:-1] if shared else _ROLES:
                    add(f"{layer}.{stream}.{role}", vectors, self.heads, inputs=1, outputs=(vectors, self.heads))
                add(f"{layer}.{stream}.out", vectors, self.heads, inputs=self.heads, outputs=(vectors,))
        return params

    def __call__(self, params: Mapping[str, Tensor], generated: Mapping[str, Tensor]) -> Tensors:
        """Return recalibrated tensors of the same names and shapes (clients, \\*target shape)."""
        layers = self._layers()
        return {
            name: self._recalibrate(params, name, tensor) if name in layers else tensor
            for name, tensor in generated.items()
        }

    def _layers(self) -> tuple[str, ...]:
        """Return the names of the convolutions that are recalibrated."""
        return tuple(name for name, shape in self.targets.items() if len(shape) == _CONV and self.kind != "none")

    def _recalibrate(self, params: Mapping[str, Tensor], layer: str, weights: Tensor) -> Tensor:
        """Recalibrate one convolution, (clients, filters, channels, height, width)."""
        filters = weights.flatten(-_CONV + 1)
        scales, shifts = params[f"{layer}.embedding.weight"], params.get(f"{layer}.embedding.bias")
        maps = [scales[index] for index in range(len(_ROLES))]
        embedded = [filters @ each.mT if self.dense else filters * each for each in maps]
        if shifts is not None:
            embedded = [tensor + shifts[index] for index, tensor in enumerate(embedded)]
        # To inter, a layer is one vector of all its numbers.
        whole = [tensor.flatten(-2).unsqueeze(-2) for tensor in embedded]
        if self.kind == "intra":
            values = _lift(params, f"{layer}.intra.value", embedded[2])
            added = self._stream(params, f"{layer}.intra", embedded, values)
        else:
            values = _lift(params, f"{layer}.inter.value", whole[2])
            added = self._stream(params, f"{layer}.inter", whole, values).reshape(filters.shape)
        if self.kind == "tfa":
            cut = values.reshape(*filters.shape[:-2], self.heads, *filters.shape[-2:]).transpose(-3, -2)
            added = self.mix * self._stream(params, f"{layer}.intra", embedded, cut) + (1 - self.mix) * added
        return weights + added.reshape(weights.shape)

    def _stream(self, params: Mapping[str, Tensor], name: str, embedded: list[Tensor], values: Tensor) -> Tensor:
        """Return what a stream adds to each of its vectors: (clients, vectors, length), like each of `embedded`.

        `values` has the heads of the values, (clients, vectors, heads, length).
        """
        queries = _lift(params, f"{name}.query", embedded[0])
        keys = _lift(params, f"{name}.key", embedded[1])
        scores = queries @ keys.transpose(-2, -1)
        if self.scale:
            scores = scores * queries.shape[-1] ** -0.5
        # (clients, vectors, 1, heads): the map back to one vector is applied to the small matrix first.
        shares = params[f"{name}.out.weight"].unsqueeze(-2) @ scores.softmax(-1)
        return _shifted((shares @ values).squeeze(-2), params.get(f"{name}.out.bias"))


def orthogonality(generated: Mapping[str, Tensor]) -> Tensor:
    """Return ‖O·Oᵀ − I‖², the mean over convolutions, summed over clients: how far filters are from orthonormal.

    O has a convolution's filters as its rows. The paper writes ‖Oᵀ·O − I‖² (equation 8), which is larger by a constant
    and has the same gradient.
    """
    grams = []
    for tensor in generated.values():
        if tensor.ndim == 1 + _CONV:
            rows = tensor.flatten(2)
            identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
            grams.append((rows @ rows.transpose(1, 2) - identity).square().sum())
    if not grams:
        raise UserError("method fedofa: lam: there is no convolution among the generated tensors; set it to 0")
    return torch.stack(grams).mean()


def _lift(params: Mapping[str, Tensor], name: str, vectors: Tensor) -> Tensor:
    """Return copies of each vector for the heads, each scaled and shifted: (clients, vectors, heads, length)."""
    return _shifted(vectors.unsqueeze(-2) * params[f"{name}.weight"].unsqueeze(-1), params.get(f"{name}.bias"))


def _shifted(vectors: Tensor, bias: Tensor | None) -> Tensor:
    return vectors if bias is None else vectors + bias.unsqueeze(-1)
