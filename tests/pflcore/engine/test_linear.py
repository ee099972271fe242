"""Large linear layers on a CPU against the formula in double precision, and what they count as."""

import pytest
import torch
from torch.autograd import grad
from torch.func import vmap

from pflcore.engine.cost import operations
from pflcore.engine.linear import large_linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")


def formula(x, weight, bias=None):
    return x @ weight.mT + (0 if bias is None else bias)


def drawn(outputs, inputs, with_bias):
    torch.manual_seed(0)
    shapes = [(3, 350, inputs), (outputs, inputs), *[(outputs,)] * with_bias]
    return [(torch.randn(shape) / inputs**0.5).requires_grad_() for shape in shapes]


def slopes(layer, arguments):
    """Return the result, its first slopes, and the slopes of a function of these."""
    output = layer(*arguments)
    first = grad(output.sin().sum(), arguments, create_graph=True)
    return output, *first, *grad(sum(slope.cos().sum() for slope in first), arguments)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("outputs, inputs", [(120, 140), (260, 70)])
def test_slopes(outputs, inputs, with_bias):
    arguments = drawn(outputs, inputs, with_bias)
    exact = [tensor.detach().double().requires_grad_() for tensor in arguments]
    for actual, expected in zip(slopes(large_linear, arguments), slopes(formula, exact), strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-4 * float(expected.detach().abs().max()))


def test_a_layer_that_is_not_trained():
    x, weight, bias = drawn(120, 140, True)
    assert grad(large_linear(x, weight.detach(), bias.detach()).sum(), x)[0].isfinite().all()
    actual = grad(large_linear(x.detach(), weight, bias.detach()).sum(), weight)[0]
    torch.testing.assert_close(actual, x.detach().sum((0, 1)).expand_as(weight), rtol=1e-4, atol=1e-4)


def test_stacked_clients():
    arguments = [torch.stack([tensor.detach(), -2 * tensor.detach()]) for tensor in drawn(120, 140, True)]
    for client, actual in enumerate(vmap(large_linear)(*arguments)):
        torch.testing.assert_close(actual, formula(*(tensor[client] for tensor in arguments)), rtol=1e-4, atol=1e-4)


def test_its_operations_count():
    arguments = drawn(120, 140, False)
    with operations() as counted:
        grad(large_linear(*arguments).sum(), arguments)
    assert counted.flops == 3 * 2 * (3 * 350) * 120 * 140
