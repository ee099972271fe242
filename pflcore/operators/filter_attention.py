"""FedOFA's attention, orthogonality and pruning of generated convolutions: pure functions over named tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from pflcore.groups import Tensors
from pflcore.seeds import torch_seed

PARTS = ("conv", "all")  # what is pruned
KINDS = ("none", "intra", "inter", "tfa")
_CONV = 4  # axes of a convolution's weights: filters, input channels, height, width
_ROLES = ("query", "key", "value")


@dataclass(frozen=True)
class FilterAttention:
    """Attention that recalibrates generated convolutions on the server, not on clients (FedOFA, section 3.2).

    A convolution of n filters with d = channels · height · width numbers each is embedded three times, as query, key
    and value, by a number per layer and role, or with `dense` by a d × d matrix. A stream lifts each embedding to
    `heads` copies, lets the heads attend to one another (a map of heads × heads), and adds a combination of them to the
    weights. ``intra`` treats each filter separately, with its own projections; ``inter`` treats the layer as one vector
    of n·d numbers. ``tfa`` is ``mix`` · intra + (1 − ``mix``) · inter with separate queries and keys; its value heads
    are those of inter, cut into filters. ``none`` does nothing and has no parameters. Biases do not change.
    """

    kind: str
    heads: int  # of both streams; with one head the attention is constant, and queries and keys learn nothing
    mix: float  # share of ``intra`` in ``tfa``, 0..1
    scale: bool  # divide scores by the root of the vectors' length, as Transformers do; the paper does not
    targets: Mapping[str, tuple[int, ...]]  # shapes of all generated tensors; those with four axes are convolutions
    bias: bool = True  # one per filter or layer, added to all its numbers; with them runs tend to diverge
    dense: bool = False

    def init(self, seed: int) -> Tensors:
        """Return initial parameters: weights as in PyTorch's linear layers of the same size, biases zero. Each tensor
        has its own random stream, so kinds begin with equal values in the tensors that they have in common."""
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
        """Return the tensors with recalibrated convolutions, under the same names, (clients, \\*target shape)."""
        return {**generated, **{name: self._recalibrate(params, name, generated[name]) for name in self._layers()}}

    def _layers(self) -> tuple[str, ...]:
        return tuple(name for name, shape in self.targets.items() if len(shape) == _CONV and self.kind != "none")

    def _recalibrate(self, params: Mapping[str, Tensor], layer: str, weights: Tensor) -> Tensor:
        """Return one recalibrated convolution, (clients, filters, channels, height, width)."""
        filters = weights.flatten(-_CONV + 1)
        scales, shifts = params[f"{layer}.embedding.weight"], params.get(f"{layer}.embedding.bias")
        embedded = [filters @ each.mT if self.dense else filters * each for each in scales.unbind()]
        if shifts is not None:
            embedded = [tensor + shift for tensor, shift in zip(embedded, shifts.unbind(), strict=True)]
        layers = [tensor.flatten(-2).unsqueeze(-2) for tensor in embedded]  # for inter, a layer is one vector
        if self.kind == "intra":
            values = _lift(params, f"{layer}.intra.value", embedded[2])
            added = self._stream(params, f"{layer}.intra", embedded, values)
        else:
            values = _lift(params, f"{layer}.inter.value", layers[2])
            added = self._stream(params, f"{layer}.inter", layers, values).reshape(filters.shape)
        if self.kind == "tfa":
            value_heads = values.reshape(*filters.shape[:-2], self.heads, *filters.shape[-2:]).transpose(-3, -2)
            added = self.mix * self._stream(params, f"{layer}.intra", embedded, value_heads) + (1 - self.mix) * added
        return weights + added.reshape(weights.shape)

    def _stream(self, params: Mapping[str, Tensor], name: str, embedded: list[Tensor], values: Tensor) -> Tensor:
        """Return what a stream adds to each of its vectors, as in `embedded`: (clients, vectors, length). `values` are
        the value heads, (clients, vectors, heads, length)."""
        queries, keys = (_lift(params, f"{name}.{role}", embedded[index]) for index, role in enumerate(_ROLES[:2]))
        scores = queries @ keys.transpose(-2, -1)
        if self.scale:
            scores = scores * queries.shape[-1] ** -0.5
        # (clients, vectors, 1, heads): the map back to one vector is applied to the small matrix first.
        shares = params[f"{name}.out.weight"].unsqueeze(-2) @ scores.softmax(-1)
        return _shift((shares @ values).squeeze(-2), params.get(f"{name}.out.bias"))


def orthogonality(generated: Mapping[str, Tensor]) -> Tensor:
    """Return ‖O·Oᵀ − I‖², averaged over convolutions, whose filters are rows of O, and summed over clients. The paper
    writes ‖Oᵀ·O − I‖² (equation 8), which is larger by a constant and has the same gradient."""
    grams = []
    for tensor in generated.values():
        if tensor.ndim == 1 + _CONV:
            rows = tensor.flatten(2)
            identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
            grams.append((rows @ rows.transpose(1, 2) - identity).square().sum())
    return torch.stack(grams).mean()


def _lift(params: Mapping[str, Tensor], name: str, vectors: Tensor) -> Tensor:
    """Return a scaled and shifted copy of each vector for each head: (clients, vectors, heads, length)."""
    return _shift(vectors.unsqueeze(-2) * params[f"{name}.weight"].unsqueeze(-1), params.get(f"{name}.bias"))


def _shift(vectors: Tensor, bias: Tensor | None) -> Tensor:
    return vectors if bias is None else vectors + bias.unsqueeze(-1)


def masks(generated: Mapping[str, Tensor], percent: float, parts: str = "conv") -> Tensors:
    """Return masks of the weights that a client keeps, by layer those of largest magnitude (FedOFA, equation 9).

    In each tensor (clients, …), with ``conv`` only in convolutions, the floor(n · `percent` / 100) smallest of a
    client's n numbers are dropped, of equal ones the earlier.
    """
    result = {}
    for name, tensor in generated.items():
        if parts != "all" and tensor.ndim != 1 + _CONV:
            continue
        sizes = tensor.detach().abs().flatten(1)
        # Exact arithmetic on the decimal as it is written: with floats, 64.1 % of 1000 are less than 641.
        dropped = math.floor(sizes.shape[1] * Fraction(str(percent)) / 100)
        result[name] = (sizes.argsort(dim=1, stable=True).argsort(dim=1) >= dropped).view(tensor.shape)
    return result


def masked(tensors: Mapping[str, Tensor], keep: Mapping[str, Tensor]) -> Tensors:
    """Return `tensors` with zeros where their mask in `keep` is false; tensors without a mask do not change."""
    return {name: tensor.masked_fill(~keep[name], 0) if name in keep else tensor for name, tensor in tensors.items()}
