"""A convolution as one matrix product: the values and gradients of PyTorch's, for any stride, padding and dilation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from pflcore.engine.executors.unfolding import Pair, unfolded_conv2d

HOW: list[tuple[Pair, Pair, Pair]] = [
    ((1, 1), (0, 0), (1, 1)),
    ((2, 1), (1, 2), (1, 1)),
    ((1, 3), (2, 0), (2, 1)),
    ((3, 2), (0, 1), (1, 3)),  # strides that leave pixels over
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("how", HOW)
def test_values_and_gradients(how: tuple[Pair, Pair, Pair], with_bias: bool, channels: int) -> None:
    torch.manual_seed(0)
    images, weight = torch.randn(2, channels, 9, 12).double(), torch.randn(5, channels, 2, 3).double()
    given = (images, weight, *([torch.randn(5).double()] if with_bias else []))
    expected, found = ([*_gradients(form, how, given)] for form in (F.conv2d, unfolded_conv2d))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(unfolded_conv2d(*given[:2], None, *how), F.conv2d(*given[:2], None, *how))
    torch.testing.assert_close(unfolded_conv2d(*given), F.conv2d(*given))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("how", HOW)
def test_every_client_with_filters_of_its_own(how: tuple[Pair, Pair, Pair], channels: int) -> None:
    torch.manual_seed(0)
    images, weights = torch.randn(4, 2, channels, 9, 12).double(), torch.randn(4, 5, channels, 2, 3).double()
    biases = torch.randn(4, 5).double()
    stacked = vmap(lambda *given: _gradients(unfolded_conv2d, how, given))(images, weights, biases)
    for client, given in enumerate(zip(images, weights, biases, strict=True)):
        alone = _gradients(F.conv2d, how, given)
        torch.testing.assert_close([part[client] for part in stacked], [*alone], atol=1e-12, rtol=1e-12)


def _gradients(form: object, how: tuple[Pair, Pair, Pair], given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Those of a function whose second derivatives are not constant, with respect to all that is given."""

    def value(*given: Tensor) -> Tensor:
        bias = given[2] if len(given) == 3 else None
        made: Tensor = form(given[0], given[1], bias, *how)  # type: ignore[operator]
        return made.sin().sum()

    found: tuple[Tensor, ...] = grad(value, tuple(range(len(given))))(*given)
    return found


def test_a_gradient_of_a_gradient() -> None:
    torch.manual_seed(0)
    images, weight = torch.randn(2, 3, 6, 6).double(), torch.randn(4, 3, 3, 3).double()

    def slope(form: object, images: Tensor) -> Tensor:
        return _gradients(form, HOW[1], (images, weight))[0].square().sum()

    expected, found = (
        grad(lambda images, form=form: slope(form, images))(images) for form in (F.conv2d, unfolded_conv2d)
    )
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
