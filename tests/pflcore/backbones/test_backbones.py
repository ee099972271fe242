"""Backbones: sizes that are known, forward passes written out, and what every registered one keeps to."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
import torch
from support.tiers import first_of_each
from support.tiny import CLASSES, backbone, create, inputs_for
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES, Backbone
from pflcore.backbones.alexnet_bn import _Grid
from pflcore.datasets import DATASETS, Dataset
from pflcore.errors import UserError
from pflcore.groups import Groups

# --- backbones -------------------------------------------------------------------------------------------------------


CIFAR, DIGITS = (3, 32, 32), (1, 8, 8)
NATIVE = {"alexnet_bn": (3, 224, 224)}  # what a backbone's defaults are for, where 3×32×32 is too small for them
FINE = {"kernel": 3, "stride": 1, "padding": 1}
# Options that a backbone needs for images of a size; none where its defaults do.
SUITED: dict[tuple[str, tuple[int, int, int]], dict[str, Any]] = {
    **{(name, DIGITS): {"kernel": 3, "padding": 1} for name in ("convnet", "lenet", "lenet_bn")},
    **{("alexnet_bn", shape): FINE for shape in ((1, 16, 16), (1, 28, 28), (3, 28, 28), CIFAR)},
    ("alexnet_bn", DIGITS): {**FINE, "pool_padding": 1},
    ("vit", DIGITS): {"patch": 4},
    **{("vit", (channels, 28, 28)): {"patch": 7} for channels in (1, 3)},
    ("vit", (3, 300, 300)): {"patch": 20},
}


def sizes(backbone: Backbone, classes: int) -> tuple[dict[str, int], Groups]:
    """Numbers per entry on 3×32×32 images, or larger ones where it needs them, without memory for them."""
    with torch.device("meta"):
        shape = (80,) if backbone.takes == "text" else NATIVE.get(backbone.name, CIFAR)
        model, groups = backbone.create(shape, classes, 0)
    return {name: tensor.numel() for name, tensor in model.named_parameters()}, groups


# --- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "count"), [(10, 121_182), (100, 128_832)])
def test_the_convnet_has_the_parameters_of_the_papers(classes: int, count: int) -> None:
    numbers, _ = sizes(BACKBONES.create("convnet"), classes)
    assert sum(numbers.values()) == count
    assert numbers["fc1.weight"] == 800 * 120


DEPTHS = {
    1: (344_970, 356_580),
    2: (673_674, 685_284),
    4: (1_331_082, 1_342_692),
    6: (1_988_490, 2_000_100),
    8: (2_645_898, 2_657_508),
    10: (3_303_306, 3_314_916),
}


@pytest.mark.parametrize(("depth", "counts"), DEPTHS.items())
def test_the_tiny_vit_has_the_parameters_of_the_paper(depth: int, counts: tuple[int, int]) -> None:
    for classes, count in zip((10, 100), counts, strict=True):
        numbers, groups = sizes(BACKBONES.create("tiny_vit", depth=depth), classes)
        assert sum(numbers.values()) == count
        assert sum(numbers[name] for name in groups.select(["attention.qkv"])) == depth * 196_608
        assert sum(numbers[name] for name in groups.select(["attention.out"])) == depth * 65_664
        assert sum(numbers[name] for name in groups.select(["mlp"])) == depth * 65_920
        assert sum(numbers[name] for name in groups.select(["norm"])) == depth * 512 + 256


# --- forward passes written out ------------------------------------------------------------------------------------


def test_the_convnet_by_hand() -> None:
    model, _ = BACKBONES.create("convnet").create(CIFAR, 10, 0)
    state = model.state_dict()
    images = torch.randn(3, *CIFAR)
    x = F.max_pool2d(F.conv2d(images, state["conv1.weight"], state["conv1.bias"]).relu(), 2)
    x = F.max_pool2d(F.conv2d(x, state["conv2.weight"], state["conv2.bias"]).relu(), 2)
    assert x.shape == (3, 32, 5, 5)
    x = F.linear(x.flatten(1), state["fc1.weight"], state["fc1.bias"]).relu()
    x = F.linear(x, state["fc2.weight"], state["fc2.bias"]).relu()
    torch.testing.assert_close(model(images), F.linear(x, state["head.weight"], state["head.bias"]))


def patch_vectors(image: Tensor, side: int) -> Tensor:
    """Row by row of patches; inside a patch row, column, channel."""
    _, height, width = image.shape
    corners = [(top, left) for top in range(0, height, side) for left in range(0, width, side)]
    return torch.stack(
        [image[:, top : top + side, left : left + side].permute(1, 2, 0).flatten() for top, left in corners]
    )


def attend(x: Tensor, state: dict[str, Tensor], block: str, heads: int) -> Tensor:
    """Self-attention of tokens [tokens, dim], head by head."""
    inner = state[f"{block}.attention.qkv.weight"].shape[0] // 3
    width = inner // heads
    q, k, v = (x @ part.t() for part in state[f"{block}.attention.qkv.weight"].split(inner))
    mixed = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        scores = (q[:, own] @ k[:, own].t()) / width**0.5
        mixed.append(scores.softmax(-1) @ v[:, own])
    out: Tensor = torch.cat(mixed, 1) @ state[f"{block}.attention.out.weight"].t()
    return out + state[f"{block}.attention.out.bias"]


def vit_by_hand(image: Tensor, state: dict[str, Tensor], depth: int, heads: int, patch: int) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].t() + state[f"{name}.bias"]

    x = torch.cat([state["cls_token"][0], linear(patch_vectors(image, patch), "patch_embed")]) + state["pos_embed"][0]
    for index in range(depth):
        block = f"blocks.{index}"
        x = x + attend(norm(x, f"{block}.attention_norm"), state, block, heads)
        x = x + linear(F.gelu(linear(norm(x, f"{block}.mlp_norm"), f"{block}.mlp.0")), f"{block}.mlp.3")
    return linear(norm(x[0], "norm"), "head")


@pytest.mark.parametrize("shape", [(3, 8, 12), (1, 8, 8)])
def test_the_tiny_vit_by_hand(shape: tuple[int, int, int]) -> None:
    net = backbone("tiny_vit", depth=2, dim=6, heads=3, head_dim=4, mlp_dim=5, patch=4)
    model, _ = net.create(shape, CLASSES, 0)
    model.eval()
    state = {name: tensor + 0.1 * torch.rand(tensor.shape) for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    images = torch.randn(3, *shape)
    expected = torch.stack([vit_by_hand(image, state, depth=2, heads=3, patch=4) for image in images])
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


# --- every registered backbone -------------------------------------------------------------------------------------


@pytest.fixture(params=BACKBONES.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


IMAGES = [entry for entry in map(DATASETS.create, DATASETS.names()) if len(entry.shape) == 3]


@pytest.mark.parametrize(
    ("name", "dataset"),
    first_of_each(product(BACKBONES.names(), IMAGES), ids=lambda name, dataset: f"{name}-{dataset.name}"),
)
def test_logits_have_the_datasets_classes(name: str, dataset: Dataset) -> None:
    if BACKBONES.get(name).takes != "images":
        with pytest.raises(UserError, match="the dataset has images"):
            BACKBONES.create(name).create(dataset.shape, 10, 0)
        return
    shape, classes = dataset.shape, dataset.classes or 10
    net = BACKBONES.create(name, **SUITED.get((name, shape), {}))
    with torch.device("meta"):
        model, _ = net.create(shape, classes, 0)
        logits = model(torch.zeros(2, *shape))
    expected = (len(model.defaults), 5 + classes) if net.predicts == "boxes" else (classes,)
    assert logits.shape == (2, *expected) and logits.dtype == torch.float32


def state_of(net: Backbone, seed: int) -> dict[str, Tensor]:
    return dict(create(net, seed)[0].state_dict())


def test_a_seed_gives_the_same_model_anywhere(name: str) -> None:
    torch.manual_seed(1)
    first = state_of(backbone(name), 5)
    torch.manual_seed(2)
    expected = torch.rand(2)
    torch.manual_seed(2)
    second = state_of(backbone(name), 5)
    assert torch.equal(torch.rand(2), expected)  # the caller's random state is left alone
    assert all(torch.equal(first[entry], second[entry]) for entry in first)


def test_every_parameter_is_used(name: str) -> None:
    model, groups = create(backbone(name))
    for parameter in model.parameters():  # some begin with zeros, which hide others
        parameter.data += 0.01 * torch.rand_like(parameter)
    logits = model.eval()(inputs_for(backbone(name), 16)).flatten(0, -2)
    F.cross_entropy(logits, torch.arange(len(logits)) % CLASSES).backward()
    for entry, parameter in model.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0, entry
        assert entry in groups.parameters


# --- options that do not fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "shape", "words"),
    [
        ("tiny_vit", {"patch": 3}, DIGITS, "patch 3 does not divide images of 8×8 pixels"),
        ("tiny_vit", {"patch": 4}, (1, 8, 10), "patch 4 does not divide images of 8×10 pixels"),
        ("tiny_vit", {"patch": 16}, DIGITS, "patch 16 does not divide images of 8×8 pixels"),
        ("convnet", {}, DIGITS, "kernel 5 with padding 0 leaves nothing of 8×8 images after convolution 2"),
        ("convnet", {"kernel": 40}, CIFAR, "kernel 40 with padding 0 leaves nothing of 32×32 images"),
        ("convnet", {"channels": (4, 4, 4, 4), "kernel": 3, "padding": 1}, DIGITS, "after convolution 4"),
        ("convnet", {}, (3, 32, 12), "leaves nothing of 32×12 images after convolution 2"),
        ("lenet", {}, DIGITS, "kernel 5 with padding 0 leaves nothing of 8×8 images after convolution 2"),
        ("lenet_bn", {}, DIGITS, "kernel 5 with padding 0 leaves nothing of 8×8 images after convolution 2"),
        ("alexnet_bn", {}, CIFAR, "leaves nothing of 32×32 images after convolution 5"),
        ("alexnet_bn", {}, DIGITS, "leaves nothing of 8×8 images after convolution 1"),
        ("vit", {}, DIGITS, "patch 16 does not divide images of 8×8 pixels"),
        ("vit", {"patch": 4}, (1, 8, 10), "patch 4 does not divide images of 8×10 pixels"),
        ("timm_model", {"model": "resnet81"}, CIFAR, "has no model 'resnet81'; did you mean 'resnet18'?"),
        ("timm_model", {"model": "~"}, CIFAR, "has no model '~'; timm.list_models()"),
        ("timm_model", {"model": "hf-hub:someone/something"}, CIFAR, "has no model 'hf-hub:someone/something'"),
        ("timm_model", {"model": "vit_tiny_patch16_224"}, (3, 40, 32), "patches of 16×16 of 'vit_tiny_patch16_224' do"),
        ("timm_model", {"model": "test_vit"}, (3, 40, 32), "'test_vit' does not take images of 3×40×32 (Input height"),
    ],
)
def test_options_that_do_not_fit_the_images_are_an_error_of_one_line(
    name: str, options: dict[str, Any], shape: tuple[int, int, int], words: str
) -> None:
    with pytest.raises(UserError) as error:
        BACKBONES.create(name, **options).create(shape, 10, 0)
    message = str(error.value)
    assert message.startswith(f"backbone {name}: ") and words in message and "\n" not in message


# --- backbone counts -------------------------------------------------------------------------------------------------


MNIST, COLOURS, PHOTO = (3, 28, 28), (3, 32, 32), (3, 224, 224)


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
        ("resnet50", COLOURS, 100, 23_712_932),
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
        COLOURS,
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
        COLOURS,
        {"cls_token": "(cls|dist)_token", "head": r"head(_dist)?\.(weight|bias)", "pos_embed": "pos_embed"},
    ),
    "resnet50": (
        COLOURS,
        {
            "conv": r"(conv1|layer\d\.\d\.(conv\d|downsample\.0))\.weight",
            "norm": r"(bn1|layer\d\.\d\.(bn\d|downsample\.1))\.\w+",
            "head": r"fc\.(weight|bias)",
        },
    ),
    "convnext_atto": (
        COLOURS,
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
    net, groups = made(named, COLOURS, 10)
    other, found = made("timm_model", COLOURS, 10, model=model)
    assert groups == found
    shapes = [[tuple(tensor.shape) for tensor in each.state_dict().values()] for each in (net, other)]
    assert shapes[0] == shapes[1]
