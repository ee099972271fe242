"""FedOFA's recalibration and pruning against loops over clients, filters and heads."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.operators.filter_attention import FilterAttention, masks

TARGETS = {"conv1.weight": (3, 2, 2, 2), "conv1.bias": (3,), "conv2.weight": (4, 3, 1, 2), "fc.weight": (5, 6)}
CONVS = ("conv1.weight", "conv2.weight")
# The ConvNet that FedOFA's clients train, as far as it matters here.
CONVNET = {"conv1.weight": (16, 3, 5, 5), "conv1.bias": (16,), "conv2.weight": (32, 16, 5, 5), "head.weight": (10, 84)}


def weights(clients: int = 2) -> Tensors:
    torch.manual_seed(0)
    return {name: 0.4 * torch.randn(clients, *shape, dtype=torch.float64) for name, shape in TARGETS.items()}


def by_hand(module: FilterAttention, params: Mapping[str, Tensor], layer: str, weight: Tensor) -> Tensor:
    """One client's convolution, filter by filter and head by head."""
    scales, shifts = params[f"{layer}.embedding.weight"], params[f"{layer}.embedding.bias"]
    query, key, value = (
        torch.stack([scales[role].mv(one.reshape(-1)) + shifts[role] for one in weight])
        if module.dense
        else (scales[role] * weight + shifts[role]).flatten(1)
        for role in range(3)
    )

    def lifted(stream: str, role: str, index: int, vector: Tensor) -> list[Tensor]:
        scale, shift = (params[f"{layer}.{stream}.{role}.{part}"][index] for part in ("weight", "bias"))
        return [scale[head] * vector + shift[head] for head in range(module.heads)]

    def added(stream: str, index: int, one: Tensor, other: Tensor, values: list[Tensor]) -> Tensor:
        queries, keys = (lifted(stream, *both) for both in (("query", index, one), ("key", index, other)))
        out, total = params[f"{layer}.{stream}.out.weight"], params[f"{layer}.{stream}.out.bias"][index]
        for head, own in enumerate(queries):
            scores = torch.stack([torch.dot(own, key) for key in keys]) / (len(own) ** 0.5 if module.scale else 1)
            total = total + out[index, head] * sum(s * v for s, v in zip(scores.softmax(0), values, strict=True))
        return total

    def single(values: list[list[Tensor]]) -> Tensor:
        return torch.stack([added("intra", at, query[at], key[at], own) for at, own in enumerate(values)])

    if module.kind == "intra":
        return weight + single([lifted("intra", "value", at, one) for at, one in enumerate(value)]).view_as(weight)
    whole = lifted("inter", "value", 0, value.flatten())
    inter = added("inter", 0, query.flatten(), key.flatten(), whole).view_as(weight)
    if module.kind == "inter":
        return weight + inter
    cut = [[head.view_as(value)[at] for head in whole] for at in range(len(weight))]
    return weight + module.mix * single(cut).view_as(weight) + (1 - module.mix) * inter


@pytest.mark.parametrize(("heads", "scale", "dense"), [(1, False, False), (3, True, False), (2, False, True)])
@pytest.mark.parametrize("kind", ["intra", "inter", "tfa"])
def test_against_loops(kind: str, heads: int, scale: bool, dense: bool) -> None:
    module, generated = FilterAttention(kind, heads, 0.3, scale, TARGETS, dense=dense), weights()
    params = {name: one.double() + 0.3 * torch.randn(one.shape).double() for name, one in module.init(1).items()}
    made = module(params, generated)
    assert list(made) == list(generated)
    for name in CONVS:
        expected = torch.stack([by_hand(module, params, name, one) for one in generated[name]])
        torch.testing.assert_close(made[name], expected)


def test_parameters() -> None:
    module = FilterAttention("tfa", 8, 0.5, False, CONVNET)
    params, other = module.init(3), module.init(4)
    assert sum(tensor.numel() for tensor in params.values()) == 2094
    for name, tensor in params.items():
        bound = 0.0 if name.endswith(".bias") else 8**-0.5 if ".out." in name else 1.0
        assert tensor.abs().max() <= bound and (not bound or not torch.equal(tensor, other[name]))
    inter = FilterAttention("inter", 8, 0.5, False, CONVNET).init(3)
    assert all(torch.equal(tensor, params[name]) for name, tensor in inter.items())
    assert not FilterAttention("none", 8, 0.5, False, CONVNET).init(0)


@pytest.mark.parametrize("percent", [70, 99])
def test_pruning_against_the_printed_formula(percent: int) -> None:
    """A value is kept if it is above the one that ranks at p % in ascending order; without ties that is all."""
    torch.manual_seed(0)
    generated = {name: torch.randn(2, *shape) for name, shape in CONVNET.items()}
    made = masks(generated, percent)
    assert list(made) == ["conv1.weight", "conv2.weight"]
    for name, mask in made.items():
        for one, kept in zip(generated[name], mask, strict=True):
            numbers = sorted(abs(number) for number in one.flatten().tolist())
            rank = len(numbers) * percent // 100
            assert torch.equal(kept, one.abs() > numbers[rank - 1]) and int(kept.sum()) == len(numbers) - rank
    assert 1000 * 64.1 / 100 < 641  # what floats make of it
    assert int(masks({"a": torch.randn(1, 1000)}, 64.1, "all")["a"].sum()) == 359
    with pytest.raises(UserError, match="no convolution among the generated tensors"):
        masks({"fc.weight": torch.ones(1, 2, 3)}, 50)
