"""Local attention: the paper's counts, each mask written out, where it is put, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny import CLASSES, SHAPE, backbone, method
from torch import Tensor, nn

from pflcore.backbones import BACKBONES
from pflcore.backbones._local_attention import LocalAttention, adaptive_kernel, local_attention
from pflcore.errors import UserError
from pflcore.groups import Groups

KINDS = ("se", "eca", "ca", "hybrid")
BACKBONES_WITH_IT = ("alexnet_bn", "convnet", "lenet", "lenet_bn", "resnet50")
DIGITS, PHOTO = (3, 28, 28), (3, 224, 224)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(2)


def made(kind: str, channels: int = 6, **options: Any) -> LocalAttention:
    """An attention whose numbers are all random, so that a formula cannot agree by chance."""
    torch.manual_seed(7)
    module = local_attention(kind, channels, **{"reduction": 2, **options})
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape)
    return module


def features(channels: int = 6, height: int = 4, width: int = 5, batch: int = 3) -> Tensor:
    torch.manual_seed(11)
    return torch.randn(batch, channels, height, width)


# --- counts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "totals"),
    [
        ("lenet_bn", DIGITS, 10, (45_178, 45_318, 45_184, 45_798, 45_950)),
        ("alexnet_bn", PHOTO, 31, (57_149_535, 57_189_471, 57_149_550, 57_184_227, 57_224_193)),
    ],
)
def test_the_counts_are_the_papers(name: str, shape: tuple[int, int, int], classes: int, totals: tuple[int]) -> None:
    doc = BACKBONES.get(name).__doc__ or ""
    for kind, total in zip(("none", *KINDS), totals, strict=True):
        with torch.device("meta"):
            model, groups = BACKBONES.create(name, attention=kind).create(shape, classes, 0)
        numbers = {entry: tensor.numel() for entry, tensor in model.named_parameters()}
        assert sum(numbers.values()) == total, kind
        own = groups.select(["local_attention"]) & groups.parameters if kind != "none" else ()
        assert sum(numbers[entry] for entry in own) == total - totals[0]
        assert f"{total:,}" in doc


@pytest.mark.parametrize(("channels", "kernel"), [(6, 1), (16, 3), (32, 3), (64, 3), (128, 5), (256, 5), (512, 5)])
def test_the_adaptive_kernel_grows_with_the_channels(channels: int, kernel: int) -> None:
    assert adaptive_kernel(channels) == kernel
    module = local_attention("eca", channels, kernel=0)
    assert [tuple(parameter.shape) for parameter in module.parameters()] == [(1, 1, kernel)]
    mixed = local_attention("hybrid", channels, kernel=0)
    assert mixed.get_parameter("eca.conv.weight").numel() == kernel
    assert local_attention("eca", channels, kernel=7).get_parameter("conv.weight").numel() == 7


# --- formulas ------------------------------------------------------------------------------------------------------


def se_by_hand(h: Tensor, state: dict[str, Tensor]) -> Tensor:
    result = h.clone()
    for image in range(len(h)):
        means = torch.stack([channel.sum() / channel.numel() for channel in h[image]])
        hidden = (state["squeeze.weight"] @ means).clamp(min=0)
        scores = state["excite.weight"] @ hidden
        for channel, score in enumerate(scores):
            result[image, channel] *= 1 / (1 + torch.exp(-score))
    return result


def eca_by_hand(h: Tensor, state: dict[str, Tensor]) -> Tensor:
    weight = state["conv.weight"][0, 0]
    reach, result = len(weight) // 2, h.clone()
    for image in range(len(h)):
        for channel in range(h.shape[1]):
            score = torch.zeros(())
            for offset in range(-reach, reach + 1):
                if 0 <= channel + offset < h.shape[1]:
                    score = score + weight[reach + offset] * h[image, channel + offset].mean()
            result[image, channel] *= 1 / (1 + torch.exp(-score))
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


BY_HAND = {"se": se_by_hand, "eca": eca_by_hand, "ca": ca_by_hand}


@pytest.mark.parametrize("kind", BY_HAND)
def test_an_attention_by_hand(kind: str) -> None:
    module, h = made(kind), features()
    before, state = h.clone(), {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.testing.assert_close(module(h), BY_HAND[kind](h, state), rtol=1e-5, atol=1e-6)
    assert torch.equal(h, before)


def test_the_hybrid_by_hand() -> None:
    module, h = made("hybrid"), features()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    exponentials = [torch.exp(logit) for logit in state["logits"]]
    expected = torch.zeros_like(h)
    for kind, own in zip(("se", "eca", "ca"), exponentials, strict=True):
        part = {name.removeprefix(f"{kind}."): tensor for name, tensor in state.items() if name.startswith(f"{kind}.")}
        expected += own / torch.stack(exponentials).sum() * BY_HAND[kind](h, part)
    torch.testing.assert_close(module(h), expected, rtol=1e-5, atol=1e-6)


# --- gradients and vectorisation -----------------------------------------------------------------------------------


# --- placement -----------------------------------------------------------------------------------------------------


def called(model: nn.Module, shape: tuple[int, int, int]) -> list[tuple[str, tuple[int, ...]]]:
    """The modules in the order in which they return, each with the shape of its output, on two images."""
    order: list[tuple[str, tuple[int, ...]]] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, out, name=name: order.append((name, tuple(out.shape[1:]))))
    model.eval()(torch.zeros(2, *shape, device="meta"))
    return order


def test_attention_ends_each_stage_of_alexnet() -> None:
    with torch.device("meta"):
        model, _ = BACKBONES.create("alexnet_bn", attention="hybrid").create(PHOTO, 31, 0)
    order = [(name, shape) for name, shape in called(model, PHOTO) if "." not in name]
    names = [name for name, _ in order]
    before = {name: names[at - 1] for at, name in enumerate(names) if name.endswith("_attention")}
    assert before == {
        "conv1_attention": "conv1_pool",
        "conv2_attention": "conv2_pool",
        "conv3_attention": "conv3_relu",
        "conv4_attention": "conv4_relu",
        "conv5_attention": "conv5_pool",
    }
    sizes = [shape for name, shape in order if name.endswith("_attention")]
    assert sizes == [(64, 27, 27), (192, 13, 13), (384, 13, 13), (256, 13, 13), (256, 6, 6)]


# --- groups, and what stays as it was ------------------------------------------------------------------------------


@pytest.fixture(params=BACKBONES_WITH_IT)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_attention_adds_is_one_group(name: str, kind: str) -> None:
    plain, without = backbone(name).create(SHAPE, CLASSES, 0)
    model, groups = backbone(name, attention=kind).create(SHAPE, CLASSES, 0)
    added = set(groups.of) - set(without.of)
    assert groups.select(["local_attention"]) == added and added
    assert {entry: groups.of[entry] for entry in without.of} == dict(without.of)
    norms = {entry for entry in added if entry.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    assert bool(norms) == (kind in ("ca", "hybrid"))
    assert added - groups.parameters == norms
    logits = {entry for entry in added if entry.endswith("logits")}
    assert bool(logits) == (kind == "hybrid")
    assert model.training == plain.training


def test_without_attention_there_is_no_trace_of_it(name: str) -> None:
    net = backbone(name, attention="none", attention_reduction=3, attention_kernel=7)
    model, groups = net.create(SHAPE, CLASSES, 0)
    assert not any(isinstance(module, LocalAttention) for module in model.modules())
    assert net.patterns(model) == BACKBONES.get(name).groups
    with pytest.raises(UserError, match="no parameter group 'local_attention'"):
        groups.select(["local_attention"])
    expected = backbone(name).create(SHAPE, CLASSES, 0)[0]
    images = torch.randn(4, *SHAPE)
    assert torch.equal(model(images), expected(images))
    assert list(model.state_dict()) == list(expected.state_dict())


def test_the_norm_of_attention_is_not_among_the_norms() -> None:
    groups: Groups = backbone("lenet_bn", attention="ca").create(SHAPE, CLASSES, 0)[1]
    roles = method("fedbn").roles(groups)
    assert not any("attention" in entry for entry in roles.personal) and "conv1_norm.running_mean" in roles.personal
    own = method("personal_groups", groups=("norm", "local_attention")).roles(groups)
    assert "conv1_attention.norm.running_mean" in own.personal
