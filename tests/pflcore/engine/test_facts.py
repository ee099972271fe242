"""What methods are told of the federation, of a client's samples and of a round, against counts made here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from support.tiny import CLASSES, backbone, create, federation, training

from pflcore.engine.facts import Facts, balanced
from pflcore.engine.parts import make_trainer
from pflcore.errors import UserError
from pflcore.methods.fedavg import FedAvg
from pflcore.seeds import torch_seed

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
    assert (told.local_epochs, told.planned, told.rounds) == (3, 9, 9)
    assert told.head == ("head.weight", "head.bias") and dict(told.generated) == {}
    model, groups = create(backbone("convnet"), SEED)
    assert told.features == model.state_dict()["head.weight"].shape[1] and told.parameters == groups.parameters


def test_where_steps_are_counted_there_are_no_epochs_and_rounds_are_for_who_asks() -> None:
    told = facts_of(FedAvg(), local_steps=4, local_epochs=3).federation
    assert told.local_epochs is None and told.planned is None
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
