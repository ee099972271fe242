"""What methods are told, and what they are said to cost, against counts by hand."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from support.tiny import CLASSES, SHAPE, backbone, create, federation, method, run, training
from torch import nn

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine.client import Trainer, balanced
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.methods.simple import FedAvg
from pflcore.seeds import torch_seed

SEED, DATA = 5, federation((14, 7, 9))


class Curious(FedAvg):
    """FedAvg that wants to know everything."""

    facts = ("class_counts", "epoch_steps", "steps", "round", "draws", "progress")


def trainer(entry: FedAvg, **settings: Any) -> Trainer:
    return make_trainer(*create(backbone("convnet"), SEED), DATA, entry, training(**settings), SEED)


def test_the_federation() -> None:
    model, groups = create(backbone("convnet"), SEED)
    initial = dict(model.state_dict())
    known = trainer(Curious(), rounds=9, momentum=0.5, local_epochs=3).federation(initial)
    assert (known.clients, known.seed, known.momentum, known.classes, known.samples) == (3, SEED, 0.5, 4, (14, 7, 9))
    assert (known.local_epochs, known.total_rounds, known.rounds, dict(known.generated)) == (3, 9, 9, {})
    assert known.head == ("head.weight", "head.bias") and known.parameters == groups.parameters
    assert known.features == initial["head.weight"].shape[1]
    plain = trainer(FedAvg(), local_steps=4, local_epochs=3).federation(initial)
    assert plain.local_epochs is None and plain.total_rounds is None
    with pytest.raises(UserError, match=r"test_facts\.py:\d+: federation\.rounds must be asked for"):
        print(plain.rounds)


def test_a_client_in_a_round_knows_what_it_asks_for() -> None:
    for client, round_ in ((0, 1), (1, 3)):
        found = trainer(Curious(), rounds=8, local_epochs=2, batch_size=4).facts(client, round_)
        seen, per_epoch = Counter(DATA.labels[DATA.train[client]].tolist()), -(-(14, 7, 9)[client] // 4)
        assert found["data/class_counts"].tolist() == [seen[label] for label in range(CLASSES)]
        assert {name.removeprefix("data/"): tensor.item() for name, tensor in found.items() if not tensor.ndim} == {
            **{"epoch_steps": per_epoch, "steps": 2 * per_epoch, "round": round_, "progress": round_ / 8},
            "draws": torch_seed(SEED, "draws", round_, client),
        }
    assert trainer(FedAvg()).facts(0, 1) == {}
    (weights,) = trainer(FedAvg(), class_weights="balanced").facts(1, 1).values()
    assert torch.equal(weights, balanced(DATA.class_counts(1)))


def test_classes_are_counted_once_for_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    count = FederatedData.class_counts
    monkeypatch.setattr(FederatedData, "class_counts", lambda *given: (counted.append(given[1]), count(*given))[1])
    one = trainer(Curious(), class_weights="balanced")
    for round_ in (1, 2):
        for client in (0, 1):
            found = one.facts(client, round_)
            assert torch.equal(found["data/class_counts"], count(DATA, client))
            assert torch.equal(found["data/class_weights"], balanced(count(DATA, client)))
    assert counted == [0, 1]


# --- cost ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Linear(Backbone):
    groups: ClassVar[dict[str, str]] = {"fc": r"fc\.", "head": r"head\."}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers = OrderedDict(flat=nn.Flatten(), fc=nn.Linear(64, 7), relu=nn.ReLU(), head=nn.Linear(7, classes))
        return nn.Sequential(layers)


# Forward, and backward the gradients of both layers' weights and of the output of the first one.
STEP = 2 * (64 * 7 + 7 * CLASSES) + 7 * CLASSES
MODEL, HEAD = 64 * 7 + 7 + 7 * CLASSES + CLASSES, 7 * CLASSES + CLASSES


@pytest.mark.parametrize(
    ("name", "factor", "stored", "received"),
    [
        ("fedavg", 1, 0, MODEL),
        ("fedper", 1, HEAD, MODEL - HEAD),
        ("local", 1, MODEL, 0),
        ("apfl", 2, MODEL + 1, MODEL),
        ("pfedme", 5, MODEL, MODEL),
    ],
)
def test_multiply_adds_of_a_step_and_numbers_that_are_held(name: str, factor: int, stored: int, received: int) -> None:
    cost = run(method(name), Linear(), federation((1, 7, 9))).cost  # of which few samples are taken again
    assert (cost.macs, cost.stored, cost.received, cost.server) == (factor * STEP, stored, received, received)
    assert cost.sent_up == cost.sent_down == 4 * received


def test_a_convolution_and_attention_are_counted() -> None:
    assert run(method("fedavg"), backbone("convnet")).cost.macs > 3 * 8 * 8 * 3 * 9  # the first convolution alone
    shallow, deep = (run(method("fedavg"), backbone("tiny_vit", depth=depth)).cost.macs for depth in (1, 2))
    tokens, dim, inner, mlp = (SHAPE[1] // 4) ** 2 + 1, 8, 8, 12
    block = tokens * (dim * 3 * inner + inner * dim + 2 * dim * mlp) + 2 * tokens * tokens * inner
    assert deep - shallow == 3 * block  # forward, and twice that backward


def test_the_server_of_fedtp_holds_its_hypernetwork() -> None:
    cost = run(method("fedtp"), backbone("tiny_vit"), training=training(rounds=1)).cost
    embedding, hidden, layers, clients, qkv, blocks = 4, 6, 2, 3, 8 * 3 * 8, 2
    mlp = embedding * hidden + hidden + (layers - 1) * (hidden * hidden + hidden)
    hyper = clients * embedding + mlp + blocks * (hidden * qkv + qkv)
    assert cost.server == cost.received - blocks * qkv + hyper and cost.stored == 0
