"""Parts of a model that are never trained: they stay as they begin, and nobody sends or keeps them. LoRA has such."""

from __future__ import annotations

import pytest
import torch
from support.tiers import six_of
from support.tiny import backbone, create, groups_of, method, run, run_by_all, spied

from pflcore.errors import UserError
from pflcore.method import Update
from pflcore.methods import METHODS
from pflcore.ownership import roles_of

NET = backbone("tiny_vit")


@pytest.mark.parametrize("name", six_of(METHODS.names()))
def test_every_method_leaves_the_rest_as_it_begins(name: str) -> None:
    only = ("attention", "head") if name != "lora" else ("lora", "head")
    entry = method(name, train_only=only)
    try:
        result = run(entry, NET)
    except UserError as error:
        assert "no parameter group" in str(error)
        pytest.skip("needs another backbone")
    model, groups = create(NET, 3, entry)
    fixed = {key: tensor for key, tensor in model.state_dict().items() if key in groups.fixed}
    assert "blocks.0.mlp.0.weight" in fixed and not groups.fixed & groups.select(only)
    assert all(torch.equal(result.weights[key], tensor) for key, tensor in fixed.items())
    assert not any(key.startswith("client.") and key.endswith(tuple(fixed)) for key in result.weights if "/" not in key)


def test_nothing_fixed_is_sent_and_the_rest_goes_by_plain_averaging() -> None:
    updates: list[list[Update]] = []
    result = run(spied(method("fedavg", train_only=("head",)), updates), NET)
    assert {name for round_ in updates for one in round_ for name in (*one.sent, *one.returned)} == {
        "head.weight",
        "head.bias",
    }
    assert result.cost.received == result.parameters == 4 * 8 + 4
    assert result.cost.sent_up == 4 * result.parameters


@pytest.mark.parametrize("averaged", ["both", "a", "none"])
def test_lora_by_every_executor_and_who_holds_what(averaged: str) -> None:
    entry = method("lora", averaged=averaged, also_personal=("head",))
    run_by_all(entry, NET)
    groups = groups_of(NET, entry)
    roles = roles_of(entry, groups)
    shared = {"both": ["lora"], "a": ["lora.a"], "none": []}[averaged]
    assert roles.shared == groups.select(shared) and roles.personal == groups.select(["lora", "head"]) - roles.shared
    assert not roles.generated


def test_a_of_ffa_lora_stays_so_that_the_mean_of_products_is_the_product_of_means() -> None:
    updates: list[list[Update]] = []
    result = run(spied(method("lora", train_a=False), updates), NET)
    begun = dict(create(NET, 3, method("lora"))[0].state_dict())
    a, b = (f"blocks.0.attention.lora.{part}.q.weight" for part in "ab")
    assert torch.equal(result.weights[a], begun[a]) and a not in updates[0][0].returned
    last = updates[-1]
    shares = [one.samples / sum(one.samples for one in last) for one in last]
    products = [share * one.returned[b] @ begun[a] for share, one in zip(shares, last, strict=True)]
    torch.testing.assert_close(result.weights[b] @ result.weights[a], sum(products), rtol=1e-4, atol=1e-6)
    assert result.weights[b].abs().max() > 0


def test_a_group_that_is_not_there_is_named() -> None:
    told = r"^method fedavg: train_only: the backbone has no parameter group 'haed'; did you mean 'head'"
    with pytest.raises(UserError, match=told):
        run(method("fedavg", train_only=("haed",)), NET)


def test_lora_needs_a_projection_and_a_transformer() -> None:
    with pytest.raises(UserError, match="names none"):
        method("lora", projections=())
    with pytest.raises(UserError, match="LoRA needs a Transformer"):
        run(method("lora"), backbone("convnet"))
