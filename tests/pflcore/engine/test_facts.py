"""What methods are told, and what they are said to cost, against counts by hand."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from support.tiny import CLASSES, SHAPE, backbone, create, federation, method, run, training
from torch import nn

from pflcore.backbones import Backbone
from pflcore.engine.client import Facts, balanced
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.methods.simple import FedAvg
from pflcore.seeds import torch_seed

# --- facts -----------------------------------------------------------------------------------------------------------


SEED, DATA = 5, federation((14, 7, 9))


@dataclass(frozen=True, kw_only=True)
class Curious(FedAvg):
    """FedAvg that wants to know everything."""

    facts = ("class_counts", "epoch_steps", "steps", "round", "draws", "progress")

    def __post_init__(self) -> None:
        """It is not registered."""


def facts_of(entry: FedAvg, **settings: object) -> Facts:
    model, groups = create(backbone("convnet"), SEED)
    initial = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    trainer = make_trainer(model, groups, DATA, entry, training(**settings), SEED)
    return Facts(trainer, trainer.roles, initial)


def test_the_federation() -> None:
    told = facts_of(Curious(), rounds=9, momentum=0.5, local_epochs=3).federation
    assert (told.clients, told.seed, told.momentum, told.classes, told.samples) == (3, SEED, 0.5, CLASSES, (14, 7, 9))
    assert (told.local_epochs, told.total_rounds, told.rounds) == (3, 9, 9)
    assert told.head == ("head.weight", "head.bias") and dict(told.generated) == {}
    model, groups = create(backbone("convnet"), SEED)
    assert told.features == model.state_dict()["head.weight"].shape[1] and told.parameters == groups.parameters


def test_where_steps_are_counted_there_are_no_epochs_and_rounds_are_for_who_asks() -> None:
    told = facts_of(FedAvg(), local_steps=4, local_epochs=3).federation
    assert told.local_epochs is None and told.total_rounds is None
    with pytest.raises(UserError, match="must be asked for"):
        print(told.rounds)


@pytest.mark.parametrize("client", [0, 1, 2])
@pytest.mark.parametrize("round_", [1, 3])
def test_a_client_in_a_round(client: int, round_: int) -> None:
    found = facts_of(Curious(), rounds=8, local_epochs=2, batch_size=4).of(client, round_)
    seen = Counter(DATA.labels[DATA.train[client]].tolist())
    per_epoch = -(-(14, 7, 9)[client] // 4)
    assert found["data/class_counts"].tolist() == [seen[label] for label in range(CLASSES)]
    assert {name.removeprefix("data/"): tensor.item() for name, tensor in found.items() if not tensor.ndim} == {
        "epoch_steps": per_epoch,
        "steps": 2 * per_epoch,
        "round": round_,
        "draws": torch_seed(SEED, "draws", round_, client),
        "progress": round_ / 8,
    }


def test_nobody_is_told_what_he_does_not_ask_for() -> None:
    assert facts_of(FedAvg()).of(0, 1) == {}
    (weights,) = facts_of(FedAvg(), class_weights="balanced").of(1, 1).values()
    assert torch.equal(weights, balanced(DATA.class_counts(1)))


def test_balanced_weights_by_hand() -> None:
    # 12 samples in three of four classes: each class counts as 4 samples.
    assert balanced(torch.tensor([2, 0, 8, 2])).tolist() == [2.0, 0.0, 0.5, 2.0]


# --- cost ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Linear(Backbone):
    groups: ClassVar[dict[str, str]] = {"fc": r"fc\.", "head": r"head\."}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(
            OrderedDict(flat=nn.Flatten(), fc=nn.Linear(64, 7), relu=nn.ReLU(), head=nn.Linear(7, classes))
        )


FORWARD = 64 * 7 + 7 * CLASSES
# Weights of both layers get gradients, and the output of the first one.
STEP = FORWARD + FORWARD + 7 * CLASSES


@pytest.mark.parametrize(("name", "factor"), [("fedavg", 1), ("fedprox", 1), ("ditto", 2), ("apfl", 2), ("pfedme", 5)])
def test_multiply_adds_of_a_step(name: str, factor: int) -> None:
    assert run(method(name), Linear()).cost.macs == factor * STEP


@pytest.mark.parametrize("sizes", [(1, 7, 9), (3, 7, 9)])
def test_samples_of_which_there_are_few_are_taken_again(sizes: tuple[int, ...]) -> None:
    assert run(method("fedavg"), Linear(), federation(sizes)).cost.macs == STEP


def test_a_convolution_and_attention_are_counted() -> None:
    assert run(method("fedavg"), backbone("convnet")).cost.macs > 3 * 8 * 8 * 3 * 9  # the first convolution alone
    shallow, deep = (run(method("fedavg"), backbone("tiny_vit", depth=depth)).cost.macs for depth in (1, 2))
    tokens, dim, inner, mlp = (SHAPE[1] // 4) ** 2 + 1, 8, 8, 12
    block = tokens * (dim * 3 * inner + inner * dim + 2 * dim * mlp) + 2 * tokens * tokens * inner
    assert deep - shallow == 3 * block  # forward, and twice that backward


def test_numbers_that_are_held() -> None:
    model = sum(parameter.numel() for parameter in Linear().create(SHAPE, CLASSES, 0)[0].parameters())
    head = 7 * CLASSES + CLASSES
    costs = {name: run(method(name), Linear()).cost for name in ("fedavg", "fedper", "local", "ditto", "apfl")}
    assert (costs["fedavg"].stored, costs["fedavg"].received, costs["fedavg"].server) == (0, model, model)
    assert (costs["fedper"].stored, costs["fedper"].received) == (head, model - head)
    assert (costs["local"].stored, costs["local"].received, costs["local"].server) == (model, 0, 0)
    assert (costs["ditto"].stored, costs["apfl"].stored) == (model, model + 1)
    assert costs["fedavg"].sent_up == costs["fedavg"].sent_down == 4 * model


def test_the_server_of_fedtp_holds_its_hypernetwork() -> None:
    cost = run(method("fedtp"), backbone("tiny_vit"), training=training(rounds=1)).cost
    embedding, hidden, layers, clients, qkv, blocks = 4, 6, 2, 3, 8 * 3 * 8, 2
    mlp = embedding * hidden + hidden + (layers - 1) * (hidden * hidden + hidden)
    hyper = clients * embedding + mlp + blocks * (hidden * qkv + qkv)
    assert cost.server == cost.received - blocks * qkv + hyper and cost.stored == 0
