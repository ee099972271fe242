"""Backbones: sizes that are known, forward passes written out, and what every registered one keeps to."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
import torch
from pflcore.backbones.alexnet_bn import _Grid
from support.tiers import first_of_each
from support.tiny import CLASSES, backbone, create, inputs_for
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS, Dataset
from pflcore.errors import UserError
from pflcore.groups import Groups

Shape = tuple[int, ...]
DIGITS, MNIST, CIFAR, PHOTO, TEXT = (1, 8, 8), (3, 28, 28), (3, 32, 32), (3, 224, 224), (80,)
FINE = {"kernel": 3, "stride": 1, "padding": 1}
# Options that a backbone needs for images of a size; none where its defaults do.
SUITED: dict[tuple[str, Shape], dict[str, Any]] = {
    **{(name, DIGITS): {"kernel": 3, "padding": 1} for name in ("convnet", "lenet", "lenet_bn")},
    **{("alexnet_bn", shape): FINE for shape in ((1, 16, 16), (1, 28, 28), MNIST, CIFAR)},
    ("alexnet_bn", DIGITS): {**FINE, "pool_padding": 1},
    ("vit", DIGITS): {"patch": 4},
    **{("vit", (channels, 28, 28)): {"patch": 7} for channels in (1, 3)},
    ("vit", (3, 300, 300)): {"patch": 20},
}


def made(name: str, shape: Shape, classes: int, **options: Any) -> tuple[nn.Module, Groups]:
    """A model without memory for its numbers, and its groups."""
    with torch.device("meta"):
        return BACKBONES.create(name, **options).create(shape, classes, 0)


def count(model: nn.Module, groups: Groups, *wanted: str) -> int:
    """Parameters, of the wanted groups only if any are named."""
    names = groups.select(wanted or ("all",))
    return sum(tensor.numel() for name, tensor in model.named_parameters() if name in names)


# --- sizes that papers print, or that timm and released code have --------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "shape", "totals"),
    [
        ("convnet", {}, CIFAR, {10: 121_182, 100: 128_832}),
        *(
            ("tiny_vit", {"depth": depth}, CIFAR, {10: 16_266 + depth * 328_704, 100: 27_876 + depth * 328_704})
            for depth in (1, 6, 8)
        ),
        ("lenet", {}, MNIST, {10: 44_726}),
        ("lenet_bn", {}, MNIST, {10: 45_178}),
        ("lenet_bn", {"attention": "se"}, MNIST, {10: 45_318}),
        ("lenet_bn", {"attention": "eca"}, MNIST, {10: 45_184}),
        ("lenet_bn", {"attention": "ca"}, MNIST, {10: 45_798}),
        ("lenet_bn", {"attention": "hybrid"}, MNIST, {10: 45_950}),
        ("alexnet_bn", {}, PHOTO, {10: 57_063_498, 31: 57_149_535, 65: 57_288_833}),
        ("alexnet_bn", {"attention": "se"}, PHOTO, {31: 57_189_471}),
        ("alexnet_bn", {"attention": "eca"}, PHOTO, {31: 57_149_550}),
        ("alexnet_bn", {"attention": "ca"}, PHOTO, {31: 57_184_227}),
        ("alexnet_bn", {"attention": "hybrid"}, PHOTO, {31: 57_224_193}),
        ("resnet50", {}, PHOTO, {1000: 25_557_032, 100: 23_712_932}),
        ("vit", {}, PHOTO, {1000: 5_717_416, 100: 5_543_716, 11: 5_526_539}),
        ("vit", {"size": "small"}, PHOTO, {1000: 22_050_664, 100: 21_704_164}),
        ("vit", {"size": "base"}, PHOTO, {1000: 86_567_656, 100: 85_875_556}),
        ("lstm", {}, TEXT, {100: 825_220}),
        ("lstm", {}, (5,), {100: 825_220}),
        ("language_transformer", {}, TEXT, {100: 683_008}),
    ],
)
def test_numbers_of_parameters(name: str, options: dict[str, Any], shape: Shape, totals: dict[int, int]) -> None:
    for classes, total in totals.items():
        assert count(*made(name, shape, classes, **options)) == total
    if options.keys() <= {"attention", "size"}:  # the docstring prints it
        assert f"{total:,}" in (BACKBONES.get(name).__doc__ or "") or classes not in (10, 31, 100)


def test_groups_and_feature_maps() -> None:
    model, groups = made("tiny_vit", CIFAR, 10)
    sizes = {"attention.qkv": 196_608, "attention.out": 65_664, "mlp": 65_920}
    assert all(count(model, groups, name) == 8 * size for name, size in sizes.items())
    model, groups = made("language_transformer", TEXT, 100)
    sizes = {"embedding": 12_800, "norm": 1_280, "attention.qkv": 393_216, "attention.out": 131_072, "mlp": 131_840}
    assert (
        all(count(model, groups, name) == size for name, size in sizes.items())
        and count(model, groups, "head") == 12_800
    )
    model, groups = made("vit", PHOTO, 10)
    assert count(model, groups, "attention") == 1_778_688 and count(model, groups, "norm") == 25 * 2 * 192
    assert count(model, groups, "pos_embed") == 197 * 192 and model.blocks[3].attn.num_heads == 3
    model, groups = made("alexnet_bn", PHOTO, 31, attention="hybrid")
    sides, images = {}, torch.zeros(2, *PHOTO, device="meta")
    for name, layer in model.named_children():
        images = layer(images)
        sides[name] = tuple(images.shape[1:])
    assert sides["conv1"] == (64, 55, 55) and sides["conv3_relu"] == (384, 13, 13) and sides["flatten"] == (9216,)
    places = {"conv1_pool": (64, 27, 27), "conv2_pool": (192, 13, 13), "conv3_relu": (384, 13, 13)}
    for before, size in {**places, "conv4_relu": (256, 13, 13), "conv5_pool": (256, 6, 6)}.items():
        name = f"{before.partition('_')[0]}_attention"
        assert list(sides)[list(sides).index(name) - 1] == before and sides[name] == size
    for height, width in ((7, 7), (1, 1), (13, 5), (3, 12)):
        features = torch.randn(2, 3, height, width)
        torch.testing.assert_close(_Grid(6)(features), F.adaptive_avg_pool2d(features, 6))


# --- forward passes written out ------------------------------------------------------------------------------------


def test_the_convnet_by_hand() -> None:
    model, _ = BACKBONES.create("convnet").create(CIFAR, 10, 0)
    state = model.state_dict()
    images = torch.randn(3, *CIFAR)
    x = F.max_pool2d(F.conv2d(images, state["conv1.weight"], state["conv1.bias"]).relu(), 2)
    x = F.max_pool2d(F.conv2d(x, state["conv2.weight"], state["conv2.bias"]).relu(), 2)
    x = F.linear(x.flatten(1), state["fc1.weight"], state["fc1.bias"]).relu()
    x = F.linear(x, state["fc2.weight"], state["fc2.bias"]).relu()
    torch.testing.assert_close(model(images), F.linear(x, state["head.weight"], state["head.bias"]))


def vit_by_hand(image: Tensor, state: dict[str, Tensor], depth: int, heads: int, patch: int) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].t() + state[f"{name}.bias"]

    def attend(x: Tensor, block: str) -> Tensor:
        inner = state[f"{block}.attention.qkv.weight"].shape[0] // 3
        q, k, v = (x @ part.t() for part in state[f"{block}.attention.qkv.weight"].split(inner))
        width, mixed = inner // heads, []
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            mixed.append(((q[:, own] @ k[:, own].t()) / width**0.5).softmax(-1) @ v[:, own])
        return linear(torch.cat(mixed, 1), f"{block}.attention.out")

    _, height, breadth = image.shape
    # Row by row of patches; inside a patch row, column, channel.
    corners = [(top, left) for top in range(0, height, patch) for left in range(0, breadth, patch)]
    patches = [image[:, y : y + patch, x : x + patch].permute(1, 2, 0).flatten() for y, x in corners]
    x = torch.cat([state["cls_token"][0], linear(torch.stack(patches), "patch_embed")]) + state["pos_embed"][0]
    for index in range(depth):
        block = f"blocks.{index}"
        x = x + attend(norm(x, f"{block}.attention_norm"), block)
        x = x + linear(F.gelu(linear(norm(x, f"{block}.mlp_norm"), f"{block}.mlp.0")), f"{block}.mlp.3")
    return linear(norm(x[0], "norm"), "head")


def test_the_tiny_vit_by_hand() -> None:
    net = backbone("tiny_vit", depth=2, dim=6, heads=3, head_dim=4, mlp_dim=5, patch=4)
    model, _ = net.create((3, 8, 12), CLASSES, 0)
    state = {name: tensor + 0.1 * torch.rand(tensor.shape) for name, tensor in model.state_dict().items()}
    model.eval().load_state_dict(state)
    images = torch.randn(3, 3, 8, 12)
    expected = torch.stack([vit_by_hand(image, state, depth=2, heads=3, patch=4) for image in images])
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


# --- every registered backbone -------------------------------------------------------------------------------------

IMAGES = [entry for entry in map(DATASETS.create, DATASETS.names()) if len(entry.shape) == 3]


@pytest.mark.parametrize(
    ("name", "dataset"),
    first_of_each(product(BACKBONES.names(), IMAGES), ids=lambda name, dataset: f"{name}-{dataset.name}"),
)
def test_logits_have_the_datasets_classes(name: str, dataset: Dataset) -> None:
    if BACKBONES.get(name).takes != "images":
        with pytest.raises(
            UserError, match=rf"^backbone {name} takes text, the dataset has images; use alexnet_bn, .*vit$"
        ):
            BACKBONES.create(name).create(dataset.shape, 10, 0)
        return
    shape, classes = dataset.shape, dataset.classes or 10
    net = BACKBONES.create(name, **SUITED.get((name, shape), {}))
    with torch.device("meta"):
        model, _ = net.create(shape, classes, 0)
        logits = model(torch.zeros(2, *shape))
    expected = (len(model.defaults), 5 + classes) if net.predicts == "boxes" else (classes,)
    assert logits.shape == (2, *expected) and logits.dtype == torch.float32


@pytest.mark.parametrize("name", BACKBONES.names())
def test_a_seed_gives_the_same_model_anywhere_and_every_parameter_is_used(name: str) -> None:
    torch.manual_seed(1)
    first = create(backbone(name), 5)[0].state_dict()
    torch.manual_seed(2)
    expected = torch.rand(2)
    torch.manual_seed(2)
    model, groups = create(backbone(name), 5)
    assert torch.equal(torch.rand(2), expected)  # the caller's random state is left alone
    assert all(torch.equal(first[entry], tensor) for entry, tensor in model.state_dict().items())
    for parameter in model.parameters():  # some begin with zeros, which hide others
        parameter.data += 0.01 * torch.rand_like(parameter)
    logits = model.eval()(inputs_for(backbone(name), 16)).flatten(0, -2)
    F.cross_entropy(logits, torch.arange(len(logits)) % CLASSES).backward()
    for entry, parameter in model.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0, entry
        assert entry in groups.parameters


@pytest.mark.parametrize(
    ("name", "options", "shape", "words"),
    [
        ("tiny_vit", {"patch": 4}, (1, 8, 10), "patch 4 does not divide images of 8×10 pixels"),
        ("tiny_vit", {"patch": 16}, DIGITS, "patch 16 does not divide images of 8×8 pixels"),
        ("convnet", {}, DIGITS, "kernel 5 with padding 0 leaves nothing of 8×8 images after convolution 2"),
        ("convnet", {"channels": (4, 4, 4, 4), "kernel": 3, "padding": 1}, DIGITS, "after convolution 4"),
        ("convnet", {}, (3, 32, 12), "leaves nothing of 32×12 images after convolution 2"),
        ("alexnet_bn", {}, CIFAR, "leaves nothing of 32×32 images after convolution 5"),
        ("vit", {"patch": 4}, (1, 8, 10), "patch 4 does not divide images of 8×10 pixels"),
        ("timm_model", {"model": "resnet81"}, CIFAR, "has no model 'resnet81'; did you mean 'resnet18'?"),
        ("timm_model", {"model": "hf-hub:someone/something"}, CIFAR, "has no model 'hf-hub:someone/something'"),
        ("timm_model", {"model": "vit_tiny_patch16_224"}, (3, 40, 32), "patches of 16×16 of 'vit_tiny_patch16_224' do"),
        ("timm_model", {"model": "test_vit"}, (3, 40, 32), "'test_vit' does not take images of 3×40×32 (Input height"),
        (
            "language_transformer",
            {},
            (201,),
            "positions 200 are too few for texts of 201 characters; use positions: 201",
        ),
    ],
)
def test_options_that_do_not_fit_are_an_error_of_one_line(
    name: str, options: dict[str, Any], shape: Shape, words: str
) -> None:
    with pytest.raises(UserError) as error:
        BACKBONES.create(name, **options).create(shape, 10, 0)
    message = str(error.value)
    assert message.startswith(f"backbone {name}: ") and words in message and "\n" not in message


# --- any model of timm: names of state entries, as patterns, by the group that a rule must put them in ---------------

FOUND: dict[str, tuple[Shape, dict[str, str]]] = {
    "deit_tiny_distilled_patch16_224": (
        CIFAR,
        {"cls_token": "(cls|dist)_token", "head": r"head(_dist)?\.(weight|bias)", "pos_embed": "pos_embed"},
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


@pytest.mark.parametrize(("named", "model"), [("vit", "vit_tiny_patch16_224"), ("resnet50", "resnet50")])
def test_rules_and_patterns_agree(named: str, model: str) -> None:
    (net, groups), (other, found) = made(named, CIFAR, 10), made("timm_model", CIFAR, 10, model=model)
    shapes = [[tuple(tensor.shape) for tensor in each.state_dict().values()] for each in (net, other)]
    assert groups == found and shapes[0] == shapes[1]
