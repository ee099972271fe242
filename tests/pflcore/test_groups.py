"""Groups of model state, and the roles they give to every entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import CLASSES, SHAPE, NormNet, backbone, create
from torch import nn

from pflcore.backbones import BACKBONES, Backbone
from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles, split

VIT = Groups(
    {
        "patch.weight": "patch_embed",
        "blocks.0.qkv": "attention.qkv",
        "blocks.0.out": "attention.out",
        "blocks.0.mlp": "mlp",
        "blocks.1.qkv": "attention.qkv",
        "blocks.1.out": "attention.out",
        "head": "head",
    },
    frozenset({"head"}),
)


# --- selection -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ([], set()),
        (["head"], {"head"}),
        (["attention.qkv"], {"blocks.0.qkv", "blocks.1.qkv"}),
        (["attention"], {"blocks.0.qkv", "blocks.1.qkv", "blocks.0.out", "blocks.1.out"}),
        (["blocks.-1"], {"blocks.1.qkv", "blocks.1.out"}),
        (["blocks.-2"], {"blocks.0.qkv", "blocks.0.out", "blocks.0.mlp"}),
        (["blocks.0.qkv", "blocks.1.out"], {"blocks.0.qkv", "blocks.1.out"}),
        (["head", "attention.out", "head"], {"head", "blocks.0.out", "blocks.1.out"}),
        ([ALL], set(VIT.of)),
    ],
)
def test_a_group_or_a_module_selects_all_below_it_and_an_entry_itself(wanted: list[str], chosen: set[str]) -> None:
    assert VIT.select(wanted) == chosen


def test_an_unknown_group_is_told_with_its_nearest_and_all_groups() -> None:
    with pytest.raises(UserError) as error:
        VIT.select(["head", "atention.qkv"])
    message = str(error.value)
    assert "did you mean 'attention.qkv'?" in message
    assert "(its groups: patch_embed, attention.qkv, attention.out, mlp, head)" in message


# --- assignment ----------------------------------------------------------------------------------------------------


def test_every_entry_gets_the_one_group_that_matches() -> None:
    groups = NormNet().create(SHAPE, CLASSES, 0)[1]
    assert dict(groups.of) == {
        "fc.weight": "fc",
        "fc.bias": "fc",
        "norm.weight": "norm",
        "norm.bias": "norm",
        "norm.running_mean": "norm",
        "norm.running_var": "norm",
        "norm.num_batches_tracked": "norm",
        "head.weight": "head",
        "head.bias": "head",
    }
    assert groups.names() == ["fc", "norm", "head"]
    assert set(groups.of) - groups.parameters == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ({"weight": r"weight$"}, "state 'bias' matches no group; need one group"),
        ({"all": r".", "bias": r"b"}, r"state 'bias' matches \['all', 'bias'\]; need one group"),
        ({"weight": r"weight", "as": r"as"}, "state 'bias' matches no group"),  # anchored at the start
    ],
)
def test_patterns_that_do_not_cover_an_entry_once_are_a_mistake(patterns: dict[str, str], words: str) -> None:
    with pytest.raises(TypeError, match=f"^Linear: {words}"):
        Groups.assign(nn.Linear(2, 2), patterns)


@pytest.mark.parametrize("name", BACKBONES.names())
def test_a_registered_backbone_covers_its_state_and_uses_its_patterns(name: str) -> None:
    model, groups = create(backbone(name))
    assert list(groups.of) == list(model.state_dict())
    assert set(groups.names()) <= set(BACKBONES.get(name).groups)
    assert "head" in groups.names()
    assert groups.parameters == {entry for entry, _ in model.named_parameters()}


def test_a_backbone_with_wrong_patterns_cannot_be_created() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Headless(Backbone):
        groups: ClassVar[dict[str, str]] = {"body": r"0\."}

        def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    with pytest.raises(TypeError, match=r"'1\.weight' matches no group"):
        Headless().create(SHAPE, CLASSES, 0)


# --- properties ----------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "ab", "head", "norm"])
GROUP_NAMES = st.lists(WORDS, min_size=1, max_size=3).map(".".join)


@st.composite
def groups_and_wanted(draw: st.DrawFn) -> tuple[Groups, list[str], list[str]]:
    """Groups, and two lists of names that select something: whole names, their beginnings, or all."""
    owners = draw(st.lists(GROUP_NAMES, min_size=1, max_size=12))
    names = {f"entry{index}": group for index, group in enumerate(owners)}
    parts = [group.split(".") for group in owners]
    known = [".".join(part[:length]) for part in parts for length in range(1, len(part) + 1)]
    wanted = st.lists(st.sampled_from([*known, ALL]), max_size=3)
    return Groups(names, frozenset(names)), draw(wanted), draw(wanted)


@given(groups_and_wanted())
def test_roles_give_every_entry_one_owner(drawn: tuple[Groups, list[str], list[str]]) -> None:
    groups, personal, generated = drawn
    roles = Roles.split(groups, personal, generated)
    owners = [*roles.shared, *roles.personal, *roles.generated]
    assert sorted(owners) == sorted(groups.of)
    assert roles.personal == groups.select(personal)
    assert roles.generated == groups.select(generated) - roles.personal


@given(groups_and_wanted())
def test_selection_is_a_union_over_the_wanted_groups(drawn: tuple[Groups, list[str], list[str]]) -> None:
    groups, one, other = drawn
    assert groups.select([*one, *other]) == groups.select(one) | groups.select(other)
    for group in one:
        inside = {name for name, own in groups.of.items() if f"{own}.".startswith(f"{group}.") or group == ALL}
        assert groups.select([group]) == inside


def test_entries_are_split_into_those_that_move_and_those_that_rest() -> None:
    tensors = {name: torch.tensor(float(index)) for index, name in enumerate(("b", "own/a", "a"))}
    moving, rest = split(tensors, {"a", "b", "c"})
    assert (list(moving), list(rest)) == (["b", "a"], ["own/a"])
    assert all({**moving, **rest}[name] is tensor for name, tensor in tensors.items())
