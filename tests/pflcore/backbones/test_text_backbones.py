"""Backbones for text, against PyTorch's LSTM and the formulas of the Transformer written out."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES

LENGTH, CHARACTERS = 7, 11
TEXTS = torch.randint(CHARACTERS, (5, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layers", [1, 3])
def test_the_lstm_is_that_of_pytorch(layers):
    """Names, shapes, initial bytes, outputs and gradients."""
    torch.manual_seed(0)
    table, reference = nn.Embedding(CHARACTERS, 3), nn.LSTM(3, 6, layers, batch_first=True)
    modules = nn.ModuleDict({"embedding": table, "lstm": reference, "head": nn.Linear(6, CHARACTERS)})
    torch.manual_seed(0)
    model = BACKBONES.create("lstm", embedding=3, hidden=6, layers=layers).build((LENGTH,), CHARACTERS)
    own, expected = model.state_dict(), modules.state_dict()
    assert list(own) == list(expected) and all(torch.equal(own[key], expected[key]) for key in own)
    logits, found = modules["head"](reference(table(TEXTS))[0]), model(TEXTS)
    torch.testing.assert_close(found, logits)
    pairs = ((logits, modules), (found, model))
    slopes, others = (torch.autograd.grad(one.square().sum(), list(each.parameters())) for one, each in pairs)
    torch.testing.assert_close(others, slopes)


@pytest.mark.parametrize("mask, dim", [("causal", 6), ("none", 5)])
def test_the_transformer_by_hand(mask, dim):
    options = {"dim": dim, "heads": 3, "head_dim": 4, "mlp_dim": 5, "positions": 9, "attention_mask": mask}
    model = BACKBONES.create("language_transformer", **options).create((LENGTH,), CHARACTERS, 0)[0].eval()
    state = {entry: tensor + 0.1 * torch.rand(tensor.shape) for entry, tensor in model.state_dict().items()}
    model.load_state_dict(state)

    def norm(x, entry):
        return F.layer_norm(x, (dim,), state[f"{entry}.weight"], state[f"{entry}.bias"], 1e-6)

    def linear(x, entry):
        return F.linear(x, state[f"{entry}.weight"], state.get(f"{entry}.bias"))

    def wave(position, index):
        angle = position / 10_000 ** ((index - index % 2) / dim)
        return math.cos(angle) if index % 2 else math.sin(angle)

    waves = torch.tensor([[wave(position, index) for index in range(dim)] for position in range(LENGTH)])
    x = norm(state["embedding.weight"][TEXTS] + waves, "norm")
    for block in ("blocks.0", "blocks.1"):
        parts = (linear(x, f"{block}.attention.{part}").unflatten(2, (3, 4)).transpose(1, 2) for part in "qkv")
        mixed = F.scaled_dot_product_attention(*parts, is_causal=mask == "causal").transpose(1, 2).flatten(2)
        x = norm(x + linear(mixed, f"{block}.attention.out"), f"{block}.attention_norm")
        x = norm(x + linear(linear(x, f"{block}.mlp.0").relu(), f"{block}.mlp.2"), f"{block}.mlp_norm")
    torch.testing.assert_close(model(TEXTS), linear(x, "head") / dim**0.5, rtol=1e-4, atol=1e-5)
