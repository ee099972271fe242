"""Pruned and truncated tensors: what goes and how long the rest is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.operators.compression import low_rank, masks


def matrix(values: list[float], rows: int, columns: int) -> Tensor:
    """A random matrix with the given singular values."""
    left = torch.linalg.qr(torch.randn(rows, len(values), dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(columns, len(values), dtype=torch.float64)).Q
    product: Tensor = left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right.t()
    return product


@pytest.mark.parametrize(
    ("energy", "rank"),
    # Squares 16, 4, 4, 1: shares 0.64, 0.80, 0.96, 1.
    [(0.01, 1), (0.63, 1), (0.65, 2), (0.81, 3), (0.97, 4), (1.0, 4)],
)
def test_rank_by_hand(energy: float, rank: int) -> None:
    torch.manual_seed(rank)
    full = matrix([4.0, 2.0, 2.0, 1.0], 9, 30)
    short, size = low_rank(full, energy)
    assert int(torch.linalg.matrix_rank(short, rtol=1e-6)) == rank
    assert (full - short).square().sum().item() == pytest.approx(sum([16.0, 4.0, 4.0, 1.0][rank:]), abs=1e-9)
    assert int(size) == rank * (9 + 30 + 1)


def test_each_matrix_for_itself_and_vectorised() -> None:
    torch.manual_seed(0)
    some = torch.stack([matrix([4.0, 2.0, 2.0, 1.0], 9, 30), matrix([1.0, 1.0], 9, 30), torch.zeros(9, 30).double()])
    alone, sizes = map(torch.stack, zip(*(low_rank(one, 0.7) for one in some), strict=True))
    for short, size in (low_rank(some, 0.7), torch.func.vmap(lambda one: low_rank(one, 0.7))(some)):
        torch.testing.assert_close(short, alone)
        assert torch.equal(size, sizes)


@pytest.mark.parametrize("percent", [70, 99])
def test_pruning_against_the_printed_formula(percent: int) -> None:
    """A value is kept if it is above the one that ranks at p % in ascending order; without ties that is all."""
    torch.manual_seed(0)
    shapes = {
        "conv1.weight": (16, 3, 5, 5),
        "conv1.bias": (16,),
        "conv2.weight": (32, 16, 5, 5),
        "head.weight": (10, 84),
    }
    generated = {name: torch.randn(2, *shape) for name, shape in shapes.items()}
    made = masks(generated, percent)
    assert list(made) == ["conv1.weight", "conv2.weight"]
    for name, mask in made.items():
        for one, kept in zip(generated[name], mask, strict=True):
            numbers = sorted(abs(number) for number in one.flatten().tolist())
            rank = len(numbers) * percent // 100
            assert torch.equal(kept, one.abs() > numbers[rank - 1]) and int(kept.sum()) == len(numbers) - rank
    assert 1000 * 64.1 / 100 < 641  # what floats make of it
    assert int(masks({"a": torch.randn(1, 1000)}, 64.1, "all")["a"].sum()) == 359
    with pytest.raises(UserError, match="no convolution among the generated tensors"):
        masks({"fc.weight": torch.ones(1, 2, 3)}, 50)
