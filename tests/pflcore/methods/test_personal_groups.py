"""The sensitivity study: chosen groups personal, and the methods that are special cases of it."""

from __future__ import annotations

import pytest
from support.tiny import assert_states_close, backbone, groups_of, method, result_bytes, run

from pflcore.errors import UserError


@pytest.mark.parametrize(
    ("groups", "same", "net"),
    [
        (("head",), "fedper", "convnet"),
        (("norm",), "fedbn", "tiny_vit"),
        (("attention.qkv",), "vanilla_attention", "tiny_vit"),
        ((), "fedavg", "convnet"),
    ],
)
def test_special_cases_have_names(groups: tuple[str, ...], same: str, net: str) -> None:
    """FedBN alone has another mean: its clients count alike."""
    averaging = "uniform" if same == "fedbn" else None
    chosen = run(method("personal_groups", groups=groups, averaging=averaging), backbone(net))
    named = run(method(same), backbone(net))
    assert result_bytes(chosen) == result_bytes(named)


def test_groups_are_personal_alone_or_with_the_classifier() -> None:
    net = backbone("tiny_vit")
    of = groups_of(net).of
    for groups in (("attention",), ("mlp", "head"), ("patch_embed",)):
        roles = method("personal_groups", groups=groups).roles(groups_of(net))
        expected = {name for name, group in of.items() if any(f"{group}.".startswith(f"{one}.") for one in groups)}
        assert roles.personal == expected and roles.shared == set(of) - expected
        assert not roles.generated


def test_more_personal_groups_change_the_result() -> None:
    one, two = (run(method("personal_groups", groups=g), backbone("tiny_vit")) for g in (("mlp",), ("mlp", "head")))
    with pytest.raises(AssertionError):
        assert_states_close(one.weights, two.weights)


def test_a_group_that_is_not_there_is_named() -> None:
    with pytest.raises(
        UserError, match=r"^the backbone has no parameter group 'atention'; did you mean 'attention\.qkv'"
    ):
        method("personal_groups", groups=("atention",)).roles(groups_of(backbone("tiny_vit")))
