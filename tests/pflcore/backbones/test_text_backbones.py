"""Backbones for text: sizes, the formulas written out, what a position sees, and vectorisation over clients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.errors import UserError
from pflcore.groups import Groups

torch.set_num_threads(1)

LENGTH, CHARACTERS = 7, 11
TEXT = ("lstm", "language_transformer")
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


@pytest.fixture(params=TEXT)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- sizes ---------------------------------------------------------------------------------------------------------


def sizes(name: str, length: int = 80, characters: int = 100, **options: Any) -> tuple[dict[str, int], Groups]:
    with torch.device("meta"):
        model, groups = BACKBONES.create(name, **options).create((length,), characters, 0)
    return {entry: tensor.numel() for entry, tensor in model.named_parameters()}, groups


PARTS = {
    "lstm": {"embedding": 800, "lstm": 798_720, "head": 25_700},
    "language_transformer": {
        "embedding": 12_800,
        "norm": 256 + 2 * 512,
        "attention.qkv": 393_216,
        "attention.out": 131_072,
        "mlp": 2 * 65_920,
        "head": 12_800,
    },
}


@pytest.mark.parametrize(("name", "total"), [("lstm", 825_220), ("language_transformer", 683_008)])
def test_sizes_are_those_of_the_released_code(name: str, total: int) -> None:
    numbers, groups = sizes(name)
    assert sum(numbers.values()) == total == sum(sizes(name, length=5)[0].values())
    assert groups.parameters == set(groups.of) == set(numbers)
    parts = {group: sum(numbers[entry] for entry in groups.select([group])) for group in groups.names()}
    assert parts == PARTS[name] and set(parts) == set(BACKBONES.get(name).groups)
    doc = BACKBONES.get(name).__doc__ or ""
    assert f"{total:,} parameters" in doc.replace("\n    ", " ")


# --- the formulas written out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 3])
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
            kept = times[f"{block}.attention.attention_dropout"][number]
            for position in range(len(text)):
                seen = position + 1 if causal else len(text)
                scores = k[:seen, own] @ q[position, own] / head**0.5
                mixed[position, own] = (scores.softmax(0) * kept[position, :seen]) @ v[:seen, own]
        attended = mixed @ state[f"{block}.attention.out.weight"].t() * times[f"{block}.attention.dropout"]
        x = norm(x + attended, f"{block}.attention_norm")
        changed = linear(linear(x, f"{block}.mlp.0").relu(), f"{block}.mlp.2") * times[f"{block}.mlp.3"]
        x = norm(x + changed, f"{block}.mlp_norm")
    return x @ state["head.weight"].t() / width**0.5


@pytest.mark.parametrize("mask", ["causal", "none"])
@pytest.mark.parametrize("dim", [6, 5])
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


def test_the_heads_input_is_the_feature(name: str) -> None:
    model, seen = small(name).eval(), []
    model.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    logits = model(texts(3))
    assert len(seen) == 1 and seen[0].shape == (3, LENGTH, 6)
    scale = 6**-0.5 if name == "language_transformer" else 1
    torch.testing.assert_close(model.head(seen[0]) * scale, logits)


# --- what a position sees ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "hidden"),
    [
        ("lstm", {}, True),
        ("language_transformer", {}, True),
        ("language_transformer", {"attention_mask": "causal", "depth": 3}, True),
        ("language_transformer", {"attention_mask": "none"}, False),
    ],
)
def test_later_characters_are_hidden_unless_there_is_no_mask(name: str, options: dict[str, Any], hidden: bool) -> None:
    model = small(name, **options).eval()
    before = texts(4)
    for changed in range(LENGTH):
        after = before.clone()
        after[:, changed] = (after[:, changed] + 1) % CHARACTERS
        moved = (model(after) - model(before)).detach().abs().amax(dim=(0, 2))
        assert float(moved[changed:].min()) > 0
        if changed:
            assert (float(moved[:changed].max()) == 0) is hidden


# --- what the engine relies on -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mask", "copies"), [("causal", False), ("none", True)])
def test_without_a_mask_targets_are_copied(mask: str, copies: bool) -> None:
    """Of random characters nothing can be predicted, but all targets except the last are among the inputs."""
    length, characters = 5, 4
    options = {"dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 16, "dropout": 0.0, "attention_mask": mask}
    model, _ = BACKBONES.create("language_transformer", **options).create((length,), characters, 0)
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


# --- what does not fit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("image_backbone", ["convnet", "tiny_vit", "timm_model"])
def test_a_backbone_of_images_refuses_text_and_names_those_that_take_it(image_backbone: str) -> None:
    with pytest.raises(UserError) as error:
        BACKBONES.create(image_backbone).create((80,), 100, 0)
    message = str(error.value)
    assert message.startswith(f"backbone {image_backbone} takes images, the dataset is text; use ")
    assert message.endswith(" or lstm") and "language_transformer" in message and "convnet" not in message[20:]


def test_a_backbone_of_text_refuses_images(name: str) -> None:
    with pytest.raises(UserError) as error:
        BACKBONES.create(name).create((3, 32, 32), 10, 0)
    message = str(error.value)
    assert message.startswith(f"backbone {name} takes text, the dataset has images; use alexnet_bn, ")
    assert message.endswith(" or vit") and not any(other in message.partition(";")[2] for other in TEXT)


def test_a_text_longer_than_the_table_is_an_error_of_one_line() -> None:
    with pytest.raises(UserError) as error:
        BACKBONES.create("language_transformer").create((201,), 100, 0)
    expected = "backbone language_transformer: positions 200 are too few for texts of 201 characters; "
    assert str(error.value) == expected + "use positions: 201 or shorter texts"
    BACKBONES.create("language_transformer", **SMALL["language_transformer"], depth=1).create((9,), 5, 0)
