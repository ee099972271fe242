"""Modules that methods add to a Transformer: known sizes, formulas written out, a model that is otherwise as it was."""

import copy
import re
from math import sqrt

import pytest
import torch
from support.mistakes import line_of
from support.tiny import CLASSES, SHAPE, backbone, create, groups_of, method, run, spied
from torch import nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.engine.phases import roles_of
from pflcore.groups import Groups
from pflcore.methods import METHODS

PLUGINS = {
    "perfix": ("fedperfix", {"width": 6, "scale": 0.3}),
    "perfix-concat": ("fedperfix", {"width": 6, "mode": "concat"}),
    "prefix-z": ("prefix", {}),
    "prefix-r": ("prefix", {"init": "random", "scale": 2.0}),
    "tokens-r": ("prefix", {"kind": "tokens", "tokens": 3, "init": "random"}),
    "prompts": ("prompts", {"count": 4}),
    "adapters": ("adapters", {"width": 5}),
    "adapters-literal": ("adapters", {"width": 5, "form": "literal"}),
    "lora": ("lora", {"rank": 2, "alpha": 3.0, "projections": ("v", "q")}),
}
NEUTRAL = ("lora", "prefix-z", "adapters", "adapters-literal")  # they change nothing before they are trained
NETS = {"tiny_vit": backbone("tiny_vit", dropout=0.0), "vit": backbone("vit", depth=2, patch=4)}
IMAGES = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(1))
PHOTO = (3, 224, 224)
every_net = pytest.mark.parametrize("net", NETS)


def add(model, plugin):
    name, options = PLUGINS[plugin]
    return METHODS.create(name, **options).extend(model)


def plugged(net, plugin):
    """The model with a plugin, all parameters moved away from zeros and ones, its state; without it but these."""
    torch.manual_seed(0)
    model, without = (NETS[net].create(SHAPE, CLASSES, 3)[0].eval() for _ in range(2))
    add(model, plugin)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (0.2 if net == "tiny_vit" else 0.04) * torch.randn_like(parameter)
    without.load_state_dict(model.state_dict(), strict=False)
    return model.eval(), dict(model.state_dict()), without


def attention_of(model, net, block=0):
    return model.get_submodule(f"blocks.{block}.{'attention' if net == 'tiny_vit' else 'attn'}")


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_counts_on_vits():
    for name, options, size, count in [
        ("fedperfix", {"mode": "concat"}, "small", 3_551_232),
        ("fedperfix", {}, "base", 7_099_392),
        ("prefix", {}, "small", 3_548_160),
        ("prefix", {"kind": "tokens", "tokens": 1}, "small", 2 * 384 * 12),
        ("prompts", {}, "small", 46_080),
        ("adapters", {}, "small", 4_729_344),
        ("adapters", {"form": "literal"}, "small", 394_112),
        ("lora", {}, "small", 73_728),
    ]:
        with torch.device("meta"):
            model = BACKBONES.create("vit", size=size).build(PHOTO, 10)
            before = sum(parameter.numel() for parameter in model.parameters())
            METHODS.create(name, **options).extend(model)
        assert sum(parameter.numel() for parameter in model.parameters()) - before == count


@every_net
@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_model_is_otherwise_as_it_was_and_every_parameter_learns(net, plugin):
    other, model = (NETS[net].create(SHAPE, CLASSES, 3)[0] for _ in range(2))
    before, patterns = other.state_dict(), dict(NETS[net].patterns(model))
    old, added, after = Groups.assign(model, patterns).group_of, add(model, plugin), model.state_dict()
    assert [name for name in after if name in before] == list(before) and len(after) > len(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    groups = Groups.assign(model, {**patterns, **added})
    assert {entry: group for entry, group in groups.group_of.items() if group not in added} == old
    assert groups.select(added) == set(after) - set(before) and groups.parameters == set(after)  # no buffers
    for mode in (True, False):
        equal = torch.allclose(model.train(mode)(IMAGES), other.train(mode)(IMAGES), rtol=1e-5, atol=1e-6)
        assert equal is (plugin in NEUTRAL)
    model, _, _ = plugged(net, plugin)
    twin, logits = copy.deepcopy(model), model(IMAGES)
    F.cross_entropy(logits, torch.arange(3)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(twin(IMAGES), logits)  # a copy has modules of its own


def linear(x, state, name):
    return x @ state[f"{name}.weight"].t() + state[f"{name}.bias"]


def bottleneck(x, state, name="adapter"):
    return linear(linear(x, state, f"{name}.down").tanh(), state, f"{name}.up")


def by_hand(tokens, attention, prefixes, concat):
    """The attention of one image's tokens [length, dim], head by head; `made` is [P_k | P_v] with its scale."""
    state = dict(attention.state_dict())
    qkv = tokens @ state["qkv.weight"].t() + state.get("qkv.bias", torch.zeros(()))
    q, k, v = qkv.chunk(3, 1)
    more_k, more_v = prefixes.chunk(2, 1)
    keys, values = (torch.cat([k, more_k]), torch.cat([v, more_v])) if concat else (k + more_k, v + more_v)
    heads = zip(*(part.chunk(int(attention.heads), 1) for part in (q, keys, values)), strict=True)
    mixed = [(part @ key.t() / sqrt(part.shape[1])).softmax(-1) @ value for part, key, value in heads]
    return linear(torch.cat(mixed, 1), state, "out" if "out.weight" in state else "proj")


@every_net
@pytest.mark.parametrize("plugin", ["perfix", "perfix-concat", "prefix-r", "tokens-r"])
def test_attention_with_prefixes_by_hand(net, plugin):
    attention = attention_of(plugged(net, plugin)[0], net, block=1)
    state, expected = dict(attention.state_dict()), []
    tokens = torch.randn(3, 5, attention.get_submodule("qkv").in_features)
    for image in tokens:
        if plugin == "tokens-r":
            prefixes = 1.5 * state["prefix.tokens"]
        elif plugin == "prefix-r":
            prefixes = 2 * linear(image, state, "prefix")
        else:
            prefixes = (0.3 if plugin == "perfix" else 1.5) * bottleneck(image, state)
        expected.append(by_hand(image, attention, prefixes, plugin in ("perfix-concat", "tokens-r")))
    close(attention(tokens), torch.stack(expected))


@every_net
@pytest.mark.parametrize("form", ["adapters", "adapters-literal"])
def test_adapters_come_after_the_mlp_and_before_its_sum(net, form):
    model, state, without = plugged(net, form)
    norm1, norm2 = ("attention_norm", "mlp_norm") if net == "tiny_vit" else ("norm1", "norm2")
    for index in range(2):
        block = without.get_submodule(f"blocks.{index}")
        tokens = torch.randn(2, 5, block.get_submodule(norm1).weight.numel())
        middle = tokens + attention_of(without, net, index)(block.get_submodule(norm1)(tokens))
        inner = block.get_submodule("mlp")(block.get_submodule(norm2)(middle))
        adapter = "adapter" if form == "adapters-literal" else f"blocks.{index}.adapter"
        close(model.get_submodule(f"blocks.{index}")(tokens), middle + inner + bottleneck(inner, state, adapter))


@every_net
def test_prompts_are_appended_before_each_block_and_cut_off_after_it(net):
    model, state, without = plugged(net, "prompts")
    expected = tokens = torch.randn(2, 5, model.get_submodule("norm").weight.numel())
    for index in range(2):
        longer = torch.cat([expected, state[f"blocks.{index}.prompt.tokens"].expand(2, 4, -1)], 1)
        expected = without.get_submodule(f"blocks.{index}")(longer)[:, :5]
    close(model.get_submodule("blocks")(tokens), expected)
    begun = NETS[net].create(SHAPE, CLASSES, 3)[0]
    METHODS.create("prompts", count=50).extend(begun)
    for prompts in (begun.blocks[0].prompt.tokens, -begun.blocks[1].prompt.tokens):
        assert prompts.max().item() == pytest.approx(sqrt(6 / (3 * 4**2 + tokens.shape[2])), rel=0.05)


@every_net
def test_low_rank_updates_are_those_of_the_merged_weights(net):
    model, state, merged = plugged(net, "lora")
    for block in range(2):
        q, _, v = attention_of(merged, net, block).get_parameter("qkv.weight").data.chunk(3)
        stem = f"blocks.{block}.{'attention' if net == 'tiny_vit' else 'attn'}.lora"
        for part, rows in (("q", q), ("v", v)):
            rows += 1.5 * state[f"{stem}.b.{part}.weight"] @ state[f"{stem}.a.{part}.weight"]
    close(model(IMAGES), merged(IMAGES))


def test_what_of_lora_is_averaged():
    for averaged, shared in (("both", ["lora"]), ("a", ["lora.a"]), ("none", [])):
        entry = method("lora", averaged=averaged, also_personal=("head",))
        groups = groups_of(NETS["tiny_vit"], entry)
        roles = roles_of(entry, groups)
        assert roles.shared == groups.select(shared)
        assert roles.personal == groups.select(["lora", "head"]) - roles.shared


def test_a_of_ffa_lora_is_neither_trained_nor_sent():
    seen, net, a = [], backbone("tiny_vit"), "blocks.0.attention.lora.a.q.weight"
    result = run(spied(method("lora", train_a=False), seen), net)
    begun = create(net, 3, method("lora"))[0].state_dict()
    assert torch.equal(result.weights[a], begun[a]) and a not in seen[0][0].returned


@pytest.mark.parametrize("model", ["swin_tiny_patch4_window7_224", "beit_base_patch16_224", "mobilevit_s"])
def test_a_model_without_such_attention_is_an_error_of_one_line(model):
    words = "image patches" if model == "mobilevit_s" else "one projection to queries, keys and values"
    with torch.device("meta"):
        net = BACKBONES.create("timm_model", model=model).build(PHOTO, 10)
        line = line_of(METHODS.create("prompts").extend, net)
    assert re.match(rf"prompt tuning needs a Transformer .*{words}.* plain ViT", line)
