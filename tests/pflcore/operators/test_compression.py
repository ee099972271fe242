"""Pruned, packed and truncated tensors: what goes, what arrives, and how long it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.operators.compression import low_rank, masks, pack_sparse

# --- compression -----------------------------------------------------------------------------------------------------


def test_the_bytes_are_as_documented() -> None:
    tensor = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    values, bitmap = pack_sparse(tensor, tensor % 4 == 1)  # entries 0, 4, 8
    assert values == np.array([1, 5, 9], "<f4").tobytes()
    assert bitmap == bytes([0b00010001, 0b00000001])


def matrix(values: list[float], rows: int, columns: int) -> Tensor:
    """A random matrix with the given singular values."""
    left = torch.linalg.qr(torch.randn(rows, len(values), dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(columns, len(values), dtype=torch.float64)).Q
    product: Tensor = left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right.t()
    return product


@pytest.mark.parametrize(
    ("energy", "rank"),
    # Squares 16, 4, 4, 1: shares 0.64, 0.80, 0.96, 1.
    [(0.01, 1), (0.63, 1), (0.65, 2), (0.79, 2), (0.81, 3), (0.95, 3), (0.97, 4), (1.0, 4)],
)
@pytest.mark.parametrize(("rows", "columns"), [(9, 30), (30, 9)])
def test_rank_by_hand(energy: float, rank: int, rows: int, columns: int) -> None:
    torch.manual_seed(rank)
    full = matrix([4.0, 2.0, 2.0, 1.0], rows, columns)
    short, size = low_rank(full, energy)
    assert int(torch.linalg.matrix_rank(short, rtol=1e-6)) == rank
    assert short.square().sum() >= energy * full.square().sum() * (1 - 1e-12)
    dropped = [16.0, 4.0, 4.0, 1.0][rank:]
    assert (full - short).square().sum().item() == pytest.approx(sum(dropped), abs=1e-9)
    assert int(size) == rank * (rows + columns + 1)


def test_each_matrix_for_itself_and_vectorised() -> None:
    torch.manual_seed(0)
    some = torch.stack([matrix([4.0, 2.0, 2.0, 1.0], 9, 30), matrix([1.0, 1.0], 9, 30), torch.zeros(9, 30).double()])
    for energy in (0.7, 0.95):
        alone, sizes = map(torch.stack, zip(*(low_rank(one, energy) for one in some), strict=True))
        assert sizes.dtype == torch.int64
        for short, size in (low_rank(some, energy), torch.func.vmap(lambda one, e=energy: low_rank(one, e))(some)):
            torch.testing.assert_close(short, alone)
            assert torch.equal(size, sizes)


# --- pruning ---------------------------------------------------------------------------------------------------------


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


def test_without_convolutions() -> None:
    with pytest.raises(UserError, match="no convolution among the generated tensors"):
        masks({"fc.weight": torch.ones(1, 2, 3)}, 50)
