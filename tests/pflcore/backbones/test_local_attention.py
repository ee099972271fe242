"""Local attention: each mask written out, that all that it adds is one group, and that nothing else changes."""

from __future__ import annotations

import pytest
import torch
from support.tiny import CLASSES, SHAPE, backbone, method
from torch import Tensor

from pflcore.backbones import BACKBONES
from pflcore.backbones._local_attention import LocalAttention, adaptive_kernel, local_attention
from pflcore.errors import UserError


def se_by_hand(h: Tensor, state: dict[str, Tensor]) -> Tensor:
    result = h.clone()
    for image in range(len(h)):
        means = torch.stack([channel.sum() / channel.numel() for channel in h[image]])
        scores = state["excite.weight"] @ (state["squeeze.weight"] @ means).clamp(min=0)
        for channel, score in enumerate(scores):
            result[image, channel] *= 1 / (1 + torch.exp(-score))
    return result


def eca_by_hand(h: Tensor, state: dict[str, Tensor]) -> Tensor:
    weight = state["conv.weight"][0, 0]
    reach, result = len(weight) // 2, h.clone()
    for image in range(len(h)):
        for channel in range(h.shape[1]):
            near = [offset for offset in range(-reach, reach + 1) if 0 <= channel + offset < h.shape[1]]
            score = sum(weight[reach + offset] * h[image, channel + offset].mean() for offset in near)
            result[image, channel] *= 1 / (1 + torch.exp(torch.as_tensor(-score)))
    return result


def ca_by_hand(h: Tensor, state: dict[str, Tensor]) -> Tensor:
    """In training mode: norm over the batch and all rows and columns."""
    height, width = h.shape[2:]
    positions = [h[:, :, row].mean(2) for row in range(height)] + [
        h[:, :, :, column].mean(2) for column in range(width)
    ]
    inner = torch.stack([p @ state["squeeze.weight"][:, :, 0].t() + state["squeeze.bias"] for p in positions])
    flat = inner.flatten(0, 1)
    normed = (inner - flat.mean(0)) / (flat.var(0, unbiased=False) + 1e-5).sqrt()
    normed = normed * state["norm.weight"] + state["norm.bias"]
    swished = normed * (normed + 3).clamp(0, 6) / 6

    def gate(at: int, name: str) -> Tensor:
        return torch.sigmoid(swished[at] @ state[f"{name}.weight"][:, :, 0].t() + state[f"{name}.bias"])

    result = h.clone()
    for row in range(height):
        for column in range(width):
            result[:, :, row, column] *= gate(row, "rows") * gate(height + column, "columns")
    return result


def hybrid_by_hand(h: Tensor, state: dict[str, Tensor]) -> Tensor:
    exponentials, expected = torch.exp(state["logits"]), torch.zeros_like(h)
    for kind, own in zip(("se", "eca", "ca"), exponentials, strict=True):
        part = {name.removeprefix(f"{kind}."): tensor for name, tensor in state.items() if name.startswith(f"{kind}.")}
        expected += own / exponentials.sum() * BY_HAND[kind](h, part)
    return expected


BY_HAND = {"se": se_by_hand, "eca": eca_by_hand, "ca": ca_by_hand, "hybrid": hybrid_by_hand}


@pytest.mark.parametrize("kind", BY_HAND)
def test_an_attention_by_hand(kind: str) -> None:
    torch.manual_seed(7)
    module, h = local_attention(kind, 6, reduction=2), torch.randn(3, 6, 4, 5)
    for parameter in module.parameters():  # all random, so that a formula cannot agree by chance
        parameter.data = torch.randn(parameter.shape)
    before, state = h.clone(), {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.testing.assert_close(module(h), BY_HAND[kind](h, state), rtol=1e-5, atol=1e-6)
    assert torch.equal(h, before)


def test_the_adaptive_kernel_grows_with_the_channels() -> None:
    for channels, kernel in {6: 1, 16: 3, 32: 3, 64: 3, 128: 5, 512: 5}.items():
        assert adaptive_kernel(channels) == kernel
        assert local_attention("eca", channels, kernel=0).get_parameter("conv.weight").shape == (1, 1, kernel)
        assert local_attention("hybrid", channels, kernel=7).get_parameter("eca.conv.weight").numel() == 7


@pytest.mark.parametrize("name", ["alexnet_bn", "convnet", "lenet_bn", "resnet50"])
def test_all_that_attention_adds_is_one_group_and_without_there_is_no_trace_of_it(name: str) -> None:
    plain, without = backbone(name).create(SHAPE, CLASSES, 0)
    for kind in BY_HAND:
        _, groups = backbone(name, attention=kind).create(SHAPE, CLASSES, 0)
        added = set(groups.of) - set(without.of)
        assert groups.select(["local_attention"]) == added and added
        assert {entry: groups.of[entry] for entry in without.of} == dict(without.of)
        buffers = added - groups.parameters
        assert bool(buffers) == (kind in ("ca", "hybrid")) and all("norm." in entry for entry in buffers)
    net = backbone(name, attention="none", attention_reduction=3, attention_kernel=7)
    model, groups = net.create(SHAPE, CLASSES, 0)
    assert not any(isinstance(module, LocalAttention) for module in model.modules())
    assert net.patterns(model) == BACKBONES.get(name).groups
    with pytest.raises(UserError, match="no parameter group 'local_attention'"):
        groups.select(["local_attention"])
    images = torch.randn(4, *SHAPE)
    assert torch.equal(model(images), plain(images))


def test_the_norm_of_attention_is_not_among_the_norms() -> None:
    groups = backbone("lenet_bn", attention="ca").create(SHAPE, CLASSES, 0)[1]
    roles = method("fedbn").roles(groups)
    assert not any("attention" in entry for entry in roles.personal) and "conv1_norm.running_mean" in roles.personal
    own = method("personal_groups", groups=("norm", "local_attention")).roles(groups)
    assert "conv1_attention.norm.running_mean" in own.personal
