"""Backbones: sizes that are known, forward passes written out, and what every registered one keeps to."""

import math
import re
from itertools import pairwise, product

import pytest
import torch
from support.mistakes import line_of
from support.tiers import first_of_each
from support.tiny import CLASSES, SHAPE, backbone, create, inputs_for
from torch import nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS

DIGITS, MNIST, CIFAR, PHOTO, TEXT = (1, 8, 8), (3, 28, 28), (3, 32, 32), (3, 224, 224), (80,)
GREY, SIGNALS = (1, 28, 28), (9, 128)


def build_model(name, shape, classes, **options):
    """A model without memory for its numbers, and its groups."""
    with torch.device("meta"):
        return BACKBONES.create(name, **options).create(shape, classes, 0)


def count(model, groups, wanted="all"):
    """Parameters of a group."""
    names = groups.select([wanted])
    return sum(tensor.numel() for name, tensor in model.named_parameters() if name in names)


# --- sizes that papers print, or that timm and released code have --------------------------------------------------


LENET = {"none": 45_178, "se": 45_318, "eca": 45_184, "ca": 45_798, "hybrid": 45_950}
ALEXNET = {"se": 57_189_471, "eca": 57_149_550, "ca": 57_184_227, "hybrid": 57_224_193}
SIZES = [
    ("convnet", CIFAR, {}, {10: 121_182, 100: 128_832}),
    *(("tiny_vit", CIFAR, {"depth": n}, {10: 16_266 + n * 328_704, 100: 27_876 + n * 328_704}) for n in (1, 6)),
    ("tiny_vit", CIFAR, {}, {10: 2_645_898, 100: 2_657_508}),
    ("lenet", MNIST, {}, {10: 44_726}),
    *(("lenet_bn", MNIST, {"attention": kind}, {10: total}) for kind, total in LENET.items()),
    ("alexnet_bn", PHOTO, {}, {10: 57_063_498, 31: 57_149_535, 65: 57_288_833}),
    *(("alexnet_bn", PHOTO, {"attention": kind}, {31: total}) for kind, total in ALEXNET.items()),
    ("resnet50", PHOTO, {}, {1000: 25_557_032, 100: 23_712_932}),
    ("vit", PHOTO, {}, {100: 5_543_716}),
    ("vit", PHOTO, {"size": "small"}, {100: 21_704_164}),
    ("vit", PHOTO, {"size": "base"}, {100: 85_875_556}),
    ("mlp", GREY, {}, {10: 199_210}),
    ("linear", GREY, {}, {10: 7_850}),
    ("convnet1d", SIGNALS, {}, {6: 235_014}),
    ("convnet1d", SIGNALS, {"hidden": (1024, 512)}, {6: 2_253_958}),
    ("lstm", TEXT, {}, {100: 825_220}),
    ("language_transformer", TEXT, {}, {100: 683_008}),
]
GROUPS = [
    ("tiny_vit", CIFAR, {"attention.qkv": 8 * 196_608, "attention.out": 8 * 65_664, "mlp": 8 * 65_920}),
    ("language_transformer", TEXT, {"attention.qkv": 393_216, "attention.out": 131_072, "mlp": 131_840}),
    ("language_transformer", TEXT, {"embedding": 12_800, "norm": 1_280, "head": 12_800}),
    ("vit", PHOTO, {"attention": 1_778_688, "norm": 25 * 2 * 192, "pos_embed": 197 * 192}),
]


def test_numbers_of_parameters():
    for name, shape, options, totals in SIZES:
        for classes, total in totals.items():
            assert count(*build_model(name, shape, classes, **options)) == total
            assert "depth" in options or f"{total:,}" in BACKBONES.get(name).__doc__
    for name, shape, sizes in GROUPS:
        model, groups = build_model(name, shape, 100)
        assert {group: count(model, groups, group) for group in sizes} == sizes


def test_the_feature_maps_of_alexnet():
    model, _ = build_model("alexnet_bn", PHOTO, 31, attention="hybrid")
    sides, images = {}, torch.zeros(2, *PHOTO, device="meta")
    for name, layer in model.named_children():
        images = layer(images)
        sides[name] = tuple(images.shape[1:])
    assert sides["conv1"] == (64, 55, 55) and sides["flatten"] == (9216,)
    maps = [(before, *sides[name]) for before, name in pairwise(sides) if name.endswith("_attention")]
    assert maps[:3] == [("conv1_pool", 64, 27, 27), ("conv2_pool", 192, 13, 13), ("conv3_relu", 384, 13, 13)]
    assert maps[3:] == [("conv4_relu", 256, 13, 13), ("conv5_pool", 256, 6, 6)]
    grid = backbone("alexnet_bn", grid=6).create(SHAPE, CLASSES, 0)[0].average
    for height, width in ((7, 7), (1, 1), (13, 5), (3, 12)):
        features = torch.randn(2, 3, height, width)
        torch.testing.assert_close(grid(features), F.adaptive_avg_pool2d(features, 6))


# --- forward passes written out ------------------------------------------------------------------------------------

LENGTH, CHARACTERS = 7, 11
TEXTS = torch.randint(CHARACTERS, (5, LENGTH), generator=torch.Generator().manual_seed(0))


def moved(model):
    """The model in evaluation mode, its entries moved away from zeros and ones; they, a norm and a layer by name."""
    state = {name: tensor + 0.1 * torch.rand(tensor.shape) for name, tensor in model.state_dict().items()}
    model.eval().load_state_dict(state)

    def norm(x, name, eps=1e-5):
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    def linear(x, name):
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    return model, state, norm, linear


def test_the_convnet_by_hand():
    model, _ = BACKBONES.create("convnet").create(CIFAR, 10, 0)
    images = x = torch.randn(3, *CIFAR)
    parameters = iter(model.parameters())
    conv1, conv2, fc1, fc2, head = zip(parameters, parameters, strict=True)
    for layer in (conv1, conv2):
        x = F.max_pool2d(F.conv2d(x, *layer).relu(), 2)
    x = F.linear(F.linear(x.flatten(1), *fc1).relu(), *fc2).relu()
    torch.testing.assert_close(model(images), F.linear(x, *head))


def test_the_convnet_of_signals_by_hand():
    model, _ = BACKBONES.create("convnet1d", kernel=3, channels=(4, 5), hidden=(7,)).create((2, 13), 3, 0)
    signals = x = torch.randn(3, 2, 13)
    parameters = iter(model.parameters())
    conv1, conv2, fc1, head = zip(parameters, parameters, strict=True)
    for weight, bias in (conv1, conv2):
        windows = x.unfold(2, 3, 1)  # samples, channels, times, kernel
        x = (torch.einsum("nctk,ock->not", windows, weight) + bias[:, None]).relu()
        x = torch.stack([x[..., start : start + 2].amax(-1) for start in range(0, x.shape[-1] - 1, 2)], -1)
    torch.testing.assert_close(model(signals), F.linear(F.linear(x.flatten(1), *fc1).relu(), *head))


def test_the_tiny_vit_by_hand():
    net = backbone("tiny_vit", dim=6, heads=3, head_dim=4, mlp_dim=5, patch=4)
    model, state, norm, linear = moved(net.create((3, 8, 12), CLASSES, 0)[0])
    images = torch.randn(3, 3, 8, 12)
    # Row by row of patches; inside a patch row, column, channel.
    corners = [(top, left) for top in (0, 4) for left in (0, 4, 8)]
    patches = [images[:, :, y : y + 4, x : x + 4].permute(0, 2, 3, 1).flatten(1) for y, x in corners]
    tokens = linear(torch.stack(patches, 1), "patch_embed")
    x = torch.cat([state["cls_token"].expand(3, -1, -1), tokens], 1) + state["pos_embed"]
    for block in ("blocks.0", "blocks.1"):
        qkv = linear(norm(x, f"{block}.attention_norm"), f"{block}.attention.qkv").chunk(3, 2)
        q, k, v = (part.unflatten(2, (3, 4)).transpose(1, 2) for part in qkv)
        mixed = ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(mixed, f"{block}.attention.out")
        x = x + linear(F.gelu(linear(norm(x, f"{block}.mlp_norm"), f"{block}.mlp.0")), f"{block}.mlp.3")
    torch.testing.assert_close(model(images), linear(norm(x[:, 0], "norm"), "head"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 3])
def test_the_lstm_is_that_of_pytorch(layers):
    """Names, shapes, initial bytes, outputs and gradients."""
    torch.manual_seed(0)
    table, reference = nn.Embedding(CHARACTERS, 3), nn.LSTM(3, 6, layers, batch_first=True)
    modules = nn.ModuleDict({"embedding": table, "lstm": reference, "head": nn.Linear(6, CHARACTERS)})
    torch.manual_seed(0)
    model = BACKBONES.create("lstm", embedding=3, hidden=6, layers=layers).build((LENGTH,), CHARACTERS)
    state, expected = model.state_dict(), modules.state_dict()
    assert list(state) == list(expected) and all(torch.equal(state[key], expected[key]) for key in state)
    logits, actual = modules["head"](reference(table(TEXTS))[0]), model(TEXTS)
    torch.testing.assert_close(actual, logits)
    pairs = ((logits, modules), (actual, model))
    slopes, others = (torch.autograd.grad(logits_.square().sum(), list(each.parameters())) for logits_, each in pairs)
    torch.testing.assert_close(others, slopes)


@pytest.mark.parametrize("mask, dim", [("causal", 6), ("none", 5)])
def test_the_transformer_of_texts_by_hand(mask, dim):
    options = {"dim": dim, "heads": 3, "head_dim": 4, "mlp_dim": 5, "positions": 9, "attention_mask": mask}
    net = BACKBONES.create("language_transformer", **options)
    model, state, norm, linear = moved(net.create((LENGTH,), CHARACTERS, 0)[0])

    def wave(position, index):
        angle = position / 10_000 ** ((index - index % 2) / dim)
        return math.cos(angle) if index % 2 else math.sin(angle)

    waves = torch.tensor([[wave(position, index) for index in range(dim)] for position in range(LENGTH)])
    x = norm(state["embedding.weight"][TEXTS] + waves, "norm", 1e-6)
    for block in ("blocks.0", "blocks.1"):
        parts = (linear(x, f"{block}.attention.{part}").unflatten(2, (3, 4)).transpose(1, 2) for part in "qkv")
        mixed = F.scaled_dot_product_attention(*parts, is_causal=mask == "causal").transpose(1, 2).flatten(2)
        x = norm(x + linear(mixed, f"{block}.attention.out"), f"{block}.attention_norm", 1e-6)
        x = norm(x + linear(linear(x, f"{block}.mlp.0").relu(), f"{block}.mlp.2"), f"{block}.mlp_norm", 1e-6)
    torch.testing.assert_close(model(TEXTS), linear(x, "head") / dim**0.5, rtol=1e-4, atol=1e-5)


# --- every registered backbone -------------------------------------------------------------------------------------

FINE = {"kernel": 3, "stride": 1, "padding": 1}
# Options that a backbone needs for images of a size; none where its defaults do.
SUITED = {
    **{(name, DIGITS): {"kernel": 3, "padding": 1} for name in ("convnet", "lenet", "lenet_bn")},
    **{("alexnet_bn", shape): FINE for shape in ((1, 16, 16), (1, 28, 28), MNIST, CIFAR)},
    ("alexnet_bn", DIGITS): {**FINE, "pool_padding": 1},
    ("vit", (3, 300, 300)): {"patch": 20},
    **{("vit", shape): {"patch": patch} for shape, patch in ((DIGITS, 4), ((1, 28, 28), 7), (MNIST, 7))},
}
IMAGES = [entry for entry in map(DATASETS.create, DATASETS.names()) if entry.kind == "images"]
CASES = product((name for name in BACKBONES.names() if "images" in BACKBONES.get(name).takes), IMAGES)


@pytest.mark.parametrize("name, dataset", first_of_each(CASES, ids=lambda name, dataset: f"{name}-{dataset.name}"))
def test_logits_have_the_datasets_classes(name, dataset):
    shape, classes = dataset.shape, dataset.classes or 10
    net = BACKBONES.create(name, **SUITED.get((name, shape), {}))
    with torch.device("meta"):
        model, _ = net.create(shape, classes, 0)
        logits = model(torch.zeros(2, *shape))
    expected = (len(model.defaults), 5 + classes) if net.predicts == "boxes" else (classes,)
    assert logits.shape == (2, *expected) and logits.dtype == torch.float32


@pytest.mark.parametrize("name", BACKBONES.names())
def test_a_seed_gives_the_same_model_anywhere_whose_parameters_are_all_used_and_in_a_group(name):
    torch.manual_seed(1)
    first, before = create(backbone(name), 5)[0].state_dict(), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random state is left alone
    torch.manual_seed(2)
    model, groups = create(backbone(name), 5)
    assert all(torch.equal(first[entry], tensor) for entry, tensor in model.state_dict().items())
    for parameter in model.parameters():  # some begin with zeros, which hide others
        parameter.data += 0.01 * torch.rand_like(parameter)
    logits = model.eval()(inputs_for(backbone(name), 16)).flatten(0, -2)
    F.cross_entropy(logits, torch.arange(len(logits)) % CLASSES).backward()
    for entry, parameter in model.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0, entry
    assert groups.parameters == {entry for entry, _ in model.named_parameters()}
    assert list(groups.group_of) == list(model.state_dict()) and "head" in groups.names()
    assert set(groups.names()) <= set(BACKBONES.get(name).groups)


@pytest.mark.parametrize(
    "name, options, shape, words",
    [
        ("tiny_vit", {"patch": 4}, (1, 8, 10), "patch 4 does not divide images of 8×10 pixels"),
        ("convnet", {}, DIGITS, "kernel 5 with padding 0 leaves nothing of 8×8 images after convolution 2"),
        ("alexnet_bn", {}, CIFAR, "leaves nothing of 32×32 images after convolution 5"),
        ("vit", {"patch": 4}, (1, 8, 10), "patch 4 does not divide images of 8×10 pixels"),
        ("timm_model", {"model": "resnet81"}, CIFAR, "has no model 'resnet81'; did you mean 'resnet18'?"),
        ("timm_model", {"model": "hf-hub:someone/something"}, CIFAR, "has no model 'hf-hub:someone/something'"),
        ("timm_model", {"model": "vit_tiny_patch16_224"}, (3, 40, 32), "patches of 16×16 of 'vit_tiny_patch16_224' do"),
        ("timm_model", {"model": "test_vit"}, (3, 40, 32), "'test_vit' does not take images of 3×40×32 (Input height"),
        ("language_transformer", {}, (201,), "positions 200 are too few for texts of 201 characters"),
        ("convnet", {}, (80,), "convnet takes images, the dataset is text; use language_transformer or lstm"),
        ("convnet", {}, SIGNALS, "convnet takes images, the dataset has arrays; use convnet1d, linear or mlp"),
        ("mlp", {}, (80,), "mlp takes images or arrays, the dataset is text; use language_transformer or lstm"),
        ("convnet1d", {}, (9, 23), "kernel 9 with padding 0 leaves nothing of 23 times after convolution 2"),
        ("lstm", {}, DIGITS, "lstm takes text, the dataset has images; use alexnet_bn, "),
    ],
)
def test_options_that_do_not_fit_are_an_error_of_one_line(name, options, shape, words):
    line = line_of(lambda: BACKBONES.create(name, **options).create(shape, 10, 0))
    assert line.startswith(f"backbone {name}") and words in line


# --- any model of timm: names of state entries, as patterns, by the group that a rule must put them in ---------------

DEIT, SWIN = "deit_tiny_distilled_patch16_224", "swin_tiny_patch4_window7_224"
STEM, BLOCK = r"stem\.0|stages\.\d\.downsample\.1", r"stages\.\d\.blocks\.\d"
FOUND = [
    (DEIT, CIFAR, "cls_token", "(cls|dist)_token"),
    (DEIT, CIFAR, "head", r"head(_dist)?\.(weight|bias)"),
    (DEIT, CIFAR, "pos_embed", "pos_embed"),
    ("convnext_atto", CIFAR, "conv", rf"({STEM}|{BLOCK}\.conv_dw)\.(weight|bias)"),
    ("convnext_atto", CIFAR, "mlp", rf"{BLOCK}\.mlp\.fc[12]\.(weight|bias)"),
    ("convnext_atto", CIFAR, "other", rf"{BLOCK}\.gamma"),
    (SWIN, PHOTO, "attention.other", r"layers\.\d\.blocks\.\d\.attn\.relative_position_bias_table"),
    (SWIN, PHOTO, "fc", r"layers\.\d\.downsample\.reduction\.weight"),
]


def test_rules_find_the_groups_of_a_model_of_timm():
    models = {model: build_model("timm_model", shape, 10, model=model) for model, shape, *_ in FOUND}
    for model, _, group, pattern in FOUND:
        net, groups = models[model]
        names = {name for name in groups.group_of if re.fullmatch(pattern, name)}
        assert names and {name for name, group_ in groups.group_of.items() if group_ == group} == names, group
        assert list(groups.group_of) == list(net.state_dict())


@pytest.mark.parametrize("named, model", [("vit", "vit_tiny_patch16_224"), ("resnet50", "resnet50")])
def test_rules_and_patterns_agree(named, model):
    (net, groups), (other, actual) = build_model(named, CIFAR, 10), build_model("timm_model", CIFAR, 10, model=model)
    shapes = [[tuple(tensor.shape) for tensor in each.state_dict().values()] for each in (net, other)]
    assert groups == actual and shapes[0] == shapes[1]
