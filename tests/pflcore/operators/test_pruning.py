"""Attention-guided pruning: exactly the stated share goes, the smallest first, for each client and layer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.operators.pruning import masked, masks

SHAPES = {"conv1.weight": (16, 3, 5, 5), "conv1.bias": (16,), "conv2.weight": (32, 16, 5, 5), "head.weight": (10, 84)}


def weights(clients: int = 2) -> Tensors:
    torch.manual_seed(0)
    return {name: torch.randn(clients, *shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("percent", [70, 80, 90, 95, 99])
def test_against_the_printed_formula(percent: int) -> None:
    """A value is kept if it is above the one that ranks at p % in ascending order; without ties that is all."""
    generated = weights()
    made = masks(generated, percent)
    assert list(made) == ["conv1.weight", "conv2.weight"]
    for name, mask in made.items():
        assert mask.dtype == torch.bool and mask.shape == generated[name].shape
        for one, kept in zip(generated[name], mask, strict=True):
            numbers = sorted(abs(number) for number in one.flatten().tolist())
            rank = len(numbers) * percent // 100
            threshold = numbers[rank - 1]
            assert torch.equal(kept, one.abs() > threshold)
            assert int(kept.sum()) == len(numbers) - rank


def test_decimals_are_taken_as_written() -> None:
    assert 1000 * 64.1 / 100 < 641  # what floats make of it
    assert int(masks({"a": torch.randn(1, 1000)}, 64.1, "all")["a"].sum()) == 359


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(-2, 2), min_size=1, max_size=40),
    st.one_of(st.integers(0, 99), st.floats(0, 99.9)),
)
def test_ties_keep_no_more(numbers: list[int], percent: float) -> None:
    layer = torch.tensor([numbers, numbers[::-1]], dtype=torch.float32)
    for one, kept in zip(layer, masks({"a": layer}, percent, "all")["a"], strict=True):
        dropped = int((~kept).sum())
        assert dropped <= len(numbers) * percent / 100 + 1e-9 and dropped + 1 > len(numbers) * percent / 100 - 1e-9
        assert kept.any()
        if dropped:
            limit = one[~kept].abs().max()
            assert one[kept].abs().min() >= limit
            at_limit = kept[one.abs() == limit].tolist()
            assert at_limit == sorted(at_limit)  # the earlier go first


def test_masked() -> None:
    generated = {name: tensor.requires_grad_() for name, tensor in weights().items()}
    made = masks(generated, 90)
    sent = masked(generated, made)
    assert list(sent) == list(generated)
    for name, tensor in sent.items():
        if name not in made:
            assert tensor is generated[name]
            continue
        assert torch.equal(tensor[made[name]], generated[name][made[name]])
        assert not tensor[~made[name]].any() and not torch.signbit(tensor[~made[name]]).any()
        (slope,) = torch.autograd.grad(tensor.sum(), generated[name])
        assert torch.equal(slope, made[name].float())


@pytest.mark.parametrize(
    ("percent", "parts", "words"),
    [
        (100, "conv", "percent = 100 must be at least 0 and less than 100"),
        (-1, "conv", "percent = -1 must be"),
        (float("nan"), "conv", "percent = nan must be"),
        (50, "fc", "parts = 'fc' must be one of 'conv', 'all'"),
    ],
)
def test_refusals(percent: float, parts: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        masks(weights(), percent, parts)


def test_without_convolutions() -> None:
    with pytest.raises(UserError, match="no convolution among the generated tensors"):
        masks({"fc.weight": torch.ones(1, 2, 3)}, 50)
