"""Dropout with masks from a stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pflcore.engine.dropout import Dropout, DropoutBits
from pflcore.seeds import sequence

CPU = torch.device("cpu")


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


def test_layers_take_numbers_of_their_own() -> None:
    model, noise = noisy(p=0.5)
    noise.load(noise.draw(1, 0))
    y = model.train()(torch.ones(1, 1, 1, 50_000))
    assert float((y != 0).float().mean()) == pytest.approx(0.25, abs=0.02)


def test_a_stream_is_its_numbers() -> None:
    _, noise = noisy(width=7)
    first = noise.draw(3, 1, 2, 3, 4)
    assert len(first) == 3 * 14 and first.dtype == torch.int16
    assert torch.equal(first, noise.draw(3, 1, 2, 3, 4))
    others = [noise.draw(3, *ids) for ids in ((1, 2, 3, 5), (1, 2, 4, 4), (1, 3, 3, 4), (2, 2, 3, 4))]
    assert not any(torch.equal(first, other) for other in others)


def test_elsewhere_a_generator_begins_with_63_bits_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    class Generator:
        def __init__(self, device: torch.device) -> None:
            assert device.type == "meta"

        def manual_seed(self, seed: int) -> None:
            begun.append(seed)

    monkeypatch.setattr(torch, "Generator", Generator)
    _, noise = noisy(width=7)
    noise.device = torch.device("meta")
    assert noise.draw(3, 1, 2, 3, 4).shape == (3 * 14,)
    assert begun == [int(sequence(1, "dropout", 2, 3, 4).generate_state(1, np.uint64)[0]) // 2]


def test_a_batch_that_is_filled_up_keeps_the_numbers_of_its_samples() -> None:
    """Two layers, of 2 numbers per sample and of 3."""
    model = nn.Sequential(nn.Dropout(), nn.Linear(2, 3), nn.Dropout())
    noise = DropoutBits(model, torch.zeros(1, 2))
    bits = torch.arange(1, 11)  # of two samples
    assert noise.fill(bits, 2, 3).tolist() == [1, 2, 3, 4, 0, 0, 5, 6, 7, 8, 9, 10, 0, 0, 0]
    assert noise.fill(bits, 2, 2).tolist() == bits.tolist()


def test_evaluation_needs_no_numbers() -> None:
    model, noise = noisy()
    x = torch.rand(2, 1, 1, 50_000)
    assert torch.equal(model.eval()(x), x.flatten(1))
    assert noise.per_sample == 2 * 50_000 and noise.by_sample, "layers are counted once"


def test_gradients_flow_through_what_is_kept() -> None:
    model, noise = noisy(width=100)
    noise.load(noise.draw(4, 0))
    x = torch.rand(4, 1, 1, 100, requires_grad=True)
    y = model.train()(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.flatten(1) * x.detach().flatten(1), y.detach())


def test_numbers_are_even_over_their_range() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    noise = DropoutBits(model, torch.zeros(1, 1, 1, 1))
    counts = torch.bincount((noise.draw(1 << 18, 5).int() + (1 << 15)) >> 12, minlength=16)
    assert counts.sum() == 1 << 18 and float((counts / (1 << 14) - 1).abs().max()) < 0.05
