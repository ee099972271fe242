"""FedOFA's recalibration against loops over clients, filters and heads; and its orthogonality term."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.operators.filter_attention import FilterAttention, orthogonality

TARGETS = {"conv1.weight": (3, 2, 2, 2), "conv1.bias": (3,), "conv2.weight": (4, 3, 1, 2), "fc.weight": (5, 6)}
CONVS = ("conv1.weight", "conv2.weight")
STREAMS = ("intra", "inter", "tfa")
# The ConvNet that FedOFA's clients train, as far as it matters here.
CONVNET = {"conv1.weight": (16, 3, 5, 5), "conv1.bias": (16,), "conv2.weight": (32, 16, 5, 5), "head.weight": (10, 84)}


def attention(kind: str, heads: int = 2, mix: float = 0.3, scale: bool = False, dense: bool = False) -> FilterAttention:
    return FilterAttention(kind, heads, mix, scale, TARGETS, dense=dense)


def moved(module: FilterAttention, seed: int = 0) -> Tensors:
    """Parameters in float64 as after some training: biases are not zero."""
    torch.manual_seed(seed)
    return {name: tensor.double() + 0.3 * torch.randn(tensor.shape).double() for name, tensor in module.init(1).items()}


def weights(clients: int = 2, seed: int = 0) -> Tensors:
    torch.manual_seed(seed)
    return {name: 0.4 * torch.randn(clients, *shape, dtype=torch.float64) for name, shape in TARGETS.items()}


def added(params: Mapping[str, Tensor], name: str, index: int, scale: bool, copies: list[Tensor]) -> Tensor:
    """What stream `name` adds to its vector `index`, whose value heads are copies[2:] and query and key the first."""
    query_heads: list[Tensor] = []
    key_heads: list[Tensor] = []
    for head in range(len(copies) - 2):
        for role, vector, heads in (("query", copies[0], query_heads), ("key", copies[1], key_heads)):
            weight, bias = params[f"{name}.{role}.weight"][index, head], params[f"{name}.{role}.bias"][index, head]
            heads.append(weight * vector + bias)
    total = params[f"{name}.out.bias"][index] * torch.ones_like(copies[0])
    for head, query in enumerate(query_heads):
        scores = torch.stack([torch.dot(query, key) for key in key_heads])
        if scale:
            scores = scores / len(query) ** 0.5
        shares = scores.exp() / scores.exp().sum()
        for share, value in zip(shares, copies[2:], strict=True):
            total = total + params[f"{name}.out.weight"][index, head] * share * value
    return total


def by_hand(module: FilterAttention, params: Mapping[str, Tensor], layer: str, weight: Tensor) -> Tensor:
    """One client's convolution, filter by filter."""
    scales, shifts = params[f"{layer}.embedding.weight"], params[f"{layer}.embedding.bias"]
    query, key, value = (
        torch.stack([scales[role].mv(one.reshape(-1)) + shifts[role] for one in weight]).view_as(weight)
        if module.dense
        else scales[role] * weight + shifts[role]
        for role in range(3)
    )

    def heads(stream: str, index: int, vector: Tensor) -> list[Tensor]:
        lift, shift = params[f"{layer}.{stream}.value.weight"][index], params[f"{layer}.{stream}.value.bias"][index]
        return [lift[head] * vector + shift[head] for head in range(module.heads)]

    whole, filters = torch.zeros_like(weight), []
    if module.kind in ("inter", "tfa"):
        value_heads = heads("inter", 0, value.reshape(-1))
        copies = [query.reshape(-1), key.reshape(-1), *value_heads]
        whole = added(params, f"{layer}.inter", 0, module.scale, copies).reshape(weight.shape)
    for index in range(len(weight)):
        if module.kind == "tfa":
            values = [head.reshape(weight.shape)[index].reshape(-1) for head in value_heads]
        elif module.kind == "intra":
            values = heads("intra", index, value[index].reshape(-1))
        else:
            break
        copies = [query[index].reshape(-1), key[index].reshape(-1), *values]
        filters.append(added(params, f"{layer}.intra", index, module.scale, copies).reshape(weight.shape[1:]))
    if module.kind == "inter":
        return weight + whole
    single = torch.stack(filters)
    if module.kind == "intra":
        return weight + single
    return module.mix * (weight + single) + (1 - module.mix) * (weight + whole)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("kind", STREAMS)
def test_against_loops(kind: str, heads: int, scale: bool, dense: bool) -> None:
    module = attention(kind, heads, scale=scale, dense=dense)
    params, generated = moved(module), weights()
    made = module(params, generated)
    assert list(made) == list(generated)
    for name in CONVS:
        expected = torch.stack([by_hand(module, params, name, one) for one in generated[name]])
        assert (expected - generated[name]).abs().max() > 0.01
        torch.testing.assert_close(made[name], expected)


@pytest.mark.parametrize(
    ("kind", "heads", "count", "formula"),
    [
        ("none", 8, 0, lambda n, h: 0),
        ("intra", 2, 732, lambda n, h: 6 + n * (7 * h + 1)),
        ("inter", 8, 126, lambda n, h: 6 + (7 * h + 1)),
        ("tfa", 8, 2094, lambda n, h: 6 + (7 * h + 1) + n * (5 * h + 1)),
    ],
)
def test_parameter_counts(kind: str, heads: int, count: int, formula: Callable[[int, int], int]) -> None:
    params = FilterAttention(kind, heads, 0.5, False, CONVNET).init(0)
    assert sum(tensor.numel() for tensor in params.values()) == count == formula(16, heads) + formula(32, heads)


def test_initial_parameters() -> None:
    module = FilterAttention("tfa", 8, 0.5, False, CONVNET)
    params, same, other = module.init(3), module.init(3), module.init(4)
    torch.manual_seed(0)
    undisturbed = torch.rand(1)
    torch.manual_seed(0)
    module.init(3)
    assert torch.equal(torch.rand(1), undisturbed)
    for name, tensor in params.items():
        assert torch.equal(tensor, same[name]) and tensor.dtype == torch.float32
        if name.endswith(".bias"):
            assert not tensor.any()
            continue
        assert not torch.equal(tensor, other[name])
        bound = 8**-0.5 if ".out." in name else 1.0
        assert tensor.abs().max() <= bound
        if tensor.numel() > 100:
            assert tensor.abs().max() > 0.9 * bound
    drawn = [tensor.flatten()[0].item() for name, tensor in params.items() if name.endswith(".weight")]
    assert len(set(drawn)) == len(drawn)
    inter = FilterAttention("inter", 8, 0.5, False, CONVNET).init(3)
    assert all(torch.equal(tensor, params[name]) for name, tensor in inter.items())


def test_a_net_without_convolutions_is_refused() -> None:
    with pytest.raises(UserError, match="needs a convolution among the generated tensors"):
        FilterAttention("intra", 2, 0.5, False, {"fc.weight": (5, 6)})


def test_orthogonality_by_hand() -> None:
    generated = weights(clients=3)
    total = 0.0
    for client in range(3):
        for name in CONVS:
            filters = [one.reshape(-1) for one in generated[name][client]]
            for row, first in enumerate(filters):
                for column, second in enumerate(filters):
                    total += (torch.dot(first, second).item() - (row == column)) ** 2 / len(CONVS)
    assert orthogonality(generated).item() == pytest.approx(total)
