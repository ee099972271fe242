"""FedOFA's recalibration and pruning against loops over clients, filters and heads."""

import pytest
import torch

from pflcore.operators.filter_attention import FilterAttention, masks

TARGETS = {"conv1.weight": (3, 2, 2, 2), "conv1.bias": (3,), "conv2.weight": (4, 3, 1, 2), "fc.weight": (5, 6)}
# The ConvNet that FedOFA's clients train, as far as it matters here.
CONVNET = {"conv1.weight": (16, 3, 5, 5), "conv1.bias": (16,), "conv2.weight": (32, 16, 5, 5), "head.weight": (10, 84)}


def by_hand(module, params, layer, weight):
    """One client's convolution, filter by filter and head by head."""
    scales, shifts = params[f"{layer}.embedding.weight"], params[f"{layer}.embedding.bias"]
    filters = weight.flatten(1)
    query, key, value = (
        torch.stack([scales[role].mv(tensor) + shifts[role] for tensor in filters])
        if module.dense
        else scales[role] * filters + shifts[role]
        for role in range(3)
    )

    def lifted(stream, role, index, vector):
        scale, shift = (params[f"{layer}.{stream}.{role}.{part}"][index] for part in ("weight", "bias"))
        return [scale[head] * vector + shift[head] for head in range(module.heads)]

    def added(stream, index, tensor, other, values):
        queries, keys = lifted(stream, "query", index, tensor), lifted(stream, "key", index, other)
        out, total = params[f"{layer}.{stream}.out.weight"], params[f"{layer}.{stream}.out.bias"][index]
        for head, q in enumerate(queries):
            scores = torch.stack([torch.dot(q, key) for key in keys]) / (len(q) ** 0.5 if module.scale else 1)
            total = total + out[index, head] * sum(s * v for s, v in zip(scores.softmax(0), values, strict=True))
        return total

    def single(values):
        heads = [added("intra", i, query[i], key[i], q) for i, q in enumerate(values)]
        return torch.stack(heads).view_as(weight)

    if module.kind == "intra":
        return weight + single([lifted("intra", "value", i, tensor) for i, tensor in enumerate(value)])
    layer_heads = lifted("inter", "value", 0, value.flatten())
    inter = added("inter", 0, query.flatten(), key.flatten(), layer_heads).view_as(weight)
    if module.kind == "inter":
        return weight + inter
    cut = [[head.view_as(value)[i] for head in layer_heads] for i in range(len(weight))]
    return weight + module.mix * single(cut) + (1 - module.mix) * inter


@pytest.mark.parametrize("heads, scale, dense", [(1, False, False), (3, True, False), (2, False, True)])
@pytest.mark.parametrize("kind", ["intra", "inter", "tfa"])
def test_against_loops(kind, heads, scale, dense):
    torch.manual_seed(0)
    generated = {name: 0.4 * torch.randn(2, *shape, dtype=torch.float64) for name, shape in TARGETS.items()}
    module = FilterAttention(kind, heads, 0.3, scale, TARGETS, dense=dense)
    params = {name: value.double() + 0.3 * torch.randn(value.shape).double() for name, value in module.init(1).items()}
    result = module(params, generated)
    assert list(result) == list(generated)
    for name in ("conv1.weight", "conv2.weight"):
        expected = torch.stack([by_hand(module, params, name, value) for value in generated[name]])
        torch.testing.assert_close(result[name], expected)


def test_parameters():
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
def test_pruning_against_the_printed_formula(percent):
    """A value is kept if it is above the one that ranks at p % in ascending order; without ties that is all."""
    torch.manual_seed(0)
    generated = {name: torch.randn(2, *shape) for name, shape in CONVNET.items()}
    result = masks(generated, percent)
    assert list(result) == ["conv1.weight", "conv2.weight"]
    for name, mask in result.items():
        for weights_, keep in zip(generated[name].abs(), mask, strict=True):
            rank = weights_.numel() * percent // 100
            assert torch.equal(keep, weights_ > weights_.flatten().sort().values[rank - 1])
            assert int(keep.sum()) == weights_.numel() - rank
    mask = masks({"a": torch.randn(1, 1000)}, 64.1, "all")["a"]
    assert int(mask.sum()) == 359  # though in floats 1000 * 64.1 / 100 is below 641
