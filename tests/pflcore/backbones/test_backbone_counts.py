"""Parameter counts of papers and of timm, to the last one, and where the groups of timm's models lie."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.backbones.alexnet_bn import _Grid
from pflcore.groups import Groups

MNIST, CIFAR, PHOTO = (3, 28, 28), (3, 32, 32), (3, 224, 224)


def made(name: str, shape: tuple[int, int, int], classes: int, **options: Any) -> tuple[nn.Module, Groups]:
    """A model without memory for its numbers, and its groups."""
    with torch.device("meta"):
        return BACKBONES.create(name, **options).create(shape, classes, 0)


def count(model: nn.Module, groups: Groups, *wanted: str) -> int:
    """Parameters, of the wanted groups only if any are named."""
    names = groups.select(wanted or ("all",))
    return sum(tensor.numel() for name, tensor in model.named_parameters() if name in names)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "total"),
    [
        ("lenet", MNIST, 10, 44_726),
        ("lenet_bn", MNIST, 10, 45_178),
        ("alexnet_bn", PHOTO, 10, 57_063_498),
        ("alexnet_bn", PHOTO, 31, 57_149_535),
        ("alexnet_bn", PHOTO, 65, 57_288_833),
        ("alexnet_bn", (3, 256, 256), 10, 57_063_498),
        ("resnet50", PHOTO, 1000, 25_557_032),
        ("resnet50", PHOTO, 100, 23_712_932),
        ("resnet50", CIFAR, 100, 23_712_932),
    ],
)
def test_a_convolutional_net_has_its_count(name: str, shape: tuple[int, int, int], classes: int, total: int) -> None:
    assert count(*made(name, shape, classes)) == total


def test_the_feature_maps_of_alexnet() -> None:
    model, groups = made("alexnet_bn", PHOTO, 10)
    sides, images = {}, torch.zeros(2, *PHOTO, device="meta")
    for name, layer in model.named_children():
        images = layer(images)
        sides[name] = tuple(images.shape[1:])
    assert sides["conv1"] == (64, 55, 55) and sides["conv1_pool"] == (64, 27, 27)
    assert sides["conv2_pool"] == (192, 13, 13) and sides["conv3_relu"] == (384, 13, 13)
    assert sides["conv5_pool"] == (256, 6, 6) and sides["flatten"] == (9216,)
    assert count(model, groups, "norm") == 2 * (64 + 192 + 384 + 256 + 256 + 4096 + 4096)


@pytest.mark.parametrize(("height", "width"), [(7, 7), (1, 1), (13, 5), (6, 6), (3, 12)])
def test_averages_over_a_grid_are_those_of_pytorch(height: int, width: int) -> None:
    images = torch.randn(2, 3, height, width)
    torch.testing.assert_close(_Grid(6)(images), F.adaptive_avg_pool2d(images, 6))


VITS = {
    "tiny": (192, 3, {1000: 5_717_416, 100: 5_543_716, 65: 5_536_961, 11: 5_526_539}, 1_778_688, 444_864),
    "small": (384, 6, {1000: 22_050_664, 100: 21_704_164, 65: 21_690_689, 11: 21_669_899}, 7_096_320, 1_774_464),
    "base": (768, 12, {1000: 86_567_656, 100: 85_875_556, 65: 85_848_641, 11: 85_807_115}, 28_348_416, 7_087_872),
}


@pytest.mark.parametrize("size", VITS)
def test_a_vit_has_the_counts_of_timm(size: str) -> None:
    width, heads, totals, attention, block = VITS[size]
    for classes, total in totals.items():
        model, groups = made("vit", PHOTO, classes, size=size)
        assert count(model, groups) == total
    assert count(model, groups, "attention") == attention
    assert count(model, groups, "norm") == 25 * 2 * width
    assert count(model, groups, "pos_embed") == 197 * width and count(model, groups, "cls_token") == width
    assert sum(tensor.numel() for tensor in model.blocks[3].parameters()) == block
    assert model.blocks[3].attn.num_heads == heads


# --- any model of timm -------------------------------------------------------------------------------------------

# Names of state entries, as patterns, by the group that a rule must put them in.
FOUND: dict[str, tuple[tuple[int, int, int], dict[str, str]]] = {
    "vit_tiny_patch16_224": (
        CIFAR,
        {
            "attention.qkv": r"blocks\.\d+\.attn\.qkv\.(weight|bias)",
            "attention.out": r"blocks\.\d+\.attn\.proj\.(weight|bias)",
            "mlp": r"blocks\.\d+\.mlp\.fc[12]\.(weight|bias)",
            "norm": r"(blocks\.\d+\.norm[12]|norm)\.(weight|bias)",
            "cls_token": "cls_token",
            "pos_embed": "pos_embed",
            "patch_embed": r"patch_embed\.proj\.(weight|bias)",
            "head": r"head\.(weight|bias)",
        },
    ),
    "deit_tiny_distilled_patch16_224": (
        CIFAR,
        {"cls_token": "(cls|dist)_token", "head": r"head(_dist)?\.(weight|bias)", "pos_embed": "pos_embed"},
    ),
    "resnet50": (
        CIFAR,
        {
            "conv": r"(conv1|layer\d\.\d\.(conv\d|downsample\.0))\.weight",
            "norm": r"(bn1|layer\d\.\d\.(bn\d|downsample\.1))\.\w+",
            "head": r"fc\.(weight|bias)",
        },
    ),
    "convnext_atto": (
        CIFAR,
        {
            "conv": r"(stem\.0|stages\.\d\.downsample\.1|stages\.\d\.blocks\.\d\.conv_dw)\.(weight|bias)",
            "mlp": r"stages\.\d\.blocks\.\d\.mlp\.fc[12]\.(weight|bias)",
            "other": r"stages\.\d\.blocks\.\d\.gamma",
            "head": r"head\.fc\.(weight|bias)",
        },
    ),
    "swin_tiny_patch4_window7_224": (
        PHOTO,
        {
            "attention.qkv": r"layers\.\d\.blocks\.\d\.attn\.qkv\.(weight|bias)",
            "attention.other": r"layers\.\d\.blocks\.\d\.attn\.relative_position_bias_table",
            "fc": r"layers\.\d\.downsample\.reduction\.weight",
            "head": r"head\.fc\.(weight|bias)",
        },
    ),
    "mobilenetv2_100": (PHOTO, {"head": r"classifier\.(weight|bias)"}),
}


@pytest.mark.parametrize("model", FOUND)
def test_rules_find_the_groups_of_a_model_of_timm(model: str) -> None:
    shape, expected = FOUND[model]
    net, groups = made("timm_model", shape, 10, model=model)
    for group, pattern in expected.items():
        names = {name for name in groups.of if re.fullmatch(pattern, name)}
        assert names and groups.select([group]) == names, group
    assert list(groups.of) == list(net.state_dict())


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "resnet50"])
def test_rules_and_patterns_agree(model: str) -> None:
    named = {"vit_tiny_patch16_224": "vit", "resnet50": "resnet50"}[model]
    net, groups = made(named, CIFAR, 10)
    other, found = made("timm_model", CIFAR, 10, model=model)
    assert groups == found
    shapes = [[tuple(tensor.shape) for tensor in each.state_dict().values()] for each in (net, other)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("model", ["test_resnet", "swin_tiny_patch4_window7_224", "convnext_atto"])
def test_a_model_of_timm_has_no_randomness_of_its_own(model: str) -> None:
    net, _ = made("timm_model", PHOTO, 10, model=model)
    assert not any(getattr(module, "inplace", False) for module in net.modules())
    rates = [getattr(module, "drop_prob", 0) or 0 for module in net.modules()]
    assert not any(rates) and not any(module.p for module in net.modules() if isinstance(module, nn.Dropout))
