"""Groups of model state, and the roles they give to every entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import backbone, create
from torch import nn

from pflcore.backbones import BACKBONES
from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles

BLOCKS = [f"blocks.{index}.{part}" for index in (0, 1) for part in ("qkv", "out")]
VIT = Groups(
    {
        "patch.weight": "patch_embed",
        **{name: f"attention.{name[-3:]}" for name in BLOCKS},
        "blocks.0.mlp": "mlp",
        "head": "head",
    },
    frozenset({"head"}),
)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ([], set()),
        (["head"], {"head"}),
        (["attention.qkv"], {"blocks.0.qkv", "blocks.1.qkv"}),
        (["attention"], set(BLOCKS)),
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
    groups = r"\(its groups: patch_embed, attention.qkv, attention.out, mlp, head\)"
    with pytest.raises(UserError, match=rf"did you mean 'attention.qkv'\? {groups}"):
        VIT.select(["head", "atention.qkv"])


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
    assert list(groups.of) == list(model.state_dict()) and "head" in groups.names()
    assert set(groups.names()) <= set(BACKBONES.get(name).groups)
    assert groups.parameters == {entry for entry, _ in model.named_parameters()}


OWNERS = st.lists(st.lists(st.sampled_from(["a", "ab", "head"]), min_size=1, max_size=3).map(".".join), min_size=1)


@given(OWNERS, st.data())
def test_roles_give_every_entry_one_owner_and_selections_are_unions(owners: list[str], data: st.DataObject) -> None:
    groups = Groups(names := {f"entry{index}": group for index, group in enumerate(owners)}, frozenset(names))
    known = [group.rsplit(".", cut)[0] for group in owners for cut in (0, 1)]
    one, other = (data.draw(st.lists(st.sampled_from([*known, ALL]), max_size=3)) for _ in range(2))
    chosen = [
        {name for name, own in names.items() if f"{own}.".startswith(f"{group}.") or group == ALL} for group in one
    ]
    assert groups.select(one) == set().union(*chosen)
    assert groups.select([*one, *other]) == groups.select(one) | groups.select(other)
    roles = Roles.split(groups, one, other)
    assert sorted([*roles.shared, *roles.personal, *roles.generated]) == sorted(names)
    assert roles.personal == groups.select(one) and roles.generated == groups.select(other) - roles.personal
