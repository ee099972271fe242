"""Backbones for text: the formulas written out, what a position sees, and what copying is worth."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.errors import UserError

LENGTH, CHARACTERS = 7, 11
SMALL: dict[str, dict[str, Any]] = {
    "lstm": {"embedding": 3, "hidden": 6},
    "language_transformer": {"dim": 6, "heads": 3, "head_dim": 4, "mlp_dim": 5, "positions": 9},
}


def small(name: str, seed: int = 0, **options: Any) -> nn.Module:
    return BACKBONES.create(name, **{**SMALL[name], **options}).create((LENGTH,), CHARACTERS, seed)[0]


def texts(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(CHARACTERS, (*shape, LENGTH), generator=torch.Generator().manual_seed(seed))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("layers", [1, 3])
def test_the_lstm_is_that_of_pytorch(layers: int) -> None:
    """Names, shapes, initial bytes, outputs and gradients."""
    torch.manual_seed(0)
    table, reference = nn.Embedding(CHARACTERS, 3), nn.LSTM(3, 6, layers, batch_first=True)
    head = nn.Linear(6, CHARACTERS)
    torch.manual_seed(0)
    model = BACKBONES.create("lstm", embedding=3, hidden=6, layers=layers).build((LENGTH,), CHARACTERS)
    own, expected = model.lstm.state_dict(), reference.state_dict()
    assert list(own) == list(expected) and all(torch.equal(own[key], expected[key]) for key in own)
    inputs = texts(5)
    logits = head(reference(table(inputs))[0])
    torch.testing.assert_close(model(inputs), logits)
    modules = nn.ModuleDict({"embedding": table, "lstm": reference, "head": head})
    slopes = torch.autograd.grad(loss(logits, inputs), list(modules.parameters()))
    found = torch.autograd.grad(loss(model(inputs), inputs), list(model.parameters()))
    for one, other in zip(found, slopes, strict=True):
        torch.testing.assert_close(one, other)


class Times(nn.Module):
    """In place of a dropout layer: factors that are known, drawn for the shape of what comes in first."""

    factors: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "factors"):
            self.factors = torch.rand(x.shape)
        return x * self.factors


def transformer_by_hand(
    text: Tensor, state: dict[str, Tensor], heads: int, causal: bool, times: dict[str, Tensor]
) -> Tensor:
    """Logits of one text (length,), position by position and head by head; `times` is what dropout multiplies by."""

    def norm(x: Tensor, entry: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        return scaled * state[f"{entry}.weight"] + state[f"{entry}.bias"]

    def linear(x: Tensor, entry: str) -> Tensor:
        return x @ state[f"{entry}.weight"].t() + state[f"{entry}.bias"]

    width = state["embedding.weight"].shape[1]
    rows = []
    for position, character in enumerate(text.tolist()):
        row = state["embedding.weight"][character].clone()
        for index in range(width):
            angle = position / 10_000 ** ((index - index % 2) / width)
            row[index] += math.cos(angle) if index % 2 else math.sin(angle)
        rows.append(row)
    x = norm(torch.stack(rows) * times["dropout"], "norm")
    for block in ("blocks.0", "blocks.1"):
        q, k, v = (x @ state[f"{block}.attention.{part}.weight"].t() for part in "qkv")
        head = q.shape[1] // heads
        mixed = torch.zeros_like(q)
        for number in range(heads):
            own = slice(number * head, (number + 1) * head)
            factors = times[f"{block}.attention.attention_dropout"][number]
            for position in range(len(text)):
                seen = position + 1 if causal else len(text)
                scores = k[:seen, own] @ q[position, own] / head**0.5
                mixed[position, own] = (scores.softmax(0) * factors[position, :seen]) @ v[:seen, own]
        attended = mixed @ state[f"{block}.attention.out.weight"].t() * times[f"{block}.attention.dropout"]
        x = norm(x + attended, f"{block}.attention_norm")
        changed = linear(linear(x, f"{block}.mlp.0").relu(), f"{block}.mlp.2") * times[f"{block}.mlp.3"]
        x = norm(x + changed, f"{block}.mlp_norm")
    return x @ state["head.weight"].t() / width**0.5


@pytest.mark.parametrize(("mask", "dim"), [("causal", 6), ("none", 5)])
def test_the_transformer_by_hand(mask: str, dim: int) -> None:
    model = small("language_transformer", attention_mask=mask, dim=dim)
    state = {entry: tensor + 0.1 * torch.rand(tensor.shape) for entry, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    dropouts = [entry for entry, module in model.named_modules() if isinstance(module, nn.Dropout)]
    for entry in dropouts:
        model.set_submodule(entry, Times())
    logits = model(texts(4))
    factors = {entry: model.get_submodule(entry).factors for entry in dropouts}
    for index, text in enumerate(texts(4)):
        times = {entry: tensor[index] for entry, tensor in factors.items()}
        expected = transformer_by_hand(text, state, 3, mask == "causal", times)
        torch.testing.assert_close(logits[index], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "hidden"),
    [
        ("lstm", {}, True),
        ("language_transformer", {}, True),
        ("language_transformer", {"attention_mask": "none"}, False),
    ],
)
def test_later_characters_are_hidden_unless_there_is_no_mask(name: str, options: dict[str, Any], hidden: bool) -> None:
    model = small(name, **options).eval()
    before = texts(4)
    for changed in range(1, LENGTH):
        after = before.clone()
        after[:, changed] = (after[:, changed] + 1) % CHARACTERS
        moved = (model(after) - model(before)).detach().abs().amax(dim=(0, 2))
        assert float(moved[changed:].min()) > 0 and (float(moved[:changed].max()) == 0) is hidden
    seen: list[Tensor] = []
    model.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))  # the feature of heads
    logits = model(before)
    scale = 6**-0.5 if name == "language_transformer" else 1
    torch.testing.assert_close(model.head(seen[0]) * scale, logits)


@pytest.mark.parametrize("copies", [False, True])
def test_without_a_mask_targets_are_copied(copies: bool) -> None:
    """Of random characters nothing can be predicted, but all targets except the last are among the inputs."""
    length, characters = 5, 4
    options: dict[str, Any] = {"dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 16, "dropout": 0.0}
    net = BACKBONES.create("language_transformer", attention_mask="none" if copies else "causal", **options)
    model, _ = net.create((length,), characters, 0)
    numbers, adam = torch.Generator().manual_seed(1), torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(100):
        text = torch.randint(characters, (32, length + 1), generator=numbers)
        adam.zero_grad()
        loss(model(text[:, :-1]), text[:, 1:]).backward()
        adam.step()
    text = torch.randint(characters, (2000, length + 1), generator=numbers)
    right = (model.eval()(text[:, :-1]).argmax(2) == text[:, 1:]).float().mean(0)
    assert float(right[-1]) == pytest.approx(1 / characters, abs=0.06)
    if copies:
        assert float(right[:-1].min()) > 0.95
        assert float(right.mean()) == pytest.approx((length - 1 + float(right[-1])) / length, abs=0.05)
    else:
        assert float(right.max()) < 1 / characters + 0.06


def test_a_backbone_of_images_refuses_text_and_names_those_that_take_it() -> None:
    with pytest.raises(
        UserError, match=r"^backbone convnet takes images, the dataset is text; use .*transformer or lstm$"
    ):
        BACKBONES.create("convnet").create((80,), 100, 0)
