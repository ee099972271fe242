"""Modules that methods add to a Transformer: known sizes, formulas written out, a model that is otherwise as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import pytest
import torch
from support.tiny import CLASSES, SHAPE, backbone
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES, Backbone
from pflcore.errors import UserError
from pflcore.groups import Groups
from pflcore.methods import METHODS
from pflcore.methods._blocks import Block

Add = Callable[[nn.Module], Mapping[str, str]]


def by(name: str, **options: Any) -> Add:
    """What a method with these options adds to a model."""
    return METHODS.create(name, **options).extend


PLUGINS: dict[str, Add] = {
    "perfix": by("fedperfix", width=6),
    "perfix-concat": by("fedperfix", width=6, mode="concat"),
    "prefix-z": by("prefix"),
    "prefix-r": by("prefix", init="random"),
    "tokens-z": by("prefix", kind="tokens", tokens=3),
    "tokens-r": by("prefix", kind="tokens", tokens=3, init="random"),
    "prompts": by("prompts", count=4),
    "adapters": by("adapters", width=5),
    "adapters-literal": by("adapters", width=5, form="literal"),
    "lora": by("lora", rank=3),
    "lora-k": by("lora", rank=2, projections=("k",)),
}
NEUTRAL = ("lora", "lora-k", "prefix-z", "adapters", "adapters-literal")  # they change nothing before they are trained
NETS: dict[str, Backbone] = {"tiny_vit": backbone("tiny_vit", dropout=0.0), "vit": backbone("vit", depth=2, patch=4)}
PHOTO = (3, 224, 224)


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plain(net: str) -> nn.Module:
    return NETS[net].create(SHAPE, CLASSES, 3)[0].eval()


def plugged(net: str, add: Add) -> nn.Module:
    """The same model with a plugin, all parameters moved away from zeros and ones, as far as its width allows."""
    torch.manual_seed(0)
    model = plain(net)
    add(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (0.2 if net == "tiny_vit" else 0.04) * torch.randn_like(parameter)
    return model.eval()


def images(count: int = 3) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def attention_of(model: nn.Module, net: str, block: int = 0) -> nn.Module:
    return model.get_submodule(f"blocks.{block}.{'attention' if net == 'tiny_vit' else 'attn'}")


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


# --- sizes ---------------------------------------------------------------------------------------------------------


def added(add: Add, size: str = "small", depth: int = 12) -> int:
    """Parameters of a plugin in a ViT on photographs, without memory for them."""
    with torch.device("meta"):
        model = BACKBONES.create("vit", size=size, depth=depth).build(PHOTO, 10)
        before = sum(parameter.numel() for parameter in model.parameters())
        add(model)
    return sum(parameter.numel() for parameter in model.parameters()) - before


@pytest.mark.parametrize(
    ("add", "size", "count"),
    [
        (by("fedperfix"), "small", 12 * 295_936),
        (by("fedperfix", mode="concat"), "small", 3_551_232),
        (by("fedperfix"), "tiny", 1_777_152),
        (by("fedperfix"), "base", 7_099_392),
        (by("prefix"), "small", 3_548_160),
        (by("prefix", kind="tokens", tokens=1), "small", 2 * 384 * 12),
        (by("prompts"), "small", 46_080),
        (by("adapters"), "small", 4_729_344),
        (by("adapters", form="literal"), "small", 394_112),
        (by("lora"), "small", 73_728),
    ],
)
def test_counts_on_vits(add: Add, size: str, count: int) -> None:
    assert added(add, size) == count


# --- the model is otherwise as it was ------------------------------------------------------------------------------


def test_entries_of_the_model_stay_as_they_were(net: str, plugin: str) -> None:
    before, model = plain(net).state_dict(), plain(net)
    PLUGINS[plugin](model)
    after = model.state_dict()
    kept = [name for name in after if name in before]
    assert kept == list(before) and len(after) > len(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert set(after) == {name for name, _ in model.named_parameters()}  # nothing twice, no buffers


GROUP = {
    "perfix": "adapter",
    "prefix": "prefix",
    "tokens": "prefix",
    "prompts": "prompt",
    "adapters": "adapter",
    "lora": "lora",
}


@pytest.mark.parametrize(
    ("name", "options"), [("tiny_vit", {}), ("vit", {"patch": 4}), ("timm_model", {"model": "vit_tiny_patch16_224"})]
)
def test_groups_are_those_of_the_backbone_and_a_new_one(name: str, options: dict[str, Any], plugin: str) -> None:
    entry, shape = (BACKBONES.create(name, **options), (3, 32, 32))
    with torch.device("meta"):
        model = entry.build(shape, 10)
        patterns = dict(entry.patterns(model))
        before = Groups.assign(model, patterns).of
        added = PLUGINS[plugin](model)
    groups = Groups.assign(model, {**patterns, **added})
    new = GROUP[plugin.partition("-")[0]]
    assert list(added) == ([new] if new != "lora" else ["lora.a", "lora.b"])
    assert {entry: group for entry, group in groups.of.items() if group not in added} == before
    assert groups.select([new]) == set(groups.of) - set(before) <= groups.parameters


def test_what_begins_with_zeros_changes_nothing(net: str, plugin: str) -> None:
    model, other = plain(net), plain(net)
    PLUGINS[plugin](model)
    for mode in (True, False):
        with torch.no_grad():
            same = torch.allclose(model.train(mode)(images()), other.train(mode)(images()), rtol=1e-5, atol=1e-6)
        assert same is (plugin in NEUTRAL)


# --- attention written out -----------------------------------------------------------------------------------------


def linear(x: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    return x @ state[f"{name}.weight"].t() + state[f"{name}.bias"]


def by_hand(
    tokens: Tensor, attention: nn.Module, prefix: Callable[[Tensor, dict[str, Tensor]], Tensor], concat: bool
) -> Tensor:
    """The attention of one image's tokens [length, dim], head by head; `prefix` gives [P_k | P_v] with its scale."""
    state = dict(attention.state_dict())
    qkv = tokens @ state["qkv.weight"].t() + state.get("qkv.bias", torch.zeros(()))
    inner = qkv.shape[1] // 3
    q, k, v = qkv[:, :inner], qkv[:, inner : 2 * inner], qkv[:, 2 * inner :]
    made = prefix(tokens, state)
    more_k, more_v = made[:, :inner], made[:, inner:]
    heads = int(attention.heads)
    width, mixed = inner // heads, []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        if concat:
            keys, values = torch.cat([k, more_k])[:, own], torch.cat([v, more_v])[:, own]
        else:
            keys, values = (k + more_k)[:, own], (v + more_v)[:, own]
        mixed.append((q[:, own] @ keys.t() / sqrt(width)).softmax(-1) @ values)
    return linear(torch.cat(mixed, 1), state, "out" if "out.weight" in state else "proj")


def bottleneck(x: Tensor, state: dict[str, Tensor], name: str = "adapter") -> Tensor:
    return linear(linear(x, state, f"{name}.down").tanh(), state, f"{name}.up")


FORMULAS: dict[str, tuple[Add, Callable[[Tensor, dict[str, Tensor]], Tensor], bool]] = {
    "perfix": (by("fedperfix", width=6), lambda x, state: 1.5 * bottleneck(x, state), False),
    "perfix-scaled": (by("fedperfix", width=6, scale=0.3), lambda x, state: 0.3 * bottleneck(x, state), False),
    "perfix-concat": (PLUGINS["perfix-concat"], lambda x, state: 1.5 * bottleneck(x, state), True),
    "linear": (by("prefix", init="random", scale=2.0), lambda x, state: 2 * linear(x, state, "prefix"), False),
    "tokens": (PLUGINS["tokens-r"], lambda x, state: 1.5 * state["prefix.tokens"], True),
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_attention_with_prefixes_by_hand(net: str, formula: str) -> None:
    add, prefix, concat = FORMULAS[formula]
    attention = attention_of(plugged(net, add), net, block=1)
    dim = attention.get_submodule("qkv").in_features
    tokens = torch.randn(3, 5, int(dim))
    expected = torch.stack([by_hand(one, attention, prefix, concat) for one in tokens])
    close(attention(tokens), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qkv_bias": True},
        {"qk_norm": True, "norm_layer": nn.LayerNorm},
        {"gated": True},
        {"scale_norm": True, "norm_layer": nn.LayerNorm, "attn_head_dim": 5, "proj_bias": False},
    ],
)
def test_timms_attention_is_computed_as_timm_does(options: dict[str, Any]) -> None:
    from timm.models.vision_transformer import Attention

    own = Attention(12, num_heads=3, **options)
    holder = nn.Module()
    holder.attn = copy.deepcopy(own)
    block = Block(holder, "attn", True, 12, own.attn_dim)
    block.add_prefixes("prefix", _Nothing(2 * own.attn_dim), scale=1.5, concat=False)
    assert holder.attn is not own and type(holder.attn) is not Attention
    for tensor in own.state_dict().values():
        tensor += 0.2 * torch.randn_like(tensor)
    holder.attn.load_state_dict(own.state_dict())
    tokens = torch.randn(2, 7, 12)
    close(holder.attn(tokens, attn_mask=None, is_causal=False), own(tokens))
    with pytest.raises(NotImplementedError, match="takes no mask"):
        holder.attn(tokens, is_causal=True)


class _Nothing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.new_zeros(*tokens.shape[:2], self.width)


# --- LoRA ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("projections", [("q", "v"), ("k",), ("v", "q", "k")])
def test_low_rank_updates_are_those_of_the_merged_weights(net: str, projections: tuple[str, ...]) -> None:
    model, merged = plugged(net, by("lora", rank=2, alpha=3.0, projections=projections)), plain(net)
    state = dict(model.state_dict())
    merged.load_state_dict(state, strict=False)
    for block in range(2):
        weight = attention_of(merged, net, block).get_parameter("qkv.weight").data
        stem = f"blocks.{block}.{'attention' if net == 'tiny_vit' else 'attn'}.lora"
        for part, rows in zip("qkv", weight.chunk(3), strict=True):
            if part in projections:
                rows += 1.5 * state[f"{stem}.b.{part}.weight"] @ state[f"{stem}.a.{part}.weight"]
    close(model(images()), merged(images()))


# --- adapters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["corrected", "literal"])
def test_adapters_come_after_the_mlp_and_before_its_sum(net: str, form: str) -> None:
    model = plugged(net, by("adapters", width=5, form=form))
    without = plain(net)
    without.load_state_dict(model.state_dict(), strict=False)
    state = dict(model.state_dict())
    norm1, norm2 = ("attention_norm", "mlp_norm") if net == "tiny_vit" else ("norm1", "norm2")
    for index in range(2):
        block = without.get_submodule(f"blocks.{index}")
        tokens = torch.randn(2, 5, block.get_submodule(norm1).weight.numel())
        middle = tokens + attention_of(without, net, index)(block.get_submodule(norm1)(tokens))
        inner = block.get_submodule("mlp")(block.get_submodule(norm2)(middle))
        adapter = "adapter" if form == "literal" else f"blocks.{index}.adapter"
        expected = middle + inner + bottleneck(inner, state, adapter)
        close(model.get_submodule(f"blocks.{index}")(tokens), expected)
        assert not torch.allclose(expected, block(tokens), atol=1e-2)


def test_every_parameter_learns(net: str, plugin: str) -> None:
    model = plugged(net, PLUGINS[plugin])
    F.cross_entropy(model(images()), torch.arange(3)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


# --- prompts -------------------------------------------------------------------------------------------------------


def test_prompts_are_appended_before_each_block_and_cut_off_after_it(net: str) -> None:
    model, without = plugged(net, PLUGINS["prompts"]), plain(net)
    without.load_state_dict(model.state_dict(), strict=False)
    seen: dict[str, Tensor] = {}
    for index in range(2):
        mlp = model.get_submodule(f"blocks.{index}.mlp")
        mlp.register_forward_hook(lambda mlp, inputs, output, index=index: seen.update({f"{index}": output}))
    tokens = torch.randn(2, 5, model.get_submodule("norm").weight.numel())
    expected, actual = tokens, tokens
    for index in range(2):
        prompts = model.get_parameter(f"blocks.{index}.prompt.tokens")
        assert prompts.shape == (4, tokens.shape[2])
        longer = torch.cat([expected, prompts.expand(2, 4, -1)], 1)
        expected = without.get_submodule(f"blocks.{index}")(longer)[:, :5]
        actual = model.get_submodule(f"blocks.{index}")(actual)
        assert actual.shape == tokens.shape and seen[str(index)].shape[1] == 9
    close(actual, expected)
    close(model.get_submodule("blocks")(tokens), expected)


# --- execution -----------------------------------------------------------------------------------------------------


# --- models and options that do not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["convnet", "resnet50", "timm_model"])
def test_a_model_without_such_attention_is_an_error_of_one_line(name: str, plugin: str) -> None:
    model = backbone(name).create(SHAPE, CLASSES, 0)[0]
    before = list(model.state_dict())
    with pytest.raises(UserError) as error:
        PLUGINS[plugin](model)
    message = str(error.value)
    assert "needs a Transformer whose attention has one projection to queries, keys and values" in message
    assert "use tiny_vit, vit, or a plain ViT of timm_model" in message and "\n" not in message
    assert list(model.state_dict()) == before


@pytest.mark.parametrize("model", ["swin_tiny_patch4_window7_224", "beit_base_patch16_224", "poolformer_s12"])
def test_attention_of_another_kind_is_not_touched(model: str) -> None:
    with torch.device("meta"):
        other = BACKBONES.create("timm_model", model=model).build(PHOTO, 10)
        with pytest.raises(UserError, match="FedPerfix needs a Transformer"):
            by("fedperfix")(other)


def test_prompts_need_patches() -> None:
    with torch.device("meta"):
        model = BACKBONES.create("timm_model", model="mobilevit_s").build(PHOTO, 10)
        with pytest.raises(UserError, match=r"^prompt tuning needs a Transformer over image patches, and this"):
            by("prompts")(model)
