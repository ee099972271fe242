"""Local attention: each mask written out, that all that it adds is one group, and that nothing else changes."""

import pytest
import torch
from support.tiny import CLASSES, SHAPE, backbone, method

from pflcore.groups import strip_prefix

KINDS = ("se", "eca", "ca", "hybrid")


def attention(kind, channels, **options):
    return backbone("lenet_bn", attention=kind, **options).make_attention(channels)


def mask(kind, h, state):
    """In training mode: norm over the batch and all rows and columns."""
    if kind == "hybrid":
        parts = [mask(key, h, strip_prefix(f"{key}.", state)) for key in KINDS[:3]]
        return sum(share * part for share, part in zip(state["logits"].softmax(0), parts, strict=True))
    means = h.flatten(2).mean(2)
    if kind == "se":
        scores = (means @ state["squeeze.weight"].T).clamp(min=0) @ state["excite.weight"].T
        return scores.sigmoid()[:, :, None, None].expand_as(h)
    if kind == "eca":
        weight, reach = state["conv.weight"][0, 0], state["conv.weight"].numel() // 2
        wide = torch.cat([torch.zeros(len(h), reach), means, torch.zeros(len(h), reach)], 1)
        scores = torch.stack([wide[:, start : start + len(weight)] @ weight for start in range(h.shape[1])], 1)
        return scores.sigmoid()[:, :, None, None].expand_as(h)
    positions = torch.stack([*h.mean(3).unbind(2), *h.mean(2).unbind(2)])  # rows, then columns
    inner = positions @ state["squeeze.weight"][:, :, 0].T + state["squeeze.bias"]
    normed = (inner - inner.mean((0, 1))) / (inner.var((0, 1), unbiased=False) + 1e-5).sqrt()
    normed = normed * state["norm.weight"] + state["norm.bias"]
    swished = normed * (normed + 3).clamp(0, 6) / 6
    rows, columns = (swished @ state[f"{key}.weight"][:, :, 0].T + state[f"{key}.bias"] for key in ("rows", "columns"))
    return torch.einsum("rbc,sbc->bcrs", rows[: h.shape[2]].sigmoid(), columns[h.shape[2] :].sigmoid())


@pytest.mark.parametrize("kind", KINDS)
def test_an_attention_by_hand(kind):
    torch.manual_seed(7)
    module, h = attention(kind, 6, attention_reduction=2), torch.randn(3, 6, 4, 5)
    for parameter in module.parameters():  # all random, so that a formula cannot agree by chance
        parameter.data = torch.randn(parameter.shape)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.testing.assert_close(module(h), mask(kind, h, state) * h, rtol=1e-5, atol=1e-6)


def test_the_adaptive_kernel_grows_with_the_channels():
    for channels, kernel in {6: 1, 16: 3, 32: 3, 64: 3, 128: 5, 512: 5}.items():
        assert attention("eca", channels, attention_kernel=0).conv.weight.shape == (1, 1, kernel)
    assert attention("hybrid", 16, attention_kernel=7).eca.conv.weight.numel() == 7


@pytest.mark.parametrize("name", ["alexnet_bn", "convnet", "lenet_bn", "resnet50"])
def test_all_that_attention_adds_is_one_group_which_is_not_among_the_norms(name):
    without = backbone(name).create(SHAPE, CLASSES, 0)[1]
    for kind in KINDS:
        groups = backbone(name, attention=kind).create(SHAPE, CLASSES, 0)[1]
        added = set(groups.group_of) - set(without.group_of)
        assert groups.select(["local_attention"]) == added and added
        assert {entry: groups.group_of[entry] for entry in without.group_of} == dict(without.group_of)
        buffers = added - groups.parameters
        assert bool(buffers) == (kind in ("ca", "hybrid")) and all("norm." in entry for entry in buffers)
        if name == "lenet_bn":
            personal = method("fedbn").roles(groups).personal
            assert "conv1_norm.running_mean" in personal and not personal & added
