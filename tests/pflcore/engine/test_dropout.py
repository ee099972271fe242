"""Dropout with masks from a stream."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pflcore.engine.dropout import Dropout, DropoutBits


def noisy(p: float = 0.25, width: int = 50_000) -> tuple[nn.Sequential, DropoutBits]:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(p), nn.Identity(), nn.Sequential(nn.Dropout(0.5)), nn.Dropout(0.0))
    return model, DropoutBits(model, torch.zeros(1, 1, 1, width))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_elements_are_dropped_at_the_rate_and_the_mean_stays(p: float) -> None:
    model = nn.Sequential(nn.Dropout(p))
    noise = DropoutBits(model, torch.zeros(1, 1, 1, 1000))
    noise.load(noise.draw(200, 0))
    x = torch.rand(200, 1, 1, 1000) + 1
    y = model.train()(x)
    kept = y != 0
    assert float(kept.float().mean()) == pytest.approx(1 - p, abs=0.004)
    assert float(y.mean()) == pytest.approx(float(x.mean()), rel=0.02)
    torch.testing.assert_close(y[kept], x[kept] / (1 - p), rtol=1e-3, atol=0)


def test_only_dropout_layers_are_replaced_and_counted() -> None:
    model, noise = noisy()
    assert [type(layer) for layer in model] == [nn.Flatten, Dropout, nn.Identity, nn.Sequential, Dropout]
    assert noise.per_sample == 2 * 50_000  # the layer that drops nothing needs none
    assert DropoutBits(nn.Sequential(nn.Flatten()), torch.zeros(1, 1, 2, 2)).per_sample == 0


def test_a_stream_is_its_numbers() -> None:
    _, noise = noisy(width=7)
    first = noise.draw(3, 1, 2, 3, 4)
    assert len(first) == 3 * 14 and first.dtype == torch.int16
    assert torch.equal(first, noise.draw(3, 1, 2, 3, 4))
    others = [noise.draw(3, *ids) for ids in ((1, 2, 3, 5), (1, 2, 4, 4), (1, 3, 3, 4), (2, 2, 3, 4))]
    assert not any(torch.equal(first, other) for other in others)


def test_a_batch_that_is_filled_up_keeps_the_numbers_of_its_samples() -> None:
    """Two layers, of 2 numbers per sample and of 3."""
    model = nn.Sequential(nn.Dropout(), nn.Linear(2, 3), nn.Dropout())
    noise = DropoutBits(model, torch.zeros(1, 2))
    bits = torch.arange(1, 11)  # of two samples
    assert noise.fill(bits, 2, 3).tolist() == [1, 2, 3, 4, 0, 0, 5, 6, 7, 8, 9, 10, 0, 0, 0]
    assert noise.fill(bits, 2, 2).tolist() == bits.tolist()


def test_gradients_flow_through_what_is_kept() -> None:
    model, noise = noisy(width=100)
    noise.load(noise.draw(4, 0))
    x = torch.rand(4, 1, 1, 100, requires_grad=True)
    y = model.train()(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.flatten(1) * x.detach().flatten(1), y.detach())
