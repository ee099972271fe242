"""Modules that methods add to a Transformer: known sizes, formulas written out, a model that is otherwise as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import pytest
import torch
from support.tiny import CLASSES, SHAPE, backbone, create, groups_of, method, run, run_by_all, spied
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.engine.phases import roles_of
from pflcore.errors import UserError
from pflcore.groups import Groups
from pflcore.method import Update
from pflcore.methods import METHODS

State = Mapping[str, Tensor]


def by(name: str, **options: Any) -> Callable[[nn.Module], Mapping[str, str]]:
    """What a method with these options adds to a model."""
    return METHODS.create(name, **options).extend


PLUGINS = {
    "perfix": by("fedperfix", width=6, scale=0.3),
    "perfix-concat": by("fedperfix", width=6, mode="concat"),
    "prefix-z": by("prefix"),
    "prefix-r": by("prefix", init="random", scale=2.0),
    "tokens-r": by("prefix", kind="tokens", tokens=3, init="random"),
    "prompts": by("prompts", count=4),
    "adapters": by("adapters", width=5),
    "adapters-literal": by("adapters", width=5, form="literal"),
    "lora": by("lora", rank=2, alpha=3.0, projections=("v", "q")),
}
NEUTRAL = ("lora", "prefix-z", "adapters", "adapters-literal")  # they change nothing before they are trained
NETS = {"tiny_vit": backbone("tiny_vit", dropout=0.0), "vit": backbone("vit", depth=2, patch=4)}
PHOTO = (3, 224, 224)


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plain(net: str) -> nn.Module:
    return NETS[net].create(SHAPE, CLASSES, 3)[0].eval()


def plugged(net: str, plugin: str) -> tuple[nn.Module, dict[str, Tensor], nn.Module]:
    """The model with a plugin, all parameters moved away from zeros and ones, its state; without it but these."""
    torch.manual_seed(0)
    model, without = plain(net), plain(net)
    PLUGINS[plugin](model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (0.2 if net == "tiny_vit" else 0.04) * torch.randn_like(parameter)
    without.load_state_dict(model.state_dict(), strict=False)
    return model.eval(), dict(model.state_dict()), without


def images(count: int = 3) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def attention_of(model: nn.Module, net: str, block: int = 0) -> nn.Module:
    return model.get_submodule(f"blocks.{block}.{'attention' if net == 'tiny_vit' else 'attn'}")


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("add", "size", "count"),
    [
        (by("fedperfix", mode="concat"), "small", 3_551_232),
        (by("fedperfix"), "base", 7_099_392),
        (by("prefix"), "small", 3_548_160),
        (by("prefix", kind="tokens", tokens=1), "small", 2 * 384 * 12),
        (by("prompts"), "small", 46_080),
        (by("adapters"), "small", 4_729_344),
        (by("adapters", form="literal"), "small", 394_112),
        (by("lora"), "small", 73_728),
    ],
)
def test_counts_on_vits(add: Any, size: str, count: int) -> None:
    with torch.device("meta"):
        model = BACKBONES.create("vit", size=size).build(PHOTO, 10)
        before = sum(parameter.numel() for parameter in model.parameters())
        add(model)
    assert sum(parameter.numel() for parameter in model.parameters()) - before == count


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_model_is_otherwise_as_it_was_and_every_parameter_learns(net: str, plugin: str) -> None:
    other, model = plain(net), plain(net)
    before, patterns = other.state_dict(), dict(NETS[net].patterns(model))
    old = Groups.assign(model, patterns).of
    added = PLUGINS[plugin](model)
    after = model.state_dict()
    assert [name for name in after if name in before] == list(before) and len(after) > len(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert set(after) == {name for name, _ in model.named_parameters()}  # nothing twice, no buffers
    groups = Groups.assign(model, {**patterns, **added})
    assert {entry: group for entry, group in groups.of.items() if group not in added} == old
    assert groups.select(added) == set(after) - set(before) <= groups.parameters
    for mode in (True, False):
        same = torch.allclose(model.train(mode)(images()), other.train(mode)(images()), rtol=1e-5, atol=1e-6)
        assert same is (plugin in NEUTRAL)
    model, _, _ = plugged(net, plugin)
    twin, found = copy.deepcopy(model), model(images())
    F.cross_entropy(found, torch.arange(3)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(twin(images()), found)  # a copy has modules of its own


# --- formulas --------------------------------------------------------------------------------------------------------


def linear(x: Tensor, state: State, name: str) -> Tensor:
    return x @ state[f"{name}.weight"].t() + state[f"{name}.bias"]


def bottleneck(x: Tensor, state: State, name: str = "adapter") -> Tensor:
    return linear(linear(x, state, f"{name}.down").tanh(), state, f"{name}.up")


def by_hand(tokens: Tensor, attention: nn.Module, made: Tensor, concat: bool) -> Tensor:
    """The attention of one image's tokens [length, dim], head by head; `made` is [P_k | P_v] with its scale."""
    state = dict(attention.state_dict())
    qkv = tokens @ state["qkv.weight"].t() + state.get("qkv.bias", torch.zeros(()))
    q, k, v = qkv.chunk(3, 1)
    more_k, more_v = made.chunk(2, 1)
    keys, values = (torch.cat([k, more_k]), torch.cat([v, more_v])) if concat else (k + more_k, v + more_v)
    heads = zip(*(one.chunk(int(attention.heads), 1) for one in (q, keys, values)), strict=True)
    mixed = [(one @ key.t() / sqrt(one.shape[1])).softmax(-1) @ value for one, key, value in heads]
    return linear(torch.cat(mixed, 1), state, "out" if "out.weight" in state else "proj")


FORMULAS: dict[str, tuple[Callable[[Tensor, State], Tensor], bool]] = {
    "perfix": (lambda x, state: 0.3 * bottleneck(x, state), False),
    "perfix-concat": (lambda x, state: 1.5 * bottleneck(x, state), True),
    "prefix-r": (lambda x, state: 2 * linear(x, state, "prefix"), False),
    "tokens-r": (lambda x, state: 1.5 * state["prefix.tokens"], True),
}


@pytest.mark.parametrize("plugin", FORMULAS)
def test_attention_with_prefixes_by_hand(net: str, plugin: str) -> None:
    prefix, concat = FORMULAS[plugin]
    attention = attention_of(plugged(net, plugin)[0], net, block=1)
    tokens, state = torch.randn(3, 5, int(attention.get_submodule("qkv").in_features)), dict(attention.state_dict())
    close(attention(tokens), torch.stack([by_hand(one, attention, prefix(one, state), concat) for one in tokens]))


@pytest.mark.parametrize("form", ["adapters", "adapters-literal"])
def test_adapters_come_after_the_mlp_and_before_its_sum(net: str, form: str) -> None:
    model, state, without = plugged(net, form)
    norm1, norm2 = ("attention_norm", "mlp_norm") if net == "tiny_vit" else ("norm1", "norm2")
    for index in range(2):
        block = without.get_submodule(f"blocks.{index}")
        tokens = torch.randn(2, 5, block.get_submodule(norm1).weight.numel())
        middle = tokens + attention_of(without, net, index)(block.get_submodule(norm1)(tokens))
        inner = block.get_submodule("mlp")(block.get_submodule(norm2)(middle))
        adapter = "adapter" if form == "adapters-literal" else f"blocks.{index}.adapter"
        close(model.get_submodule(f"blocks.{index}")(tokens), middle + inner + bottleneck(inner, state, adapter))


def test_prompts_are_appended_before_each_block_and_cut_off_after_it(net: str) -> None:
    model, state, without = plugged(net, "prompts")
    expected = tokens = torch.randn(2, 5, model.get_submodule("norm").weight.numel())
    for index in range(2):
        longer = torch.cat([expected, state[f"blocks.{index}.prompt.tokens"].expand(2, 4, -1)], 1)
        expected = without.get_submodule(f"blocks.{index}")(longer)[:, :5]
    close(model.get_submodule("blocks")(tokens), expected)


# --- LoRA ------------------------------------------------------------------------------------------------------------


def test_low_rank_updates_are_those_of_the_merged_weights(net: str) -> None:
    model, state, merged = plugged(net, "lora")
    for block in range(2):
        q, _, v = attention_of(merged, net, block).get_parameter("qkv.weight").data.chunk(3)
        stem = f"blocks.{block}.{'attention' if net == 'tiny_vit' else 'attn'}.lora"
        for part, rows in (("q", q), ("v", v)):
            rows += 1.5 * state[f"{stem}.b.{part}.weight"] @ state[f"{stem}.a.{part}.weight"]
    close(model(images()), merged(images()))


@pytest.mark.parametrize(("averaged", "shared"), [("both", ["lora"]), ("a", ["lora.a"]), ("none", [])])
def test_lora_by_every_executor_and_who_holds_what(averaged: str, shared: list[str]) -> None:
    entry, net = method("lora", averaged=averaged, also_personal=("head",)), backbone("tiny_vit")
    if averaged == "a":
        run_by_all(entry, net)
    groups = groups_of(net, entry)
    roles = roles_of(entry, groups)
    assert roles.shared == groups.select(shared) and roles.personal == groups.select(["lora", "head"]) - roles.shared


def test_a_of_ffa_lora_stays_so_that_the_mean_of_products_is_the_product_of_means() -> None:
    updates: list[list[Update]] = []
    result = run(spied(method("lora", train_a=False), updates), backbone("tiny_vit"))
    begun = dict(create(backbone("tiny_vit"), 3, method("lora"))[0].state_dict())
    a, b = (f"blocks.0.attention.lora.{part}.q.weight" for part in "ab")
    assert torch.equal(result.weights[a], begun[a]) and a not in updates[0][0].returned
    total = sum(one.samples for one in updates[-1])
    products = [one.samples / total * one.returned[b] @ begun[a] for one in updates[-1]]
    torch.testing.assert_close(result.weights[b] @ result.weights[a], sum(products), rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match="names none"):
        method("lora", projections=())


@pytest.mark.parametrize("model", ["convnet", "swin_tiny_patch4_window7_224", "beit_base_patch16_224", "mobilevit_s"])
def test_a_model_without_such_attention_is_an_error_of_one_line(model: str) -> None:
    with torch.device("meta"):
        entry = BACKBONES.create("timm_model", model=model) if "_" in model else BACKBONES.create("convnet")
        made = entry.build(PHOTO, 10)
        words = "image patches" if model == "mobilevit_s" else "one projection to queries, keys and values"
        with pytest.raises(UserError, match=rf"^prompt tuning needs a Transformer .*{words}.* plain ViT") as error:
            by("prompts")(made)
    assert "\n" not in str(error.value)
